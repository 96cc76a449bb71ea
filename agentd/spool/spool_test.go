package spool

import (
	"bytes"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"
)

func create(t *testing.T, limit int64, drop bool) *Spool {
	t.Helper()
	s, err := Create(filepath.Join(t.TempDir(), "spool"), limit, drop)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(s.Close)
	return s
}

// readAll returns the bytes from the cursor's place on, zeros where they are lost.
func readAll(t interface{ Fatalf(string, ...any) }, c *Cursor, limit int) (out []byte, lost int64) {
	for {
		ch, ok, err := c.Next(limit)
		if err != nil {
			t.Fatalf("next: %v", err)
		}
		if !ok {
			return out, lost
		}
		if ch.Data == nil {
			lost += ch.To - ch.Offset
			out = append(out, make([]byte, ch.To-ch.Offset)...)
			continue
		}
		out = append(out, ch.Data...)
	}
}

func TestCursorFromAnyOffsetGivesTheSameBytes(t *testing.T) { // R34
	rapid.Check(t, func(r *rapid.T) {
		dir, err := os.MkdirTemp("", "spool")
		if err != nil {
			r.Fatal(err)
		}
		defer os.RemoveAll(dir)
		s, err := Create(filepath.Join(dir, "s"), 8<<20, false)
		if err != nil {
			r.Fatal(err)
		}
		s.segSize = 4 << 10
		var want []byte
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(r, "seed"), 1))
		for range rapid.IntRange(1, 40).Draw(r, "writes") {
			b := make([]byte, rapid.SampledFrom([]int{1, 7, 100, 3000, 70000}).Draw(r, "n"))
			for i := range b {
				b[i] = byte(rnd.Uint32())
			}
			want = append(want, b...)
			if err := s.Append(byte(1+rnd.IntN(2)), b); err != nil {
				r.Fatal(err)
			}
		}
		from := rapid.IntRange(0, len(want)).Draw(r, "from")
		limit := rapid.SampledFrom([]int{1 << 10, maxRecord}).Draw(r, "limit")
		got, lost := readAll(r, s.Cursor(int64(from)), limit)
		if lost != 0 || !bytes.Equal(got, want[from:]) {
			r.Fatalf("live: %d bytes from %d, %d lost", len(got), from, lost)
		}
		s.Close()
		st, err := Open(filepath.Join(dir, "s"))
		if err != nil {
			r.Fatal(err)
		}
		if got, lost = readAll(r, st.Cursor(int64(from)), limit); lost != 0 || !bytes.Equal(got, want[from:]) {
			r.Fatalf("stored: %d bytes from %d, %d lost", len(got), from, lost)
		}
	})
}

func TestDropOldestKeepsTheEndAndCountsTheLoss(t *testing.T) {
	s := create(t, MinLimit, true)
	var want []byte
	for i := range 4 * MinLimit / 1000 {
		b := bytes.Repeat([]byte{byte(i)}, 1000)
		want = append(want, b...)
		if err := s.Append(Stdout, b); err != nil {
			t.Fatal(err)
		}
	}
	st, _ := s.State()
	if st.End != int64(len(want)) || st.Oldest == 0 || st.Lost != st.Oldest {
		t.Fatalf("%+v", st)
	}
	if n := s.onDisk(); n > MinLimit {
		t.Fatalf("%d bytes on disk", n)
	}
	got, lost := readAll(t, s.Cursor(0), maxRecord)
	if lost != st.Oldest || !bytes.Equal(got[lost:], want[lost:]) {
		t.Fatalf("%d lost, %d read", lost, len(got))
	}
}

