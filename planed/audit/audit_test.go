package audit

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

func chain(n int) []wire.AuditEntry {
	head := Genesis
	var all []wire.AuditEntry
	for i := range n {
		e := Link(head, Event{At: time.Unix(int64(i), 123456789), Actor: "person:dana", Action: "machine.admit", Subject: fmt.Sprint(i), Detail: map[string]string{"b": "<2>", "a": "1"}})
		all, head = append(all, e), Head(e)
	}
	return all
}

func verify(all []wire.AuditEntry) error {
	head := Genesis
	for _, e := range all {
		var err error
		if head, err = Next(head, e); err != nil {
			return err
		}
	}
	return nil
}

func TestEveryAlterationBreaksTheChain(t *testing.T) {
	if err := verify(chain(5)); err != nil {
		t.Fatal(err)
	}
	for name, alter := range map[string]func([]wire.AuditEntry) []wire.AuditEntry{
		"actor":   func(c []wire.AuditEntry) []wire.AuditEntry { c[2].Actor = "person:mo"; return c },
		"detail":  func(c []wire.AuditEntry) []wire.AuditEntry { c[2].Detail = map[string]string{"a": "2"}; return c },
		"time":    func(c []wire.AuditEntry) []wire.AuditEntry { c[2].At.Time = c[2].At.Add(time.Second); return c },
		"removed": func(c []wire.AuditEntry) []wire.AuditEntry { return append(c[:2:2], c[3:]...) },
		"swapped": func(c []wire.AuditEntry) []wire.AuditEntry { c[2], c[3] = c[3], c[2]; return c },
		"relinked": func(c []wire.AuditEntry) []wire.AuditEntry {
			e := Link(Head(c[1]), Event{Actor: "person:mo"})
			c[2] = e
			return c
		},
	} {
		if err := verify(alter(chain(5))); err == nil {
			t.Errorf("%s: nobody noticed", name)
		}
	}
}

// source is a chain that grows.
type source struct {
	mu      sync.Mutex
	entries []wire.AuditEntry
	changed chan struct{}
}

func (s *source) After(_ context.Context, seq uint64) ([]wire.AuditEntry, <-chan struct{}, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	end := min(len(s.entries), int(seq)+2)
	return s.entries[min(int(seq), end):end], s.changed, nil
}

func (s *source) grow(all []wire.AuditEntry) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.entries = all
	close(s.changed)
	s.changed = make(chan struct{})
}

func TestTheSinkGoesOnWhereItsFileEnds(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	all := chain(9)
	src := &source{entries: all[:3], changed: make(chan struct{})}
	follow := func(until int, during func()) {
		t.Helper()
		s, err := OpenSink(file, Genesis)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { s.Run(ctx, src); close(done) }()
		during()
		for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
			b, _ := os.ReadFile(file)
			if strings.Count(string(b), "\n") == until {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s", b)
			}
		}
		cancel()
		<-done
	}
	follow(5, func() { src.grow(all[:5]) })
	// A torn line, as a crash leaves it.
	f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	f.WriteString(`{"seq":6,"at":`)
	f.Close()
	follow(9, func() { src.grow(all) })
	b, _ := os.ReadFile(file)
	for i, line := range strings.Split(strings.TrimSpace(string(b)), "\n") {
		if !strings.HasPrefix(line, fmt.Sprintf(`{"seq":%d,`, i+1)) {
			t.Errorf("line %d: %s", i+1, line)
		}
	}
	os.WriteFile(file, []byte("no entry\n"), 0o600)
	if _, err := OpenSink(file, Genesis); err == nil {
		t.Error("a file of something else was taken")
	}
}
