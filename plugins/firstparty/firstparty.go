// Package firstparty is the one binary behind the names of all of fleet's own
// plugins. They share the gRPC runtime, so one file with links costs a fraction
// of a file each. Every one of them is a plugin like any vendor's: it knows the
// SDK and nothing of the rest of fleet, but for proxyjump, which logs in as
// core/sshlogin says.
//
// Under its own name, fleet-plugins, the binary helps the build: it lists the
// plugins, makes the links and writes the lock. On a machine that enrolls by
// itself it registers the agent as a service.
package firstparty

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/probe/host"
	"fleet.example/fleet/plugins/probehost"
	"fleet.example/fleet/plugins/register"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/service/launchd"
	"fleet.example/fleet/plugins/service/plain"
	"fleet.example/fleet/plugins/service/systemd"
)

// BinaryName is the file that the links lead to.
const BinaryName = "fleet-plugins"

// ProbesName is the program that hosts probes on a machine. It shares the file
// with the plugins that it runs: a second one with the same gRPC in it would
// make the artifact half as large again.
const ProbesName = "agentd-probes"

// Plugins are all of fleet's own.
func Plugins(version string) []sdk.Plugin {
	return append(transports(version),
		sdk.Service(systemd.Describe(version), systemd.Manager{}),
		sdk.Service(launchd.Describe(version), launchd.Manager{}),
		sdk.Service(plain.Describe(version), plain.Manager{}),
		sdk.ProbePlugin(host.Describe(version), host.Probe{}),
	)
}

// Main is the binary's main: argv[0] says which plugin it is.
func Main(args []string, version string, stdout, stderr io.Writer) int {
	if len(args) == 0 {
		return 2
	}
	name := filepath.Base(args[0])
	if name == ProbesName {
		return probehost.Main(args, version, stdout, stderr)
	}
	if name == BinaryName && len(args) > 1 && args[1] == register.Verb {
		return register.Main(args[2:], version, stdout, stderr)
	}
	plugins := Plugins(version)
	for _, p := range plugins {
		if p.Description.FileName() == name {
			return p.Main(args)
		}
	}
	err := errors.New("usage: fleet-plugins ls | lock DIR | register … | --version")
	switch {
	case len(args) == 2 && args[1] == "ls":
		err = list(stdout, plugins)
	case len(args) == 2 && args[1] == "--version":
		_, err = fmt.Fprintf(stdout, "%s %s\n", BinaryName, version)
	case len(args) == 3 && args[1] == "lock":
		err = Lock(args[2], version, nil)
	}
	if err != nil {
		fmt.Fprintf(stderr, "fleet-plugins: %s\n", err)
		return 1
	}
	return 0
}

// list prints one description a line.
func list(w io.Writer, plugins []sdk.Plugin) error {
	e := json.NewEncoder(w)
	for _, p := range plugins {
		if err := e.Encode(p.Description); err != nil {
			return err
		}
	}
	return nil
}

// Lock makes the links to dir/fleet-plugins for every plugin that want accepts
// (nil: all), and writes dir/plugins.lock. The file may be one for another
// system: it is hashed, not run, and it is the same source as this program.
func Lock(dir, version string, want func(sdk.Description) bool) error {
	sum, err := hashFile(filepath.Join(dir, BinaryName))
	if err != nil {
		return fmt.Errorf("cannot hash the plugins: %w", err)
	}
	var l lock.Lock
	for _, p := range Plugins(version) {
		if want != nil && !want(p.Description) {
			continue
		}
		name := p.Description.FileName()
		if err := link(dir, name); err != nil {
			return fmt.Errorf("cannot link %s: %w", name, err)
		}
		l = l.With(lock.Entry{File: name, SHA256: sum, Description: p.Description})
	}
	return lock.Write(filepath.Join(dir, lock.FileName), l)
}

func link(dir, name string) error {
	path := filepath.Join(dir, name)
	if to, err := os.Readlink(path); err == nil && to == BinaryName {
		return nil
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return os.Symlink(BinaryName, path)
}

func hashFile(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
