//go:build linux

package lab

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// findInit notes the host's PID 1 once nspawn has made it: the child that is number 1 in its own PID namespace.
func (h *Host) findInit(b *boot, nspawn int, gone <-chan struct{}) {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if pid, init := initChild(nspawn); init != nil {
			h.mu.Lock()
			b.pid, b.init = pid, init
			b.n++
			h.mu.Unlock()
			if err := h.note(); err != nil {
				h.lab.log.Logf("lab %d: %v", h.lab.id, err)
			}
			return
		}
		select {
		case <-gone:
			return
		case <-tick.C:
		}
	}
}

// initChild returns the child of parent that is a PID 1, and its pidfd; see NSpid in proc(5).
func initChild(parent int) (int, *os.File) {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", parent, parent))
	if err != nil {
		return 0, nil
	}
	for _, field := range strings.Fields(string(data)) {
		pid, err := strconv.Atoi(field)
		if err != nil {
			continue
		}
		fd, err := unix.PidfdOpen(pid, 0)
		if err != nil {
			continue
		}
		init := os.NewFile(uintptr(fd), "pidfd")
		if isInit(pid) {
			return pid, init
		}
		init.Close()
	}
	return 0, nil
}

func isInit(pid int) bool {
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return false
	}
	for line := range strings.Lines(string(data)) {
		if rest, ok := strings.CutPrefix(line, "NSpid:"); ok {
			f := strings.Fields(rest)
			return len(f) > 1 && f[len(f)-1] == "1"
		}
	}
	return false
}

// ready waits for a boot later than the given one to let accounts log in. It gives up at once when the host is off.
func (h *Host) ready(ctx context.Context, boots int) error {
	h.mu.Lock()
	b := h.boot
	h.mu.Unlock()
	if b == nil {
		return fmt.Errorf("cannot reach host %s: it is off", h.spec.Name)
	}
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := h.answers(ctx, boots)
		if err == nil {
			return nil
		}
		select {
		case <-b.done:
			return fmt.Errorf("cannot reach host %s: it went off (%v)\n%s", h.spec.Name, b.err, h.consoleTail())
		case <-ctx.Done():
			return fmt.Errorf("cannot reach host %s: %w (%v)\n%s", h.spec.Name, err, context.Cause(ctx), h.consoleTail())
		case <-tick.C:
		}
	}
}

// answers says why one cannot log in yet.
func (h *Host) answers(ctx context.Context, boots int) error {
	h.mu.Lock()
	pid, n := h.boot.pid, h.boot.n
	h.mu.Unlock()
	if pid == 0 || n <= boots {
		return errors.New("it has not started")
	}
	// pam_nologin(8). Before systemd makes /run its own, the file is absent as well, hence the bus.
	if _, err := os.Lstat(fmt.Sprintf("/proc/%d/root/run/dbus/system_bus_socket", pid)); err != nil && !h.spec.NoSystemd {
		return errors.New("it has no message bus yet")
	}
	if _, err := os.Lstat(fmt.Sprintf("/proc/%d/root/run/nologin", pid)); !errors.Is(err, fs.ErrNotExist) {
		return errors.New("/run/nologin is there")
	}
	ports, err := listeningPorts(pid, h.Addr())
	if err != nil {
		return err
	}
	for _, s := range h.spec.Also {
		if !slices.Contains(ports, s.Port) {
			return fmt.Errorf("nothing listens on port %d of %s", s.Port, h.Addr())
		}
		ports = slices.DeleteFunc(ports, func(p int) bool { return p == s.Port })
	}
	if len(ports) == 0 {
		return fmt.Errorf("nothing listens on %s", h.Addr())
	}
	port := ports[0]
	for _, a := range h.spec.Accounts {
		if h.spec.NoSystemd {
			break
		}
		bus := fmt.Sprintf("/proc/%d/root/run/user/%d/bus", pid, a.UID)
		if _, err := os.Lstat(bus); err != nil && !a.NoLinger {
			return fmt.Errorf("account %s has no service manager yet", a.Name)
		}
	}
	if h.spec.Hidden {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(h.Addr(), strconv.Itoa(port)))
	if err != nil {
		return err
	}
	defer conn.Close()
	deadline, _ := ctx.Deadline()
	if err := conn.SetDeadline(deadline); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "SSH-") {
		return fmt.Errorf("no SSH greeting: %q %v", line, err)
	}
	return nil
}

// listeningPorts returns the ports on which something in the process's network namespace listens on addr.
func listeningPorts(pid int, addr string) ([]int, error) {
	table, ip := "tcp", net.ParseIP(addr).To4()
	if ip == nil {
		table, ip = "tcp6", net.ParseIP(addr).To16()
	}
	data, err := os.ReadFile(fmt.Sprintf("/proc/%d/net/%s", pid, table))
	if err != nil {
		return nil, err
	}
	// proc_net_tcp(5): the address as words in host order, the port; state 0A is LISTEN.
	var local string
	for word := range slices.Chunk([]byte(ip), 4) {
		local += fmt.Sprintf("%08X", binary.NativeEndian.Uint32(word))
	}
	local += ":"
	var ports []int
	for line := range strings.Lines(string(data)) {
		f := strings.Fields(line)
		if len(f) > 3 && strings.HasPrefix(f[1], local) && f[3] == "0A" {
			port, err := strconv.ParseInt(f[1][len(local):], 16, 32)
			if err != nil {
				return nil, err
			}
			ports = append(ports, int(port))
		}
	}
	if len(ports) == 0 {
		return nil, fmt.Errorf("nothing listens on %s", addr)
	}
	return ports, nil
}

// consoleTail is the end of what the host wrote on its console.
func (h *Host) consoleTail() string {
	data, err := os.ReadFile(h.dir + "/console.log")
	if err != nil {
		return ""
	}
	const most = 4096
	return string(data[max(0, len(data)-most):])
}

// note brings the lab's record up to date with the host.
func (h *Host) note() error {
	h.mu.Lock()
	info := HostInfo{
		Name: h.spec.Name, Addr: h.Addr(), Account: h.spec.Accounts[0].Name, Accounts: h.spec.Accounts,
		KeyPath: h.lab.KeyPath(), HostKeys: h.hostKeys, BootMS: h.bootMS,
	}
	if h.boot != nil {
		info.PID = h.boot.pid
		info.Up = h.boot.pid != 0
	}
	h.mu.Unlock()
	return h.lab.save(func(r *Record) {
		for i := range r.Hosts {
			if r.Hosts[i].Name == info.Name {
				r.Hosts[i] = info
				return
			}
		}
		r.Hosts = append(r.Hosts, info)
	})
}
