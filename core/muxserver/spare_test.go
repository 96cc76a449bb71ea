package muxserver

import (
	"bytes"
	"errors"
	"io"
	"net"
	"testing"
	"testing/synctest"
	"time"
)

// pair returns a spare of one end of a connection, and the other end.
func pair(p *spares) (far net.Conn) {
	near, far := net.Pipe()
	p.mu.Lock()
	p.coming++
	p.mu.Unlock()
	p.put(near, nil)
	return far
}

// What the agent closed, or spoke on before it was asked, is given to nobody.
func TestSpareThatEndedIsNotGivenOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p spares
		closed, talks, good := pair(&p), pair(&p), pair(&p)
		closed.Close()
		talks.Write([]byte("HTTP/1.1 408"))
		synctest.Wait()
		got := p.take()
		if got == nil {
			t.Fatal("the good one was not given out")
		}
		go good.Write([]byte("hello"))
		b := make([]byte, 5)
		if _, err := io.ReadFull(got, b); err != nil || string(b) != "hello" {
			t.Errorf("%q, %v", b, err)
		}
		if more := p.take(); more != nil {
			t.Error("one that had ended was given out")
		}
		got.Close()
		talks.Close()
		good.Close()
	})
}

func TestSpareGrowsOld(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var p spares
		far := pair(&p)
		time.Sleep(spareAge - time.Second)
		p.air()
		if n := p.wanted(); n != maxSpares-1 {
			t.Errorf("%d are wanted beside one that is good", n)
		}
		p.put(nil, errors.New("refused"))
		time.Sleep(2 * time.Second)
		p.air()
		if _, err := far.Read(make([]byte, 1)); err == nil {
			t.Error("one that is too old was kept open")
		}
		if n := p.wanted(); n != maxSpares {
			t.Errorf("%d are wanted when there is none", n)
		}
		p.end()
		near, late := net.Pipe()
		p.put(near, nil)
		if _, err := late.Read(make([]byte, 1)); err == nil {
			t.Error("one that came after the end was kept")
		}
	})
}

// Bytes are the same whether they are read or copied, also those that came
// with the end.
func TestSpareCopiesEveryByte(t *testing.T) {
	want := bytes.Repeat([]byte("0123456789abcdef"), 10_000)
	for _, how := range []string{"WriteTo", "Read"} {
		synctest.Test(t, func(t *testing.T) {
			near, far := net.Pipe()
			s := newSpare(near)
			go func() { far.Write(want); far.Close() }()
			var got bytes.Buffer
			if how == "WriteTo" {
				s.WriteTo(&got)
			} else {
				io.Copy(&got, struct{ io.Reader }{s})
			}
			if !bytes.Equal(got.Bytes(), want) {
				t.Errorf("%s: %d of %d bytes", how, got.Len(), len(want))
			}
			near.Close()
		})
	}
}
