//go:build linux

package lab

import (
	"bytes"
	"context"
	"crypto/rand"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// baseDir holds one directory for each lab, named by its number. It is absent while there is no lab.
const baseDir = "/run/fleet-lab"

//go:embed teardown.sh
var teardownScript string

// Record is what stands on disk about one lab, for the janitor and for other processes that look at it.
type Record struct {
	ID         int        `json:"id"`
	Label      string     `json:"label"`
	Owner      int        `json:"owner"`
	OwnerStart uint64     `json:"owner_start"`
	Plane      string     `json:"plane"`
	KeyPath    string     `json:"key"`
	Hosts      []HostInfo `json:"hosts"`
}

// HostInfo is what a Record says about one host.
type HostInfo struct {
	Name     string    `json:"name"`
	Addr     string    `json:"addr"`
	Account  string    `json:"account"`
	Accounts []Account `json:"accounts"`
	KeyPath  string    `json:"key"`
	HostKeys []string  `json:"host_keys"`
	PID      int       `json:"pid"`
	Up       bool      `json:"up"`
	BootMS   int64     `json:"boot_ms"`
}

// Alive says whether the process that owns the lab still runs.
func (r Record) Alive() bool {
	start, err := startTime(r.Owner)
	return err == nil && start == r.OwnerStart
}

// List returns the labs on this machine, by number, dead ones included.
func List() ([]Record, error) {
	entries, err := os.ReadDir(baseDir)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list labs: %w", err)
	}
	var out []Record
	for _, e := range entries {
		if _, err := strconv.Atoi(e.Name()); err != nil {
			continue
		}
		if r, err := readRecord(filepath.Join(baseDir, e.Name())); err == nil {
			out = append(out, r)
		}
	}
	return out, nil
}

func readRecord(dir string) (Record, error) {
	var r Record
	data, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if err != nil {
		return r, err
	}
	return r, json.Unmarshal(data, &r)
}

func writeRecord(dir string, r Record) error {
	data, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	tmp := filepath.Join(dir, "lab.json.tmp")
	if err := os.WriteFile(tmp, append(data, '\n'), 0o600); err != nil {
		return err
	}
	return os.Rename(tmp, filepath.Join(dir, "lab.json"))
}

// claim cleans up after dead labs, takes a free number and makes its directory. It holds the base directory's lock
// meanwhile, so that two labs that start at once get two numbers.
func claim(ctx context.Context, log Logger, label string) (id int, token string, err error) {
	base, err := lockBase(ctx)
	if err != nil {
		return 0, "", err
	}
	defer base.Close()
	return claimLocked(ctx, log, label)
}

// lockBase returns the locked base directory, making it if need be.
func lockBase(ctx context.Context) (*os.File, error) {
	var base *os.File
	err := Poll(ctx, func() error {
		if err := os.Mkdir(baseDir, 0o711); err != nil && !errors.Is(err, os.ErrExist) {
			return err
		}
		f, err := os.Open(baseDir)
		if err != nil {
			return err
		}
		if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			f.Close()
			return fmt.Errorf("another lab is starting: %w", err)
		}
		held, err := f.Stat()
		if now, statErr := os.Stat(baseDir); err != nil || statErr != nil || !os.SameFile(held, now) {
			f.Close()
			return fmt.Errorf("%s went away under the lock", baseDir)
		}
		base = f
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("cannot lock %s: %w", baseDir, err)
	}
	return base, nil
}

func claimLocked(ctx context.Context, log Logger, label string) (int, string, error) {
	entries, err := os.ReadDir(baseDir)
	if err != nil {
		return 0, "", err
	}
	taken := map[int]bool{}
	for _, e := range entries {
		dir := filepath.Join(baseDir, e.Name())
		id, err := strconv.Atoi(e.Name())
		if err != nil {
			os.RemoveAll(dir) // half a claim: whoever makes these holds the lock
			continue
		}
		if r, err := readRecord(dir); err == nil && r.Alive() {
			taken[id] = true
			continue
		}
		token, err := os.ReadFile(filepath.Join(dir, "token"))
		if err != nil {
			continue // its teardown has just ended
		}
		log.Logf("lab %d: its owner is dead, cleaning up", id)
		if err := teardown(ctx, dir, string(token)); err != nil {
			log.Logf("lab %d: %v", id, err)
			taken[id] = true
		}
	}
	inUse, err := localSubnets()
	if err != nil {
		return 0, "", err
	}
	for id := range 256 {
		if taken[id] || inUse[id] {
			continue
		}
		token, err := makeLabDir(id, label)
		if errors.Is(err, os.ErrExist) {
			continue
		}
		return id, token, err
	}
	return 0, "", errors.New("cannot start a lab: all 256 subnets are in use")
}

