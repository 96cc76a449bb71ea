package splice_test

import (
	"bytes"
	"crypto/rand"
	"errors"
	"io"
	mrand "math/rand/v2"
	"net"
	"testing"

	"fleet.example/fleet/core/splice"
)

// lumps is a reader whose reads bring as much as their turn says.
type lumps struct {
	all   []byte
	sizes []int
	turn  int
	end   error
}

func (l *lumps) Read(p []byte) (int, error) {
	if len(l.all) == 0 {
		return 0, l.end
	}
	n := min(len(p), len(l.all), l.sizes[l.turn%len(l.sizes)])
	l.turn++
	copy(p, l.all[:n])
	l.all = l.all[n:]
	return n, nil
}

// Whatever the lumps in which a stream comes, it arrives as it was.
func TestCopyIsExactWhateverTheLumps(t *testing.T) {
	all := make([]byte, 3<<20)
	rand.Read(all)
	for _, sizes := range [][]int{{1 << 20}, {100}, {16 << 10, 1, 300 << 10}, {16 << 10, 16 << 10, 7}} {
		var to bytes.Buffer
		n, err := splice.Copy(struct{ io.Writer }{&to}, &lumps{all: all, sizes: sizes, end: io.EOF})
		if err != nil || n != int64(len(all)) || !bytes.Equal(to.Bytes(), all) {
			t.Errorf("lumps of %v: %d bytes of %d, %v", sizes, n, len(all), err)
		}
	}
}

func TestCopyTellsWhatEndedIt(t *testing.T) {
	broken := errors.New("broken")
	if n, err := splice.Copy(struct{ io.Writer }{io.Discard}, &lumps{all: make([]byte, 100), sizes: []int{100}, end: broken}); n != 100 || err != broken {
		t.Errorf("%d, %v", n, err)
	}
	_, w := io.Pipe()
	w.CloseWithError(io.EOF)
	if n, err := splice.Copy(struct{ io.Writer }{w}, &lumps{all: make([]byte, 100), sizes: []int{100}, end: io.EOF}); n != 0 || err == nil {
		t.Errorf("%d, %v", n, err)
	}
}

// Both directions, with a half-close each.
func TestConnsPassesHalfClosesOn(t *testing.T) {
	dir := t.TempDir()
	pair := func(name string) (a, b *net.UnixConn) {
		l, err := net.Listen("unix", dir+"/"+name)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		c, err := net.Dial("unix", dir+"/"+name)
		if err != nil {
			t.Fatal(err)
		}
		s, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.UnixConn), s.(*net.UnixConn)
	}
	left, nearLeft := pair("l")
	right, nearRight := pair("r")
	over := make(chan struct{})
	go func() { splice.Conns(nearLeft, nearRight); close(over) }()
	there, back := make([]byte, 1<<20+mrand.IntN(1000)), make([]byte, 2<<20)
	rand.Read(there)
	rand.Read(back)
	go func() { left.Write(there); left.CloseWrite() }()
	got, err := io.ReadAll(right)
	if err != nil || !bytes.Equal(got, there) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(there), err)
	}
	go func() { right.Write(back); right.CloseWrite() }()
	if got, err = io.ReadAll(left); err != nil || !bytes.Equal(got, back) {
		t.Fatalf("%d bytes of %d, %v", len(got), len(back), err)
	}
	<-over
}
