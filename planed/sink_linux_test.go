package planed_test

import (
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

// copied are the entries that an audit sink's lines hold.
func copied(t *testing.T, text string) []wire.AuditEntry {
	t.Helper()
	var out []wire.AuditEntry
	for line := range strings.Lines(text) {
		if !strings.HasSuffix(line, "\n") {
			break // still being written
		}
		var e wire.AuditEntry
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, e)
	}
	return out
}

// TestTheAuditSinkIsTheChain: a file has every entry once, over a restart, a
// crash and a torn line.
func TestTheAuditSinkIsTheChain(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	p := newPlane(t, "--audit-sink", file)
	owner := p.owner()
	deed := func(name string) {
		b := p.newBox()
		b.admit(owner, name)
	}
	deed("one")
	deed("two")
	p.kill()
	if f, err := os.OpenFile(file, os.O_APPEND|os.O_WRONLY, 0); err != nil {
		t.Fatal(err)
	} else if _, err := f.WriteString(`{"seq":9`); err != nil || f.Close() != nil {
		t.Fatal(err)
	}
	p.start()
	deed("three")
	head, err := owner.AuditHead(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var got []wire.AuditEntry
	p.until("the file has the chain", func() bool {
		b, err := os.ReadFile(file)
		if err != nil {
			return false
		}
		got = copied(t, string(b))
		return len(got) > 0 && got[len(got)-1].Seq == head.Seq
	})
	for i, e := range got {
		if e.Seq != uint64(i+1) {
			t.Fatalf("entry %d has number %d", i+1, e.Seq)
		}
	}
	if got[len(got)-1].Hash != head.Hash {
		t.Errorf("it ends in %s, the chain in %s", got[len(got)-1].Hash, head.Hash)
	}
	if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 {
		t.Error(st.Mode(), err)
	}
}

// TestTheAuditSinkGoesToSyslog: the entries arrive at the socket where syslog
// listens, here one of the test's own in a mount namespace.
func TestTheAuditSinkGoesToSyslog(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("a /run and /dev/log of the test's own need root")
	}
	dir, err := os.MkdirTemp("", "sl") // short: it holds a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "syslog"), Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var lines []string
	done := make(chan struct{})
	go func() { // ends when the socket closes
		defer close(done)
		b := make([]byte, 64<<10)
		for {
			n, err := l.Read(b)
			if err != nil {
				return
			}
			mu.Lock()
			lines = append(lines, string(b[:n]))
			mu.Unlock()
		}
	}()
	t.Cleanup(func() { l.Close(); <-done })

	// log/syslog asks /dev/log, /var/run/syslog and /var/run/log, in this order.
	wrap := filepath.Join(dir, "planed")
	script := "#!/bin/sh\nexec unshare -m sh -c 'mount --bind " + dir + " /run && { [ ! -S /dev/log ] || mount --bind " + dir + "/syslog /dev/log; } && exec \"$@\"' sh " + binary + ` "$@"` + "\n"
	if err := os.WriteFile(wrap, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(wrap, "help").CombinedOutput(); err != nil {
		t.Skipf("no mount namespace here: %v %s", err, out)
	}
	p := initPlane(t, filepath.Join(t.TempDir(), "data"), "--audit-sink", "syslog")
	p.program = wrap
	p.start()
	ca, err := os.ReadFile(filepath.Join(p.dir, "root.pem"))
	if err != nil {
		t.Fatal(err)
	}
	p.roots = string(ca)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	var entry wire.AuditEntry
	p.until("the admission at the socket", func() bool {
		mu.Lock()
		defer mu.Unlock()
		for _, l := range lines {
			if strings.Contains(l, b.id) {
				head, doc, ok := strings.Cut(l, ": {")
				if !ok || !strings.HasPrefix(head, "<85>") || !strings.Contains(head, "planed[") {
					t.Fatalf("%q", l)
				}
				if err := json.Unmarshal([]byte("{"+doc), &entry); err != nil {
					t.Fatalf("%q: %v", l, err)
				}
				return true
			}
		}
		return false
	})
	if !strings.HasPrefix(entry.Action, "machine.") || entry.Actor != "person:dana" || time.Since(entry.At.Time) > time.Hour {
		t.Errorf("%+v", entry)
	}
	for _, l := range lines {
		if strings.Contains(l, b.secret.Reveal()) || strings.Contains(l, p.invite) {
			t.Error("a secret in syslog")
		}
	}
}
