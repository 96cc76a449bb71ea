// Package wallclock builds the project's programs with a wall clock that a test
// sets while they run, as a person or a time daemon would set a machine's. The
// programs are the real ones, statically linked as always; what differs is the
// standard library's time.Now, to which an offset is added that lies in a file
// mapped into memory. Timers, and what is measured by the monotonic clock, go on
// undisturbed, as they do on a machine whose clock is set; TLS, the files'
// contents and everything else that asks for the time sees the one that was set.
//
// Preloaded libraries that do the like never reach a program that asks the
// kernel by itself, and a time namespace moves every clock but the wall's.
package wallclock

import (
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// variable names the file with the offset. A program without it keeps time.
const variable = "FLEET_TEST_WALLCLOCK"

// overlay is added to the standard library's package time.
const overlay = `package time

import (
	"syscall"
	"unsafe"
)

var wallOffset = mapWallOffset()

func mapWallOffset() *int64 {
	none := new(int64)
	name, ok := syscall.Getenv("` + variable + `")
	if !ok {
		return none
	}
	fd, err := syscall.Open(name, syscall.O_RDONLY|syscall.O_CLOEXEC, 0)
	if err != nil {
		panic("cannot open the wall clock: " + err.Error())
	}
	b, err := syscall.Mmap(fd, 0, 8, syscall.PROT_READ, syscall.MAP_SHARED)
	if err != nil {
		panic("cannot map the wall clock: " + err.Error())
	}
	syscall.Close(fd)
	return (*int64)(unsafe.Pointer(&b[0]))
}
`

// Build builds commands of this module into dir.
func Build(ctx context.Context, dir string, names ...string) error {
	out, err := exec.CommandContext(ctx, "go", "env", "GOROOT").Output()
	if err != nil {
		return err
	}
	src := filepath.Join(strings.TrimSpace(string(out)), "src", "time")
	b, err := os.ReadFile(filepath.Join(src, "time.go"))
	if err != nil {
		return err
	}
	const before, after = "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n", "func Now() Time {\n\tsec, nsec, mono := runtimeNow()\n\tsec += *wallOffset\n"
	patched := strings.Replace(string(b), before, after, 1)
	if patched == string(b) {
		return errors.New("time.Now of this Go looks otherwise than expected")
	}
	patchedFile, added, list := filepath.Join(dir, "time.go.txt"), filepath.Join(dir, "wall.go.txt"), filepath.Join(dir, "overlay.json")
	replace, err := json.Marshal(map[string]map[string]string{"Replace": {
		filepath.Join(src, "time.go"):       patchedFile,
		filepath.Join(src, "wall_fleet.go"): added,
	}})
	if err != nil {
		return err
	}
	for file, content := range map[string]string{patchedFile: patched, added: overlay, list: string(replace)} {
		if err := os.WriteFile(file, []byte(content), 0o600); err != nil {
			return err
		}
	}
	for _, name := range names {
		cmd := exec.CommandContext(ctx, "go", "build", "-overlay", list, "-o", filepath.Join(dir, name), "fleet.example/fleet/cmd/"+name)
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot build %s: %w: %s", name, err, out)
		}
	}
	return nil
}

// Clock is one machine's wall clock.
type Clock struct{ file string }

// New makes a clock that is right, kept in dir.
func New(dir string) (*Clock, error) {
	c := &Clock{file: filepath.Join(dir, "wallclock")}
	return c, c.Set(0)
}

// Set sets the clock ahead of the true time by d, in whole seconds; programs
// that run see it at once.
func (c *Clock) Set(d time.Duration) error {
	f, err := os.OpenFile(c.file, os.O_WRONLY|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	var b [8]byte
	binary.NativeEndian.PutUint64(b[:], uint64(int64(d/time.Second)))
	_, err = f.WriteAt(b[:], 0) // one page of a shared mapping: never torn
	return errors.Join(err, f.Close())
}

// Env is the environment entry for the programs of a machine with this clock.
func (c *Clock) Env() string { return variable + "=" + c.file }
