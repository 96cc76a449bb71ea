package sshconn

import (
	"bufio"
	"net"
)

// readAhead is how much of what a host sends is taken at a time, in bytes.
// x/crypto/ssh takes 4 KiB to learn how long a packet is, and then the rest of
// it, which would be two system calls for each 32 KiB.
const readAhead = 128 << 10

// gathered reads a connection in few system calls.
func gathered(c net.Conn) net.Conn { return &gathering{c, bufio.NewReaderSize(c, readAhead)} }

type gathering struct {
	net.Conn
	r *bufio.Reader
}

func (g *gathering) Read(b []byte) (int, error) { return g.r.Read(b) }
