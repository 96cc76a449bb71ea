package tree

import (
	"crypto/sha256"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// Sum is how the sender tells the receiver what content is, so that damage on
// the way from the one's memory to the other's is seen before anything is
// written.
//
// The connection's own code authenticates every byte against whoever is on the
// wire, and whoever sends content sends its sum as well. So what a sum is for is
// chance: a fault in a program or in memory on the way, a piece that is left
// out, comes twice or in another's place. Of such damage 64 bits miss one in
// 2^64, and XXH64 costs a tenth of what SHA-256 does where a processor has
// instructions for that, and a fortieth where it has none. That a block that
// lies there is the one that would be sent is another question, which nothing
// else answers, and those blocks are compared by SHA-256 always.
type Sum bool

const (
	SHA256 Sum = false // what every agent knows
	XXH64  Sum = true
)

// of is a content's sum, with zeros behind a short one.
func (s Sum) of(content []byte) (h [hashLen]byte) {
	if s == XXH64 {
		binary.BigEndian.PutUint64(h[:], xxhash.Sum64(content))
		return h
	}
	return sha256.Sum256(content)
}
