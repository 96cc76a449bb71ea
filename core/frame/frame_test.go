package frame

import (
	"bytes"
	"errors"
	"io"
	"testing"
)

func TestFramesComeBackAsTheyWereSent(t *testing.T) { // R34
	var b []byte
	b = AppendJSON(b, Attach, AttachRequest{From: 7, Writer: "w1"})
	b = AppendData(b, Stdout, 1<<40, []byte("out"))
	b = AppendOffset(b, Ack, 12)
	b = AppendLost(b, 3, 9)
	b = AppendResize(b, 24, 80)
	b = Append(b, Ping, nil)
	r := NewReader(bytes.NewReader(b))
	next := func(want Type) []byte {
		t.Helper()
		got, p, err := r.Next()
		if err != nil || got != want {
			t.Fatalf("frame %q, err %v; want %q", got, err, want)
		}
		return p
	}
	var a AttachRequest
	if err := ParseJSON(next(Attach), &a); err != nil || a.From != 7 || a.Writer != "w1" {
		t.Fatal(a, err)
	}
	if off, data, err := ParseData(next(Stdout)); err != nil || off != 1<<40 || string(data) != "out" {
		t.Fatal(off, data, err)
	}
	if off, err := ParseOffset(next(Ack)); err != nil || off != 12 {
		t.Fatal(off, err)
	}
	if from, to, err := ParseLost(next(Lost)); err != nil || from != 3 || to != 9 {
		t.Fatal(from, to, err)
	}
	if rows, cols, err := ParseResize(next(Resize)); err != nil || rows != 24 || cols != 80 {
		t.Fatal(rows, cols, err)
	}
	next(Ping)
	if _, _, err := r.Next(); err != io.EOF {
		t.Fatalf("err = %v at the end, want io.EOF", err)
	}
}

func TestReaderRefusesWhatIsTooLongOrTorn(t *testing.T) {
	for _, c := range []struct {
		name string
		in   []byte
		want error
	}{
		{"too long", []byte{'1', 0, 1, 0, 1}, ErrMalformed},
		{"huge", []byte{'1', 0xff, 0xff, 0xff, 0xff}, ErrMalformed},
		{"torn header", []byte{'1', 0}, io.ErrUnexpectedEOF},
		{"torn payload", []byte{'1', 0, 0, 0, 3, 'a'}, io.ErrUnexpectedEOF},
		{"no payload", []byte{'1', 0, 0, 0, 3}, io.ErrUnexpectedEOF},
	} {
		if _, _, err := NewReader(bytes.NewReader(c.in)).Next(); !errors.Is(err, c.want) {
			t.Errorf("%s: err = %v, want %v", c.name, err, c.want)
		}
	}
}

func FuzzReader(f *testing.F) {
	f.Add(AppendData(nil, Stdin, 5, []byte("x")))
	f.Add(AppendLost(AppendResize(nil, 1, 2), 1, 2))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		var back []byte
		for {
			typ, p, err := r.Next()
			if err != nil {
				break
			}
			if len(p) > MaxPayload {
				t.Fatalf("payload of %d bytes", len(p))
			}
			back = Append(back, typ, p)
			if off, data, err := ParseData(p); err == nil && (off < 0 || len(data) > MaxData) {
				t.Fatal("data out of bounds")
			}
			if from, to, err := ParseLost(p); err == nil && (from < 0 || to < from) {
				t.Fatal("lost range out of order")
			}
		}
		if !bytes.HasPrefix(in, back) {
			t.Fatal("frames read are not the bytes sent")
		}
	})
}
