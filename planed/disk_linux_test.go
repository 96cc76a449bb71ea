package planed_test

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// TestAFullDiskUnderTheStore // R19
func TestAFullDiskUnderTheStore(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	mount := t.TempDir()
	if err := syscall.Mount("tmpfs", mount, "tmpfs", 0, "size=2m"); err != nil {
		t.Skipf("cannot mount a tmpfs here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(mount, syscall.MNT_DETACH) })
	p := initPlane(t, filepath.Join(mount, "data"))
	p.start()
	ca, err := os.ReadFile(filepath.Join(p.dir, "root.pem"))
	if err != nil {
		t.Fatal(err)
	}
	p.roots = string(ca)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	b.mustCheck(running)
	if err := os.WriteFile(filepath.Join(mount, "ballast"), make([]byte, 4<<20), 0o600); err == nil {
		t.Fatal("the disk is not full")
	}
	// Fill what the store itself still has free.
	refused := 0
	for range 3000 {
		_, err := owner.Admit(t.Context(), wire.AdmitRequest{InstallationDigest: secret.New("").Digest().Hex(), CredentialDigest: secret.New("").Digest().Hex()})
		if err != nil {
			if f := fault.Of(err); f.Exit != fault.Unreachable || !strings.Contains(f.Msg, "store cannot write") {
				t.Fatal(f.Msg)
			}
			if refused++; refused == 3 {
				break
			}
		}
	}
	if refused == 0 {
		t.Fatal("the store never was full")
	}
	for range 5 {
		b.mustCheck(running) // from memory
	}
	m, err := owner.Machine(t.Context(), b.id)
	if err != nil || m.Presence != wire.Present {
		t.Fatal(m, err)
	}
	if out, _, exit := planed(t, "status", "--data", p.dir); exit != 0 || !strings.Contains(out, "store_error") || !strings.Contains(out, "no space left") {
		t.Error(exit, out)
	}
	before, err := owner.Machines(t.Context(), wire.MachineFilter{})
	if err != nil {
		t.Fatal(err)
	}
	p.kill()
	os.Remove(filepath.Join(mount, "ballast"))
	if out, errOut, exit := planed(t, "check", "--data", p.dir); exit != 0 {
		t.Fatal(out, errOut)
	}
	p.start()
	after, err := owner.Machines(t.Context(), wire.MachineFilter{})
	if err != nil || len(after.Machines) != len(before.Machines) {
		t.Fatal(len(before.Machines), len(after.Machines), err)
	}
	b.mustCheck(running)
	if a := p.newBox().admit(owner, ""); a.Status != wire.AdmitNew {
		t.Fatal(a)
	}
}
