//go:build linux

package lab_test

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
)

func itoa(n int) string { return strconv.Itoa(n) }

// traces lists what is left of one lab: mounts, namespaces, cgroups, links, processes, files.
func traces(t *testing.T, id int) []string {
	t.Helper()
	var out []string
	dir := fmt.Sprintf("/run/fleet-lab/%d", id)
	name := fmt.Sprintf("fleetlab-%d", id)
	if _, err := os.Lstat(dir); err == nil {
		out = append(out, "directory "+dir)
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, dir+"/") || strings.Contains(line, name+"-") {
			out = append(out, "mount "+strings.TrimSpace(line))
		}
	}
	_ = filepath.WalkDir("/sys/fs/cgroup", func(path string, d fs.DirEntry, err error) error {
		if err == nil && d.IsDir() && d.Name() == name {
			out = append(out, "cgroup "+path)
		}
		return nil
	})
	if _, err := net.InterfaceByName(name); err == nil {
		out = append(out, "link "+name)
	}
	left, _ := filepath.Glob("/run/systemd/nspawn/*/" + name + "-*")
	for _, path := range left {
		out = append(out, "file "+path)
	}
	procs, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, path := range procs {
		pid, _ := strconv.Atoi(filepath.Base(filepath.Dir(path)))
		cmdline, err := os.ReadFile(path)
		if err == nil && (strings.Contains(string(cmdline), dir+"/") || strings.Contains(string(cmdline), dir+"\x00")) && !gone(pid) {
			out = append(out, "process "+itoa(pid)+" "+strings.ReplaceAll(string(cmdline), "\x00", " "))
		}
	}
	return out
}

// machineState is what a lab must give back as it found it.
func machineState(t *testing.T) string {
	t.Helper()
	var out strings.Builder
	for _, argv := range [][]string{{"ip", "netns"}, {"ip", "-br", "link"}, {"ip", "route"}, {"ls", "/run"}, {"ls", "/run/systemd"}} {
		got, err := exec.Command(argv[0], argv[1:]...).CombinedOutput()
		if err != nil {
			t.Fatalf("%v: %v %s", argv, err, got)
		}
		for line := range strings.Lines(string(got)) {
			// Other tests' labs may come and go meanwhile.
			if !strings.Contains(line, "fleetlab-") && !strings.HasPrefix(line, "10.97.") && line != "fleet-lab\n" && line != "nspawn\n" {
				out.WriteString(strings.TrimSpace(line) + "\n")
			}
		}
	}
	mounts, err := os.ReadFile("/proc/self/mountinfo")
	must(t, err)
	for line := range strings.Lines(string(mounts)) {
		if !strings.Contains(line, "/run/fleet-lab/") {
			out.WriteString(line)
		}
	}
	return out.String()
}

// listeners are the TCP sockets that listen in the root namespace over IPv4, as address:port.
func listeners(t *testing.T) map[string]bool {
	t.Helper()
	data, err := os.ReadFile("/proc/net/tcp")
	must(t, err)
	out := map[string]bool{}
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) < 4 || f[3] != "0A" {
			continue
		}
		addr, port, _ := strings.Cut(f[1], ":")
		raw, err := hex.DecodeString(addr)
		must(t, err)
		ip := make(net.IP, 4)
		binary.LittleEndian.PutUint32(ip, binary.BigEndian.Uint32(raw))
		n, err := strconv.ParseUint(port, 16, 16)
		must(t, err)
		out[fmt.Sprintf("%s:%d", ip, n)] = true
	}
	return out
}

func TestCloseLeavesNothing(t *testing.T) {
	lab.Need(t)
	before := machineState(t)
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one", Accounts: []lab.Account{{Name: "odd", Home: "/srv/a home"}}})
	newHost(t, l, lab.HostSpec{Name: "two", Hidden: true, From: []string{"one"}})
	mustSSH(t, l, h, "systemd-run --user -q sleep 3600")
	must(t, h.Suspend()) // a frozen process is the hardest to kill
	if len(traces(t, l.ID())) < 5 {
		t.Fatalf("the test does not see the lab: %q", traces(t, l.ID()))
	}
	began := time.Now()
	must(t, l.Close())
	t.Logf("close took %v", time.Since(began).Round(time.Millisecond))
	if left := traces(t, l.ID()); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	if after := machineState(t); after != before {
		t.Errorf("the machine is not as it was; before:\n%s\nafter:\n%s", before, after)
	}
	must(t, l.Close())
	if _, err := l.Host(bound(t, time.Second), lab.HostSpec{Name: "late"}); err == nil {
		t.Error("a closed lab made a host")
	}
}

