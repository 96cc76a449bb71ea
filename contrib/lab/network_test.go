//go:build linux

package lab_test

import (
	"context"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab"
)

// plane listens where hosts can reach it and tells each caller the address it came from.
func plane(t *testing.T, l *lab.Lab) (port string, callers <-chan net.Conn) {
	t.Helper()
	listener, err := net.Listen("tcp", l.PlaneAddr()+":0")
	if err != nil {
		t.Fatal(err)
	}
	out := make(chan net.Conn, 8)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			out <- c
		}
	}()
	t.Cleanup(func() {
		listener.Close()
		<-done
	})
	_, port, _ = net.SplitHostPort(listener.Addr().String())
	return port, out
}

func dialFrom(local, addr string) error {
	ip := net.ParseIP(local)
	d := net.Dialer{Timeout: 700 * time.Millisecond, LocalAddr: &net.TCPAddr{IP: ip}}
	if ip == nil {
		d.LocalAddr = nil
	}
	c, err := d.Dial("tcp", addr)
	if err == nil {
		c.Close()
	}
	return err
}

func TestNetworkLeadsOneWay(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one"})
	port, callers := plane(t, l)

	mustExec(t, h, "user", "bash", "-c", "exec 3<>/dev/tcp/"+l.PlaneAddr()+"/"+port)
	c := <-callers
	c.Close()
	if from, _, _ := net.SplitHostPort(c.RemoteAddr().String()); from != l.RouterAddr() {
		t.Errorf("the plane sees the host as %s, want %s", from, l.RouterAddr())
	}
	if err := dialFrom("", h.Addr()+":22"); err != nil {
		t.Errorf("the operator: %v", err)
	}
	if err := dialFrom(l.PlaneAddr(), h.Addr()+":22"); !isTimeout(err) {
		t.Errorf("the plane dialed the host: %v", err)
	}
	other, err := net.Listen("tcp", l.OperatorAddr()+":0")
	must(t, err)
	defer other.Close()
	_, otherPort, _ := net.SplitHostPort(other.Addr().String())
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	if _, err := h.Exec(ctx, "user", "bash", "-c", "exec 3<>/dev/tcp/"+l.OperatorAddr()+"/"+otherPort); err == nil {
		t.Error("the host reached an address that is not the plane's")
	}
}

func TestHiddenHostIsReachedThroughItsBastion(t *testing.T) {
	l := newLab(t)
	bastion := newHost(t, l, lab.HostSpec{Name: "bastion"})
	inner := newHost(t, l, lab.HostSpec{Name: "inner", Hidden: true, From: []string{"bastion"}})
	if err := dialFrom("", inner.Addr()+":22"); !isTimeout(err) {
		t.Errorf("the operator reached a hidden host: %v", err)
	}
	got := mustExec(t, bastion, "user", "bash", "-c", "exec 3<>/dev/tcp/"+inner.Addr()+"/22; head -c4 <&3")
	if got != "SSH-" {
		t.Errorf("the bastion got %q", got)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 700*time.Millisecond)
	defer cancel()
	if _, err := inner.Exec(ctx, "user", "bash", "-c", "exec 3<>/dev/tcp/"+bastion.Addr()+"/22"); err == nil {
		t.Error("the hidden host reached the bastion")
	}
	known := filepath.Join(t.TempDir(), "known_hosts")
	must(t, os.WriteFile(known, []byte(bastion.KnownHosts()+inner.KnownHosts()), 0o600))
	proxy := "ProxyCommand=ssh -F none -o BatchMode=yes -o UserKnownHostsFile=" + known + " -i " + l.KeyPath() +
		" -W %h:%p user@" + bastion.Addr()
	if got, err := ssh(t, l, inner, "hostname", "-o", proxy); err != nil || got != "inner" {
		t.Errorf("through the bastion: %q, %v", got, err)
	}
}

func TestDeadRefusedAndRestoredNetwork(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one"})
	addr := h.Addr() + ":22"
	c, err := net.Dial("tcp", addr)
	must(t, err)
	defer c.Close()

	must(t, l.Drop(bound(t, 10*time.Second), h))
	if err := dialFrom("", addr); !isTimeout(err) {
		t.Errorf("a dead network answered: %v", err)
	}
	must(t, l.Restore(bound(t, 10*time.Second), h))
	must(t, dialFrom("", addr))

	must(t, l.Refuse(bound(t, 10*time.Second), h))
	if err := dialFrom("", addr); !isRefused(err) {
		t.Errorf("a refusing network: %v", err)
	}
	must(t, l.Restore(bound(t, 10*time.Second), h))
	must(t, dialFrom("", addr))
}

func TestFlushedConntrackForgetsConnectionsAndTakesNewOnes(t *testing.T) {
	l := newLab(t)
	h := newHost(t, l, lab.HostSpec{Name: "one"})
	port, callers := plane(t, l)
	script := `exec 3<>/dev/tcp/$1/$2; read -r _ <&3; echo after >&3; sleep 20`
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_, _ = h.Exec(ctx, "user", "bash", "-c", script, "sh", l.PlaneAddr(), port)
	}()
	defer func() { cancel(); <-ended }()
	c := <-callers
	defer c.Close()
	must(t, l.FlushConntrack(bound(t, 10*time.Second)))
	if _, err := io.WriteString(c, "go\n"); err != nil {
		t.Fatal(err)
	}
	if got, err := readAll(t, c, time.Second); got != "" || !isTimeout(err) {
		t.Errorf("a forgotten connection carried %q, %v", got, err)
	}
	mustExec(t, h, "user", "bash", "-c", "exec 3<>/dev/tcp/"+l.PlaneAddr()+"/"+port)
	(<-callers).Close()
}

func TestNothingListensOutsideTheLab(t *testing.T) {
	before := listeners(t)
	l := newLab(t)
	newHost(t, l, lab.HostSpec{Name: "one"})
	for line := range listeners(t) {
		if !before[line] && !strings.HasPrefix(line, "127.") {
			t.Logf("new listener in the root namespace: %s (this machine is shared)", line)
		}
		if strings.HasPrefix(line, l.PlaneAddr()+":") || strings.HasPrefix(line, l.OperatorAddr()+":") {
			t.Errorf("the lab listens on %s", line)
		}
	}
}
