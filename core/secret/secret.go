// Package secret holds the types that carry secrets and the digests made of
// them. A secret cannot be printed, logged or marshalled by accident: every
// way that Go turns a value into text gives the same fixed word. Reveal is the
// one way to the bytes, so that a search for it finds every place that uses
// them.
//
// The package knows nothing of who holds a secret or what it opens.
package secret

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// Redacted is what stands where a secret would have been printed.
const Redacted = "[secret]"

// Text is a secret in its text form. The zero Text is empty. Copying a Text
// copies the secret; comparing it with == is possible but not constant in
// time, so compare digests.
type Text struct{ s string }

// New returns a fresh secret of 256 random bits after the given prefix, as 43
// characters of unpadded base64url. The prefix lets a leak scanner and a
// person tell kinds apart.
func New(prefix string) Text {
	var b [32]byte
	rand.Read(b[:])
	return Text{prefix + base64.RawURLEncoding.EncodeToString(b[:])}
}

// Of makes a Text of s, without surrounding white space: a secret read from a
// file very often ends in a newline.
func Of(s string) Text { return Text{strings.TrimSpace(s)} }

// Reveal returns the secret itself.
func (t Text) Reveal() string { return t.s }

// Empty reports whether there is no secret.
func (t Text) Empty() bool { return t.s == "" }

// Digest is the SHA-256 of the secret's text.
func (t Text) Digest() Digest { return sha256.Sum256([]byte(t.s)) }

func (t Text) String() string               { return Redacted }
func (t Text) GoString() string             { return Redacted }
func (t Text) Format(f fmt.State, _ rune)   { io.WriteString(f, Redacted) }
func (t Text) MarshalText() ([]byte, error) { return []byte(Redacted), nil }
func (t Text) MarshalJSON() ([]byte, error) { return []byte(`"` + Redacted + `"`), nil }
func (t Text) LogValue() slog.Value         { return slog.StringValue(Redacted) }

// Digest is the SHA-256 of a secret: what is stored and compared.
type Digest [sha256.Size]byte

var errDigest = errors.New("a digest is 64 hexadecimal digits")

// ParseDigest parses 64 hexadecimal digits.
func ParseDigest(s string) (Digest, error) {
	var d Digest
	if len(s) != hex.EncodedLen(len(d)) {
		return d, errDigest
	}
	if _, err := hex.Decode(d[:], []byte(s)); err != nil {
		return d, errDigest
	}
	return d, nil
}

// Hex is the digest as 64 lower-case hexadecimal digits.
func (d Digest) Hex() string { return hex.EncodeToString(d[:]) }

// String shortens the digest: enough to tell two apart in a message, not
// enough to look one up.
func (d Digest) String() string { return "sha256:" + hex.EncodeToString(d[:4]) + "…" }

// IsZero reports whether the digest was never set.
func (d Digest) IsZero() bool { return d == Digest{} }

// Match compares the presented digest with every candidate, always all of
// them, in constant time, and returns the index of the one that matched or -1.
// A zero candidate never matches, so that an unset expectation fails closed.
func Match(presented Digest, candidates ...Digest) int {
	found := -1
	for i := range candidates {
		eq := subtle.ConstantTimeCompare(presented[:], candidates[i][:])
		var zero Digest
		set := 1 - subtle.ConstantTimeCompare(zero[:], candidates[i][:])
		found = subtle.ConstantTimeSelect(eq&set, i, found)
	}
	return found
}