// ownerEnv makes the test binary a lab's owner that waits to be killed, and names the file it writes when it is up.
const ownerEnv = "LAB_TEST_OWNER"

func TestOwner(t *testing.T) {
	up := os.Getenv(ownerEnv)
	if up == "" {
		t.Skip("the other half of tests that kill an owner")
	}
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "orphan"})
	must(t, os.WriteFile(up+".tmp", fmt.Appendf(nil, "%d %d", l.ID(), h.PID()), 0o600))
	must(t, os.Rename(up+".tmp", up))
	<-t.Context().Done()
}

// killedOwner brings up a lab in another process, runs a step, kills that process, and returns the lab's number and
// the host's PID 1.
func killedOwner(t *testing.T, before func(owner int)) (id, init int) {
	t.Helper()
	lab.Need(t)
	up := filepath.Join(t.TempDir(), "up")
	owner := exec.Command(os.Args[0], "-test.run=^TestOwner$", "-test.timeout=120s")
	owner.Env = append(os.Environ(), ownerEnv+"="+up)
	must(t, owner.Start())
	eventually(t, func() error {
		data, err := os.ReadFile(up)
		if err == nil {
			_, err = fmt.Sscan(string(data), &id, &init)
		}
		return err
	})
	before(owner.Process.Pid)
	must(t, owner.Process.Kill())
	_ = owner.Wait()
	return id, init
}

func TestWatcherCleansUpWhenTheOwnerIsKilled(t *testing.T) {
	id, init := killedOwner(t, func(int) {})
	began := time.Now()
	eventually(t, func() error {
		if left := traces(t, id); len(left) > 0 {
			return fmt.Errorf("left behind:\n%s", strings.Join(left, "\n"))
		}
		if !gone(init) {
			return fmt.Errorf("process %d runs on", init)
		}
		return nil
	})
	t.Logf("gone %v after the kill", time.Since(began).Round(time.Millisecond))
}

func TestNextLabCleansUpWhenTheWatcherIsKilledToo(t *testing.T) {
	id, init := killedOwner(t, func(owner int) {
		killed := false
		children, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", owner))
		for _, path := range children {
			data, err := os.ReadFile(path)
			must(t, err)
			for _, pid := range strings.Fields(string(data)) {
				cmdline, _ := os.ReadFile("/proc/" + pid + "/cmdline")
				if strings.Contains(string(cmdline), "fleet-lab-watcher") {
					n, _ := strconv.Atoi(pid)
					p, err := os.FindProcess(n)
					must(t, err)
					must(t, p.Kill())
					killed = true
				}
			}
		}
		if !killed {
			t.Fatal("the owner has no watcher")
		}
	})
	newLab(t)
	if !gone(init) {
		t.Error("the dead owner's host runs on")
	}
	labs, err := lab.List()
	must(t, err)
	for _, r := range labs {
		if r.ID == id && !r.Alive() {
			t.Error("the dead owner's lab is still there")
		}
	}
}

func TestTwoLabsAtOnce(t *testing.T) {
	a := newLab(t)
	b := newLab(t)
	if a.ID() == b.ID() {
		t.Fatal("two labs have one number")
	}
	ha := newHost(t, a, lab.HostSpec{Name: "same"})
	hb := newHost(t, b, lab.HostSpec{Name: "same"})
	must(t, a.Close())
	mustSSH(t, b, hb, "true")
	if left := traces(t, a.ID()); len(left) > 0 {
		t.Errorf("left behind:\n%s", strings.Join(left, "\n"))
	}
	if ha.Addr() == hb.Addr() {
		t.Error("two hosts have one address")
	}
}

func TestRequiredLabFails(t *testing.T) {
	if lab.Available() == nil {
		t.Log("the lab can run here; Need has nothing to say")
	}
	rec := &recorder{}
	lab.Need(rec)
	if (lab.Available() == nil) != (rec.said == "") {
		t.Errorf("Need said %q", rec.said)
	}
}

type recorder struct{ said string }

func (r *recorder) Helper()                      {}
func (r *recorder) Skipf(f string, args ...any)  { r.said = fmt.Sprintf(f, args...) }
func (r *recorder) Fatalf(f string, args ...any) { r.said = fmt.Sprintf(f, args...) }
