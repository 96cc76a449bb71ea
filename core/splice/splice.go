// Package splice joins two byte streams. It knows nothing of what they carry.
package splice

import (
	"errors"
	"io"
	"net"
	"sync"
)

// Conns copies both ways until both have ended, and passes half-closes on. An
// error in either direction ends both connections. The caller closes them.
func Conns(a, b net.Conn) {
	var wg sync.WaitGroup
	wg.Go(func() { one(a, b) })
	one(b, a)
	wg.Wait()
}

func one(to, from net.Conn) {
	if _, err := io.Copy(to, from); err != nil && !errors.Is(err, io.EOF) {
		to.Close()
		from.Close()
		return
	}
	if h, ok := to.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
	} else {
		to.Close()
	}
}
