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
	if _, err := Copy(to, from); err != nil && !errors.Is(err, io.EOF) {
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

const (
	// few is what a stream is copied with at first, in bytes: many say little,
	// and there may be many of them.
	few = 16 << 10
	// many is what one is copied with that has more to say.
	many = 256 << 10
)

var buffers = sync.Pool{New: func() any { b := make([]byte, many); return &b }}

// Copy is io.Copy with a buffer that fits what comes: a stream whose reads fill
// a small one gets a large one, until its reads are small again.
func Copy(to io.Writer, from io.Reader) (n int64, err error) {
	if _, ok := from.(io.WriterTo); ok {
		return io.Copy(to, from)
	}
	if _, ok := to.(io.ReaderFrom); ok {
		return io.Copy(to, from)
	}
	small := make([]byte, few)
	buf := small
	var large *[]byte
	roomy := false
	shrink := func() {
		if large != nil {
			buffers.Put(large)
			buf, large = small, nil
		}
	}
	defer shrink()
	for {
		r, rerr := from.Read(buf)
		if r > 0 {
			w, werr := to.Write(buf[:r])
			n += int64(w)
			if werr == nil && w < r {
				werr = io.ErrShortWrite
			}
			if werr != nil {
				return n, werr
			}
		}
		if rerr == io.EOF {
			return n, nil
		}
		if rerr != nil {
			return n, rerr
		}
		switch {
		case large == nil && r == len(small):
			large = buffers.Get().(*[]byte)
			buf = *large
			if !roomy {
				Roomy(to)
				roomy = true
			}
		case large != nil && r < len(small):
			shrink() // before it waits
		}
	}
}

// room is what a connection that carries much may have on its way in the kernel,
// in bytes, as far as the system allows it.
const room = 1 << 20

// Roomy lets what is written to a connection run ahead of its reader, who is
// then woken for much at a time. Of what is no socket it asks nothing.
func Roomy(c any) {
	if s, ok := c.(interface{ SetWriteBuffer(int) error }); ok {
		s.SetWriteBuffer(room)
	}
}
