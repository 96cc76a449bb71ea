package install

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// lockAs runs the lock script in a shell of its own and returns what it ended
// with.
func lockAs(t *testing.T, dir string) int {
	t.Helper()
	out, err := exec.Command("sh", "-c", lockScript, "sh", dir).CombinedOutput()
	if exit := (*exec.ExitError)(nil); errors.As(err, &exit) {
		return exit.ExitCode()
	}
	if err != nil || len(out) > 0 {
		t.Fatalf("the lock: %v, said %q", err, out)
	}
	return 0
}

func TestALockIsHeldWhileItsShellLives(t *testing.T) {
	dir := t.TempDir()
	shell := exec.Command("sh", "-c", "("+lockScript+"\n); echo $?; read -r end", "sh", dir)
	stdin, err := shell.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	stdout, err := shell.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := shell.Start(); err != nil {
		t.Fatal(err)
	}
	if said, err := bufio.NewReader(stdout).ReadString('\n'); said != "0\n" {
		t.Fatalf("the first lock: %q %v", said, err)
	}
	if code := lockAs(t, dir); code != 90 {
		t.Errorf("a second shell got %d while the first lives; want 90", code)
	}
	// The first ends, and stays a zombie until Wait: as under a process 1 that
	// reaps nothing.
	stdin.Close()
	if _, err := io.Copy(io.Discard, stdout); err != nil {
		t.Fatal(err)
	}
	zombie(t, shell.Process.Pid)
	if code := lockAs(t, dir); code != 0 {
		t.Errorf("a zombie's lock: %d; want 0", code)
	}
	if err := shell.Wait(); err != nil && !strings.Contains(err.Error(), "exit status") {
		t.Error(err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "install.lock.*")); len(left) > 0 {
		t.Errorf("files left: %q", left)
	}
}

func TestALockOfANumberGivenOutAgainIsNone(t *testing.T) {
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Skip("no /proc here: ", err)
	}
	for _, c := range []struct {
		name, line string
		want       int
	}{
		{"another process has the number", "1 " + strings.TrimSpace(string(boot)) + " 99999999999", 0},
		{"from before a reboot", "1 00000000-0000-0000-0000-000000000000 1", 0},
		{"torn", "", 0},
		{"of a release that wrote no start", "1 " + strings.TrimSpace(string(boot)), 90},
	} {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "install.lock"), []byte(c.line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if code := lockAs(t, dir); code != c.want {
			t.Errorf("%s: %d; want %d", c.name, code, c.want)
		}
	}
}

// zombie waits until the process has ended and nobody has waited for it.
func zombie(t *testing.T, pid int) {
	t.Helper()
	if _, err := os.Stat("/proc/self/stat"); err != nil {
		t.Skip("no /proc here: ", err)
	}
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
		if err != nil {
			t.Fatal(err)
		}
		if _, state, _ := strings.Cut(string(stat), ") "); strings.HasPrefix(state, "Z") {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("process %d did not end: %s", pid, stat)
		}
	}
}