func makeLabDir(id int, label string) (string, error) {
	start, err := startTime(os.Getpid())
	if err != nil {
		return "", err
	}
	dir := filepath.Join(baseDir, strconv.Itoa(id))
	tmp := dir + ".new"
	if err := os.Mkdir(tmp, 0o711); err != nil {
		return "", err
	}
	if err := os.Mkdir(tmp+"/ns", 0o711); err != nil {
		return "", err
	}
	if err := os.WriteFile(tmp+"/teardown.sh", []byte(teardownScript), 0o600); err != nil {
		return "", err
	}
	token := rand.Text()
	if err := os.WriteFile(tmp+"/token", []byte(token), 0o600); err != nil {
		return "", err
	}
	r := Record{ID: id, Label: label, Owner: os.Getpid(), OwnerStart: start, Plane: planeAddr(id)}
	if err := writeRecord(tmp, r); err != nil {
		return "", err
	}
	return token, os.Rename(tmp, dir)
}

// localSubnets returns the lab numbers whose subnet an interface of this machine already touches.
func localSubnets() (map[int]bool, error) {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil, fmt.Errorf("cannot list addresses: %w", err)
	}
	used := map[int]bool{}
	for _, a := range addrs {
		ipnet, ok := a.(*net.IPNet)
		if !ok || ipnet.IP.To4() == nil {
			continue
		}
		for id := range 256 {
			if ipnet.Contains(net.IPv4(10, 97, byte(id), 1)) || ipnet.Contains(net.IPv4(10, 97, byte(id), 129)) {
				used[id] = true
			}
		}
	}
	return used, nil
}

// teardown runs the script and returns what it could not do.
func teardown(ctx context.Context, dir, token string) error {
	ctx, cancel := context.WithTimeout(ctx, 90*time.Second)
	defer cancel()
	out, err := exec.CommandContext(ctx, "sh", "-c", teardownScript, "teardown", dir, token).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot take lab down: %w: %s", err, bytes.TrimSpace(out))
	}
	if len(bytes.TrimSpace(out)) > 0 {
		return fmt.Errorf("cannot take lab down: %s", bytes.TrimSpace(out))
	}
	return nil
}

// startTime returns field 22 of /proc/PID/stat (proc(5)): with the pid it names a process for good. A zombie
// counts as gone.
func startTime(pid int) (uint64, error) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	fields := strings.Fields(string(data[bytes.LastIndexByte(data, ')')+1:]))
	if len(fields) < 20 {
		return 0, fmt.Errorf("cannot read /proc/%d/stat", pid)
	}
	if fields[0] == "Z" || fields[0] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(fields[19], 10, 64)
}

// Down ends a lab of another process: it asks the owner to, or cleans up after one that is dead, and returns when
// the lab is gone.
func Down(ctx context.Context, r Record) error {
	dir := filepath.Join(baseDir, strconv.Itoa(r.ID))
	token, err := os.ReadFile(filepath.Join(dir, "token"))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("cannot take lab %d down: %w", r.ID, err)
	}
	if !r.Alive() {
		return teardown(ctx, dir, string(token))
	}
	if err := unix.Kill(r.Owner, unix.SIGTERM); err != nil && !errors.Is(err, unix.ESRCH) {
		return fmt.Errorf("cannot take lab %d down: %w", r.ID, err)
	}
	return Poll(ctx, func() error {
		now, err := os.ReadFile(filepath.Join(dir, "token"))
		if err != nil || string(now) != string(token) {
			return nil
		}
		return fmt.Errorf("cannot take lab %d down: process %d still owns it", r.ID, r.Owner)
	})
}
