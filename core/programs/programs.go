// Package programs builds fleet's programs for tests that run them, and keeps
// what these say.
//
// It belongs to tests; no program imports it.
package programs

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
)

const commands = "fleet.example/fleet/cmd/"

// Main runs a package's tests with programs that build puts into a directory,
// whose path is in dir meanwhile. It returns the exit code for TestMain.
func Main(m *testing.M, dir *string, build func(dir string) error) int {
	d, err := os.MkdirTemp("", "f") // short: sockets may live below it
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer os.RemoveAll(d)
	if err := build(d); err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	*dir = d
	return m.Run()
}

// Build builds the programs of cmd with these names into dir, with what flags
// the build takes besides.
func Build(dir string, flags []string, names ...string) error {
	args := append([]string{"build", "-o", dir + string(filepath.Separator)}, flags...)
	for _, name := range names {
		args = append(args, commands+name)
	}
	cmd := exec.Command("go", args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("cannot build %v: %w: %s", names, err, out)
	}
	return nil
}

// Plugins builds the first-party plugins into dir and locks them, as a version
// directory of the agent has them.
func Plugins(dir string) error {
	const name = "fleet-plugins"
	if err := Build(dir, nil, name); err != nil {
		return err
	}
	if err := os.Symlink(name, filepath.Join(dir, "agentd-probes")); err != nil {
		return err
	}
	if out, err := exec.Command(filepath.Join(dir, name), "lock", dir).CombinedOutput(); err != nil {
		return fmt.Errorf("cannot lock plugins: %w: %s", err, out)
	}
	return nil
}

// Output keeps what a program says. It may be read while the program writes.
type Output struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (o *Output) Write(p []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(p)
}

func (o *Output) String() string {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}