func TestBlockWaitsForAcknowledgementAndLosesNothing(t *testing.T) { // R34
	s := create(t, MinLimit, false)
	const total = 3 * MinLimit
	done := make(chan error, 1)
	go func() {
		for i := range total / 1024 {
			if err := s.Append(Stdout, bytes.Repeat([]byte{byte(i)}, 1024)); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	c := s.Cursor(0)
	var got []byte
	deadline := time.After(20 * time.Second)
	for len(got) < total {
		_, changed := s.State()
		ch, ok, err := c.Next(maxRecord)
		if err != nil || ok && ch.Data == nil {
			t.Fatal(ch, err)
		}
		if !ok {
			select {
			case <-changed:
			case <-deadline:
				t.Fatalf("stuck at %d", len(got))
			}
			continue
		}
		got = append(got, ch.Data...)
		s.Ack(c.At())
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	for i := range got {
		if got[i] != byte(i/1024) {
			t.Fatalf("byte %d is %d", i, got[i])
		}
	}
	if st, _ := s.State(); st.Lost != 0 {
		t.Fatalf("lost %d", st.Lost)
	}
}

func TestReadersAndTheWriterDoNotDisturbEachOther(t *testing.T) { // R34
	s := create(t, 4*MinLimit, true)
	const total = 8 << 20
	var wg sync.WaitGroup
	for range 3 {
		wg.Go(func() {
			c := s.Cursor(0)
			defer c.Close()
			for at := int64(0); at < total; {
				ch, ok, err := c.Next(maxRecord)
				if err != nil {
					t.Errorf("at %d: %v", at, err)
					return
				}
				if !ok {
					runtime.Gosched()
					continue
				}
				for i, b := range ch.Data {
					if want := byte((ch.Offset + int64(i)) / 512); b != want {
						t.Errorf("byte %d is %d, want %d", ch.Offset+int64(i), b, want)
						return
					}
				}
				at = c.At()
			}
		})
	}
	for off := 0; off < total; off += 512 {
		if err := s.Append(Stdout, bytes.Repeat([]byte{byte(off / 512)}, 512)); err != nil {
			t.Fatal(err)
		}
	}
	wg.Wait()
}

func TestCloseEndsAWaitingAppend(t *testing.T) {
	s := create(t, MinLimit, false)
	done := make(chan error, 1)
	go func() { done <- s.Append(Stdout, make([]byte, 2*MinLimit)) }()
	for {
		st, changed := s.State()
		if st.End >= MinLimit/2 {
			break
		}
		<-changed
	}
	s.Close()
	if err := <-done; err != ErrClosed {
		t.Fatalf("err = %v", err)
	}
}

func TestDropLetsAWaitingAppendGoOn(t *testing.T) { // the last output of a command that nobody follows any more
	s := create(t, MinLimit, false)
	done := make(chan error, 1)
	go func() { done <- s.Append(Stdout, make([]byte, 3*MinLimit)) }()
	for !s.Waiting() {
		if _, changed := s.State(); !s.Waiting() {
			select {
			case <-changed:
			case <-time.After(time.Millisecond): // it waits without a change
			}
		}
	}
	s.Drop()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if st, _ := s.State(); st.End != 3*MinLimit || st.Lost == 0 || st.Oldest == 0 {
		t.Errorf("%+v", st)
	}
}

func TestOpenLeavesATornRecordOut(t *testing.T) { // R34: the shim was killed in the middle of a write
	s := create(t, MinLimit, false)
	if err := s.Append(Stderr, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.path(0), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Write([]byte{Stdout, 0, 0, 0, 9, 'h', 'a', 'l', 'f'})
	f.Close()
	st, err := Open(s.dir)
	if err != nil {
		t.Fatal(err)
	}
	if got, _ := readAll(t, st.Cursor(0), maxRecord); string(got) != "whole" {
		t.Fatalf("got %q", got)
	}
}

func FuzzOpen(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 1, 'x'})
	f.Add([]byte{1, 0xff, 0xff, 0xff, 0xff})
	f.Fuzz(func(t *testing.T, in []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "0000000000000000.out"), in, 0o600); err != nil {
			t.Fatal(err)
		}
		st, err := Open(dir)
		if err != nil {
			t.Fatal(err)
		}
		got, lost := readAll(t, st.Cursor(0), maxRecord)
		if int64(len(got)) != st.State().End || lost != 0 || len(got) > len(in) {
			t.Fatalf("%d bytes of %d, end %d", len(got), len(in), st.State().End)
		}
	})
}

// TestTheSmallestLimitHoldsWhatIsAcknowledgedTogether: each byte may be a record
// of its own, and a client acknowledges 32 KiB at a time.
func TestTheSmallestLimitHoldsWhatIsAcknowledgedTogether(t *testing.T) {
	s := create(t, 0, false)
	const together, total = 32 << 10, 4 * (32 << 10)
	done := make(chan error, 1)
	go func() {
		for range total {
			if err := s.Append(Stdout, []byte{'x'}); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for at := int64(0); at < total; {
		st, changed := s.State()
		if st.End-at >= together {
			at += together
			s.Ack(at)
			continue
		}
		select {
		case <-changed:
		case <-time.After(time.Minute):
			s.Close()
			t.Fatalf("the command waits at %d for a client that waits for %d", st.End, at+together)
		}
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasTornIsNotReadAheadForTheNext(t *testing.T) { // R34: the disk was full in the middle of a record
	s := create(t, MinLimit, false)
	if err := s.Append(Stdout, []byte("whole")); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(s.path(0), os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.Write([]byte{Stdout, 0, 0, 0, 9, 'h', 'a', 'l', 'f'})
	f.Close()
	c := s.Cursor(0)
	defer c.Close()
	if got, ok, err := c.Next(maxRecord); err != nil || !ok || string(got.Data) != "whole" {
		t.Fatal(got, ok, err)
	}
	if err := s.Append(Stderr, []byte("another")); err != nil {
		t.Fatal(err)
	}
	if got, ok, err := c.Next(maxRecord); err != nil || !ok || got.Stream != Stderr || string(got.Data) != "another" {
		t.Fatal(got, ok, err)
	}
}
