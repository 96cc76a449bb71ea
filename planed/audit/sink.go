package audit

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/syslog"
	"os"
	"sync"
	"time"

	"fleet.example/fleet/core/wire"
)

// Source is where a sink's entries come from.
type Source interface {
	// After returns at most some hundred entries after seq, and a channel that
	// is closed when there may be more.
	After(ctx context.Context, seq uint64) ([]wire.AuditEntry, <-chan struct{}, error)
}

// Sink copies the chain to somewhere else, one JSON line an entry. It follows
// the store instead of being fed by it: a slow or full sink delays no change,
// and what it missed it gets later. A file goes on after its last entry, also
// over a restart; syslog cannot be asked and begins with what is new.
type Sink struct {
	last  wire.AuditHead // of a file, where it goes on
	from  uint64
	write func(line []byte) error
	close func() error

	mu  sync.Mutex
	err error
}

// OpenSink opens FILE, or the system's log for the word syslog. head is the
// chain's end now.
func OpenSink(target string, head wire.AuditHead) (*Sink, error) {
	if target == "syslog" {
		w, err := syslog.New(syslog.LOG_NOTICE|syslog.LOG_AUTHPRIV, "planed")
		if err != nil {
			return nil, fmt.Errorf("cannot open the audit sink: %w", err)
		}
		return &Sink{from: head.Seq, write: func(b []byte) error { _, err := w.Write(b); return err }, close: w.Close}, nil
	}
	f, err := os.OpenFile(target, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open the audit sink: %w", err)
	}
	last, end, err := lastEntry(f)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("cannot read the audit sink %s: %w", target, err)
	}
	return &Sink{last: last, from: last.Seq, close: f.Close, write: func(b []byte) error {
		n, err := f.Write(b)
		if err != nil && n > 0 { // a full disk took the beginning of the line
			if cut := f.Truncate(end); cut != nil {
				return errors.Join(err, cut)
			}
			n = 0
		}
		end += int64(n)
		return err
	}}, nil
}

// Last is the entry that a file ended with when it was opened; Seq 0: none.
func (s *Sink) Last() wire.AuditHead { return s.last }

// Close ends a sink that Run was not called of.
func (s *Sink) Close() error { return s.close() }

// lastEntry finds the last whole entry and cuts off a line that a crash or a
// full disk left torn. end is where the file then ends.
func lastEntry(f *os.File) (last wire.AuditHead, end int64, err error) {
	r := bufio.NewReaderSize(f, 64<<10)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return last, 0, err
		}
		var e struct {
			Seq  uint64 `json:"seq"`
			Hash string `json:"hash"`
		}
		if err := json.Unmarshal(bytes.TrimSpace(line), &e); err != nil {
			return last, 0, fmt.Errorf("a line is no audit entry: %s", err)
		}
		last, end = wire.AuditHead{Seq: e.Seq, Hash: e.Hash}, end+int64(len(line))
	}
	return last, end, f.Truncate(end)
}

// Run copies until ctx ends.
func (s *Sink) Run(ctx context.Context, src Source) {
	defer s.close()
	next := s.from
	for {
		entries, more, err := src.After(ctx, next)
		for _, e := range entries {
			var b []byte
			if b, err = json.Marshal(e); err != nil {
				break
			}
			if err = s.write(append(b, '\n')); err != nil {
				break
			}
			next = e.Seq
		}
		s.set(err)
		switch {
		case err != nil: // try the rest again soon
			more = nil
		case len(entries) > 0:
			continue
		}
		retry := time.NewTimer(5 * time.Second)
		if err == nil {
			retry.Stop()
		}
		select {
		case <-ctx.Done():
			retry.Stop()
			return
		case <-more:
		case <-retry.C:
		}
		retry.Stop()
	}
}

func (s *Sink) set(err error) {
	s.mu.Lock()
	s.err = err
	s.mu.Unlock()
}

// Err is what keeps the sink from copying, or nil.
func (s *Sink) Err() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}
