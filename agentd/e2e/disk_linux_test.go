package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleet.example/fleet/agentd/fakeplane"
	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// onSmallDisk puts a machine's data directory on a file system of its own.
func onSmallDisk(t *testing.T) *machine {
	t.Helper()
	if os.Getuid() != 0 {
		t.Skip("a small file system can only be mounted by root")
	}
	m := newMachine(t)
	small := m.root + "/small"
	if err := os.Mkdir(small, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Mount("tmpfs", small, "tmpfs", 0, "size=4m,mode=0700"); err != nil {
		t.Skipf("cannot mount a small file system: %v", err)
	}
	t.Cleanup(func() {
		m.kill()
		m.killShims()
		syscall.Unmount(small, syscall.MNT_DETACH)
	})
	if err := os.Symlink(m.data+"/v", small+"/current"); err != nil { // the programs stay outside
		t.Fatal(err)
	}
	m.data = small
	return m
}

// fill takes what room there is.
func (m *machine) fill() (free func()) {
	m.t.Helper()
	name := m.data + "/ballast"
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		m.t.Fatal(err)
	}
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	f.Close()
	return func() { os.Remove(name) }
}

func TestFullDiskIsABlockerAndHealsByItself(t *testing.T) { // R21, R29, R30
	m := onSmallDisk(t)
	p, doc := fakeplane.Start(t)
	m.install(doc)
	free := m.fill()
	m.start()
	p.Await(t, "the blocker", func(s seen) bool {
		if s.Body.Readiness != nil {
			for _, b := range s.Body.Readiness.Blockers {
				if b.Code == "credential_unwritable" {
					return true
				}
			}
		}
		return false
	})
	if !m.running() {
		t.Fatal("a full disk ended the agent")
	}
	b, err := os.ReadFile(m.data + "/credential")
	if err != nil || !bytes.Contains(b, []byte(doc.Secret)) {
		t.Fatal("the credential that works is gone", err)
	}
	for _, s := range p.Seen() {
		if s.Path == wire.PathRotate {
			t.Fatal("a digest was sent whose secret is not on disk")
		}
	}
	m.must("", "stop") // a person can stop it all the same
	m.ended()
	if err := os.Remove(m.data + "/latch"); err != nil {
		t.Fatal(err)
	}
	m.start()
	free()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	m.await("the blocker to go", func() bool {
		return len(m.status().Blockers) == 0 || !strings.Contains(fmt.Sprint(m.status().Blockers), "credential_unwritable")
	})
}

func TestFullDiskMakesABlockedSessionWaitNotLose(t *testing.T) { // R34
	m := onSmallDisk(t)
	p, doc := fakeplane.Start(t)
	m.install(doc)
	m.start()
	p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
	got := &hasher{}
	done := make(chan error, 1)
	go func() {
		_, exit, err := m.client().Run(ctx(t), wire.SessionRequest{Argv: []string{"seq", "1", "2000000"}}, agentclient.Attachment{Stdout: got})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("exit %+v", exit)
		}
		done <- err
	}()
	// The spool's limit is above the disk's size, so the disk is full first.
	m.await("the disk to be full", func() bool {
		var st syscall.Statfs_t
		return syscall.Statfs(m.data, &st) == nil && st.Bavail < 16
	})
	select {
	case err := <-done:
		t.Fatal("the session ended on a full disk", err)
	default:
	}
	if err := syscall.Mount("tmpfs", m.data, "tmpfs", syscall.MS_REMOUNT, "size=64m,mode=0700"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	var want bytes.Buffer
	for i := range 2_000_000 {
		fmt.Fprintln(&want, i+1)
	}
	if !bytes.Equal(got.b, want.Bytes()) {
		t.Fatalf("%d bytes of %d", len(got.b), want.Len())
	}
}

func TestAWriteToAFullDiskChangesNothing(t *testing.T) {
	m := onSmallDisk(t)
	_, doc := fakeplane.Start(t)
	m.install(doc)
	m.start()
	file := m.data + "/config"
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	free := m.fill()
	defer free()
	_, err := m.client().Write(ctx(t), file, agentclient.Put{}, strings.NewReader(strings.Repeat("new", 1<<20)))
	if f := fault.Of(err); err == nil || f.Code != wire.CodeDiskFull {
		t.Errorf("%v", err)
	}
	if got := read(t, file); got != "old" {
		t.Errorf("%.20q", got)
	}
	if l, _ := filepath.Glob(m.data + "/.fleet-tmp-*"); len(l) != 0 {
		t.Errorf("left: %v", l)
	}
}
