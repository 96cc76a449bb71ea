// Package locate finds an installation on the machine that it runs on: it reads
// the facts that core/place computes from, and the service record. It knows
// nothing of what is in the directories.
package locate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

// Local reads the facts of this machine for a user-scope installation.
func Local(a account.Account, getenv func(string) string) place.Facts {
	f := place.Facts{Scope: place.User, Account: a.Name, UID: a.UID, Home: a.Home, DataHome: getenv("XDG_DATA_HOME"), MachineID: machineID()}
	if st, err := os.Lstat(fmt.Sprintf("/run/user/%d", a.UID)); err == nil && st.IsDir() {
		sys, ok := st.Sys().(*syscall.Stat_t)
		f.RunUser = ok && int(sys.Uid) == a.UID
	}
	return f
}

// ioregTimeout is generous: without the id the data directory is another one.
const ioregTimeout = 30 * time.Second

func machineID() string {
	if runtime.GOOS == "darwin" {
		ctx, cancel := context.WithTimeout(context.Background(), ioregTimeout)
		defer cancel()
		out, err := exec.CommandContext(ctx, "ioreg", "-rd1", "-c", "IOPlatformExpertDevice").Output()
		if _, rest, ok := strings.Cut(string(out), `"IOPlatformUUID" = "`); err == nil && ok {
			id, _, _ := strings.Cut(rest, `"`)
			return id
		}
		return ""
	}
	for _, p := range []string{"/etc/machine-id", "/var/lib/dbus/machine-id"} {
		if b, err := os.ReadFile(p); err == nil && len(strings.TrimSpace(string(b))) > 0 {
			return string(b)
		}
	}
	return ""
}

// Find returns the directories of the installation that commands without flags
// mean: the account's own in user scope, else its one in system scope. It
// reads the disk.
func Find(a account.Account, getenv func(string) string, data, run string) (place.Dirs, error) {
	facts := Local(a, getenv)
	if data == "" {
		d, err := place.Resolve(facts)
		if err != nil {
			return d, err
		}
		sys, serr := place.Resolve(place.Facts{Scope: place.System, Account: a.Name, UID: a.UID})
		if _, err := os.Stat(d.Data); errors.Is(err, fs.ErrNotExist) && serr == nil {
			if _, err := os.Stat(sys.Data); err == nil {
				d = sys
			}
		}
		data = d.Data
	}
	data, err := filepath.Abs(data)
	if err != nil {
		return place.Dirs{}, err
	}
	if run == "" {
		rec, err := ReadService(data)
		switch {
		case err == nil && rec.RuntimeDir != "":
			run = rec.RuntimeDir
		case err == nil || errors.Is(err, fs.ErrNotExist):
			run = guessRuntime(facts, data)
		default:
			return place.Dirs{}, err
		}
	}
	return place.Dirs{Data: data, Runtime: run}, nil
}

// guessRuntime is the runtime directory of a data directory without a service record.
func guessRuntime(f place.Facts, data string) string {
	for _, scope := range []string{place.User, place.System} {
		f.Scope = scope
		if d, err := place.Resolve(f); err == nil && d.Data == data {
			return d.Runtime
		}
	}
	return filepath.Join(data, "run")
}

// ReadService reads DATA/service.json.
func ReadService(data string) (*wire.ServiceRecord, error) {
	b, err := os.ReadFile(filepath.Join(data, place.ServiceFile))
	if err != nil {
		return nil, err
	}
	var r wire.ServiceRecord
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", place.ServiceFile, err)
	}
	if r.Schema != wire.SchemaService {
		return nil, fmt.Errorf("cannot read %s: its schema is %q, this program knows %s", place.ServiceFile, r.Schema, wire.SchemaService)
	}
	return &r, nil
}

// Prepare makes the runtime directory if it is not there, and refuses one that
// is a symbolic link, somebody else's, open to others, or too long for sockets.
func Prepare(run string) error {
	if len(run) > place.MaxRuntimeDir {
		return fmt.Errorf("runtime directory %s is %d bytes long, sockets in it allow %d", run, len(run), place.MaxRuntimeDir)
	}
	if err := os.MkdirAll(run, 0o700); err != nil {
		return fmt.Errorf("cannot make runtime directory: %w", err)
	}
	return CheckPrivate(run)
}

// CheckPrivate refuses a directory that is a symbolic link, somebody else's or
// open to others.
func CheckPrivate(dir string) error {
	st, err := os.Lstat(dir)
	if err != nil {
		return err
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	switch {
	case st.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link", dir)
	case !st.IsDir():
		return fmt.Errorf("%s is not a directory", dir)
	case !ok || int(sys.Uid) != os.Getuid():
		return fmt.Errorf("%s belongs to another account", dir)
	case st.Mode().Perm()&0o077 != 0:
		return fmt.Errorf("%s has mode %04o: %w", dir, st.Mode().Perm(), durable.ErrNotPrivate)
	}
	return nil
}
