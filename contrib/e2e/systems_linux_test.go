package e2e

import (
	"context"
	"strings"
	"testing"

	"fleet.example/fleet/contrib/lab"
)

// TestHostWithoutSystemd installs where busybox is process 1 and no program of
// systemd is there.
func TestHostWithoutSystemd(t *testing.T) { // R29
	t.Parallel()
	needs(t, "busybox")
	w := newWorld(t)
	h := w.host(lab.HostSpec{NoSystemd: true, Accounts: []lab.Account{{Name: "dana", NoLinger: true}, {Name: "root"}}})
	said := w.must("fleet", append([]string{"test"}, w.dest(h, "dana")...)...)
	if !strings.Contains(said, "process 1 is busybox") {
		t.Error(said)
	}
	if doc := w.install(h, "dana", "box"); doc.Machine.Agent.ServiceManager != "plain" {
		t.Errorf("%+v", doc.Machine.Agent)
	}
	if r := w.run("fleet", "exec", "box", "--", "echo", "here"); r.out != "here\n" {
		t.Error(r)
	}
	w.must("fleet", "update", "box")
	w.must("fleet", "uninstall", "box")
	if left := w.sh(h, "root", "ls -d "+dataGlob+" 2>/dev/null; pgrep -a 'agentd|supervise'; true"); left != "" {
		t.Errorf("left: %s", left)
	}

	// Nothing can serve root's agent, which test and install say alike.
	const words = "no service manager can serve the agent in system scope: "
	before := w.sh(h, "root", "find /root /etc /run /var -xdev -path '*fleet-agent*'")
	test := w.run("fleet", append([]string{"test"}, w.dest(h, "root")...)...)
	install := w.fails(9, words, w.installArgs(h, "root", "box")...)
	_, why, _ := strings.Cut(test.out, words)
	why, _, _ = strings.Cut(why, "\n")
	if test.exit != 9 || why == "" || !strings.Contains(install.err, words+why) || !strings.Contains(install.err, "--scope user") {
		t.Errorf("test: %s\ninstall: %s", test, install)
	}
	if after := w.sh(h, "root", "find /root /etc /run /var -xdev -path '*fleet-agent*'"); after != before {
		t.Errorf("a refused install left %s", after)
	}
}

// TestHostWithoutIPv4 reaches a host, and is reached by it, over IPv6.
func TestHostWithoutIPv4(t *testing.T) {
	t.Parallel()
	w := newWorldAt(t, func(ctx context.Context, l *lab.Lab) (string, error) { return l.PlaneAddr6(), l.StartIPv6(ctx) })
	h := w.host(lab.HostSpec{IPv6Only: true})
	key := []string{"-i", w.lab.KeyPath()}
	w.must("fleet", append([]string{"install", "dana@" + h.Addr(), "--name", "box", "--fingerprint", w.fingerprint(h)}, key...)...)
	if r := w.run("fleet", "exec", "box", "--", "sh", "-c", "echo $SSH_CONNECTION here"); r.out != "here\n" && !strings.HasSuffix(r.out, " here\n") {
		t.Error(r)
	}
	for _, dest := range []string{"dana@[" + h.Addr() + "]:22", "ssh://dana@[" + h.Addr() + "]"} {
		w.must("fleet", append([]string{"test", dest}, key...)...)
	}
	w.must("fleet", append([]string{"test", h.Addr(), "-o", "User=dana", "-o", "AddressFamily=inet6"}, key...)...)
	w.must("fleet", "uninstall", "box")
}
