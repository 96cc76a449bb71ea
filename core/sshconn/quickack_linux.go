package sshconn

import (
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// promptly makes a connection acknowledge what it receives at once. sshd leaves
// Nagle's algorithm on unless a session has a terminal, so that a second small
// write of the agent's waits there for the acknowledgement of the first, which
// this side would put off by 40 ms (tcp(7), TCP_QUICKACK). The option does not
// stay set, so it is set with every read.
func promptly(c net.Conn) net.Conn {
	tcp, ok := c.(*net.TCPConn)
	if !ok {
		return c
	}
	raw, err := tcp.SyscallConn()
	if err != nil {
		return c
	}
	return &prompt{tcp, raw}
}

type prompt struct {
	*net.TCPConn
	raw syscall.RawConn
}

func (p *prompt) Read(b []byte) (int, error) {
	n, err := p.TCPConn.Read(b)
	p.raw.Control(func(fd uintptr) { unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_QUICKACK, 1) })
	return n, err
}
