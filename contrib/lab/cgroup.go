//go:build linux

package lab

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// cgroupMounts returns where the cgroup hierarchies of this machine are mounted: one for cgroup v2, one a
// controller for v1.
func cgroupMounts() ([]string, error) {
	data, err := os.ReadFile("/proc/mounts")
	if err != nil {
		return nil, fmt.Errorf("cannot list cgroups: %w", err)
	}
	var out []string
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 2 && (f[2] == "cgroup" || f[2] == "cgroup2") {
			out = append(out, f[1])
		}
	}
	return out, nil
}

// makeCgroups makes the host's cgroup in every hierarchy and returns their directories. Hosts that share one kill
// each other's processes.
func makeCgroups(lab, host string) ([]string, error) {
	mounts, err := cgroupMounts()
	if err != nil {
		return nil, err
	}
	var out []string
	for _, mount := range mounts {
		parent := filepath.Join(mount, lab)
		dir := filepath.Join(parent, host)
		for _, d := range []string{parent, dir} {
			if err := os.Mkdir(d, 0o755); err != nil && !errors.Is(err, fs.ErrExist) {
				return nil, fmt.Errorf("cannot make cgroup: %w", err)
			}
			if err := inheritCpuset(d); err != nil {
				return nil, fmt.Errorf("cannot make cgroup: %w", err)
			}
		}
		out = append(out, dir)
	}
	return out, nil
}

// inheritCpuset fills in what a v1 cpuset needs before it takes a process.
func inheritCpuset(dir string) error {
	for _, name := range []string{"cpuset.cpus", "cpuset.mems"} {
		have, err := os.ReadFile(filepath.Join(dir, name))
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil {
			return err
		}
		if strings.TrimSpace(string(have)) != "" {
			continue
		}
		parent, err := os.ReadFile(filepath.Join(filepath.Dir(dir), name))
		if errors.Is(err, fs.ErrNotExist) || strings.TrimSpace(string(parent)) == "" {
			continue // cgroup v2: empty means inherited
		}
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, name), parent, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// freeze stops or continues all processes of the host at once, in whichever hierarchy can.
func freeze(cgroups []string, frozen bool) error {
	v1, v2 := "THAWED", "0"
	if frozen {
		v1, v2 = "FROZEN", "1"
	}
	for _, dir := range cgroups {
		if err := writeExisting(filepath.Join(dir, "cgroup.freeze"), v2); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, dir := range cgroups {
		if err := writeExisting(filepath.Join(dir, "freezer.state"), v1); !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	return errors.New("cannot freeze: no freezer in any cgroup hierarchy")
}

func writeExisting(path, value string) error {
	f, err := os.OpenFile(path, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(value)
	return errors.Join(err, f.Close())
}
