package planed_test

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
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

// TestAShortenedAuditLogIsNoticed: over restarts and a crash the chain goes on;
// when its end is cut off in the store's file, or an entry in the middle is
// replaced, the plane refuses to serve beside a copy that knows better, its
// check names the place, and a person who saw the later head is told.
func TestAShortenedAuditLogIsNoticed(t *testing.T) {
	file := filepath.Join(t.TempDir(), "audit.jsonl")
	p := newPlane(t, "--audit-sink", file)
	owner := p.owner()
	for i, end := range []func(){func() { p.term() }, p.kill, func() { p.term() }} {
		b := p.newBox()
		b.admit(owner, fmt.Sprintf("box-%d", i))
		head, err := owner.AuditHead(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		p.until("the copy is whole", func() bool {
			out, err := os.ReadFile(file)
			all := copied(t, string(out))
			return err == nil && len(all) > 0 && all[len(all)-1].Seq >= head.Seq
		})
		end()
		p.start()
	}
	all, err := owner.Audit(t.Context(), planeclient.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	head := audit.Genesis
	for _, e := range all.Entries {
		if head, err = audit.Next(head, e); err != nil {
			t.Fatal(err)
		}
	}
	if head != all.Head || head.Seq < 5 {
		t.Fatalf("the chain of %d entries ends at %+v", len(all.Entries), head)
	}
	p.term()
	whole, err := os.ReadFile(filepath.Join(p.dir, "plane.db"))
	if err != nil {
		t.Fatal(err)
	}
	for name, harm := range map[string]func(b *bbolt.Bucket) error{
		"its end cut off": func(b *bbolt.Bucket) error { k, _ := b.Cursor().Last(); return b.Delete(k) },
		"an entry at its end replaced": func(b *bbolt.Bucket) error {
			k, v := b.Cursor().Last()
			var e wire.AuditEntry
			if err := json.Unmarshal(v, &e); err != nil {
				return err
			}
			before := wire.AuditHead{Seq: e.Seq - 1, Hash: e.Prev}
			v, err := json.Marshal(audit.Link(before, audit.Event{At: e.At.Time, Actor: "person:eve", Action: e.Action, Subject: e.Subject}))
			if err != nil {
				return err
			}
			return b.Put(k, v)
		},
	} {
		edit(t, p.dir, func(tx *bbolt.Tx) error { return harm(tx.Bucket([]byte("audit"))) })
		if _, errOut, exit := planed(t, "serve", "--data", p.dir, "--listen", "127.0.0.1:0", "--audit-sink", file); exit != fault.Refused || !strings.Contains(errOut, "audit log in the store") {
			t.Errorf("%s: exit %d: %s", name, exit, errOut)
		}
		if err := os.WriteFile(filepath.Join(p.dir, "plane.db"), whole, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	// One in the middle: the store's own check sees it.
	edit(t, p.dir, func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("audit"))
		k, _ := b.Cursor().First()
		c := b.Cursor()
		c.Seek(k)
		k, _ = c.Next()
		return b.Delete(k)
	})
	if out, errOut, exit := planed(t, "check", "--data", p.dir); exit == 0 || !strings.Contains(out+errOut, "audit") {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
	if err := os.WriteFile(filepath.Join(p.dir, "plane.db"), whole, 0o600); err != nil {
		t.Fatal(err)
	}
	p.start() // whole again, it serves
	if now, err := owner.AuditHead(t.Context()); err != nil || now.Seq < head.Seq {
		t.Errorf("%+v %v", now, err)
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
	script := "#!/bin/sh\nexec unshare -m sh -c 'mount --bind " + dir + " /run && { [ ! -S /dev/log ] || mount --bind " + dir + "/syslog /dev/log; } && exec \"$@\"' sh " + binary() + ` "$@"` + "\n"
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
