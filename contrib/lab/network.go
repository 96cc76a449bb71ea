//go:build linux

package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// The addresses of a lab; see the package's doc.
func planeAddr(id int) string    { return fmt.Sprintf("10.97.%d.1", id) }
func routerAddr(id int) string   { return fmt.Sprintf("10.97.%d.2", id) }
func operatorAddr(id int) string { return fmt.Sprintf("10.97.%d.3", id) }
func gatewayAddr(id int) string  { return fmt.Sprintf("10.97.%d.129", id) }
func hostAddr(id, n int) string  { return fmt.Sprintf("10.97.%d.%d", id, 130+n) }

const maxHosts = 120

// quietNamespace runs in a fresh namespace: no IPv6, which the filter does not speak of.
const quietNamespace = `
echo 1 >/proc/sys/net/ipv6/conf/all/disable_ipv6
echo 1 >/proc/sys/net/ipv6/conf/default/disable_ipv6
ip link set lo up
`

// routerSetup makes the router: a mapping that was flushed stays forgotten (tcp_loose), as in a router that was
// restarted.
const routerSetup = quietNamespace + `
ip -batch - <<'BATCH'
addr add %[1]s/29 dev outer
link set outer up
BATCH
echo 1 >/proc/sys/net/ipv4/ip_forward
echo 0 >/proc/sys/net/netfilter/nf_conntrack_tcp_loose
nft -f - <<'RULES'
table ip lab {
	set dead { type ipv4_addr; }
	set refused { type ipv4_addr; }
	set hidden { type ipv4_addr; }
	set allowed { type ipv4_addr . ipv4_addr; }
	chain forward {
		type filter hook forward priority filter; policy drop;
		ip saddr @dead drop
		ip daddr @dead drop
		ip saddr @refused meta l4proto tcp reject with tcp reset
		ip daddr @refused meta l4proto tcp reject with tcp reset
		ct state invalid drop
		ct state established,related accept
		iifname "outer" ip saddr %[2]s ip daddr != @hidden accept
		oifname "outer" ip daddr %[3]s accept
		ip saddr . ip daddr @allowed accept
	}
	chain input {
		# Silence for what has no mapping: the router's own TCP would answer with a reset.
		type filter hook input priority filter; policy drop;
		iifname "lo" accept
	}
	chain translate {
		type nat hook postrouting priority srcnat;
		oifname "outer" masquerade
	}
}
RULES
`

func (l *Lab) namespace(name string) string { return l.dir + "/ns/" + name }

// linkName is the root namespace's end of the lab's network.
func (l *Lab) linkName() string { return fmt.Sprintf("fleetlab-%d", l.id) }

// newNamespace makes a network namespace that a mount keeps alive. It does not go through `ip netns`, whose first
// use leaves a mount on /run/netns for good.
func (l *Lab) newNamespace(ctx context.Context, name string) error {
	path := l.namespace(name)
	if err := os.WriteFile(path, nil, 0o600); err != nil {
		return fmt.Errorf("cannot make network namespace: %w", err)
	}
	return run(ctx, "", "unshare", "--net="+path, "true")
}

// in runs a shell script in a network namespace of the lab.
func (l *Lab) in(ctx context.Context, name, script string) error {
	return run(ctx, script, "nsenter", "--net="+l.namespace(name), "sh", "-e")
}

func (l *Lab) startNetwork(ctx context.Context) error {
	if err := l.newNamespace(ctx, "router"); err != nil {
		return err
	}
	root := fmt.Sprintf(`
ip link add %[1]s type veth peer name outer netns %[2]s
echo 1 >/proc/sys/net/ipv6/conf/%[1]s/disable_ipv6 || true
ip -batch - <<'BATCH'
addr add %[3]s/29 dev %[1]s
addr add %[4]s/29 dev %[1]s
link set %[1]s up
route add 10.97.%[5]d.128/25 via %[6]s src %[4]s
BATCH
`, l.linkName(), l.namespace("router"), planeAddr(l.id), operatorAddr(l.id), l.id, routerAddr(l.id))
	if err := run(ctx, root, "sh", "-e"); err != nil {
		return err
	}
	return l.in(ctx, "router", fmt.Sprintf(routerSetup, routerAddr(l.id), operatorAddr(l.id), planeAddr(l.id)))
}

// connectHost gives host n its namespace, address and way out.
func (l *Lab) connectHost(ctx context.Context, n int) error {
	ns := fmt.Sprintf("h%d", n)
	if err := l.newNamespace(ctx, ns); err != nil {
		return err
	}
	router := fmt.Sprintf(`
ip link add %[1]s type veth peer name host0 netns %[2]s
ip -batch - <<'BATCH'
addr add %[3]s/32 dev %[1]s
link set %[1]s up
route add %[4]s/32 dev %[1]s
BATCH
`, ns, l.namespace(ns), gatewayAddr(l.id), hostAddr(l.id, n))
	if err := l.in(ctx, "router", router); err != nil {
		return err
	}
	host := quietNamespace + fmt.Sprintf(`
ip -batch - <<'BATCH'
addr add %[1]s/32 dev host0
link set host0 up
route add %[2]s/32 dev host0
route add default via %[2]s
BATCH
`, hostAddr(l.id, n), gatewayAddr(l.id))
	return l.in(ctx, ns, host)
}

// nft changes the router's rules.
func (l *Lab) nft(ctx context.Context, rules ...string) error {
	return run(ctx, strings.Join(rules, "\n")+"\n", "nsenter", "--net="+l.namespace("router"), "nft", "-f", "-")
}

// Drop makes the host's network dead: packets in both directions vanish, of established connections too.
func (l *Lab) Drop(ctx context.Context, h *Host) error {
	return l.nft(ctx, "add element ip lab dead { "+h.Addr()+" }")
}

// Refuse makes the host's network refuse: TCP packets in both directions are answered with a reset.
func (l *Lab) Refuse(ctx context.Context, h *Host) error {
	return l.nft(ctx, "add element ip lab refused { "+h.Addr()+" }")
}

// Restore undoes Drop and Refuse.
func (l *Lab) Restore(ctx context.Context, h *Host) error {
	var rules []string
	for _, set := range []string{"dead", "refused"} {
		// Adding first makes the deletion of an absent element no error.
		rules = append(rules,
			"add element ip lab "+set+" { "+h.Addr()+" }",
			"delete element ip lab "+set+" { "+h.Addr()+" }")
	}
	return l.nft(ctx, rules...)
}

// FlushConntrack makes the router forget every mapping, so that each established connection through it goes
// silent, as with a router that was restarted. New connections work. See ctnetlink in linux/netfilter.
func (l *Lab) FlushConntrack(ctx context.Context) error {
	done := make(chan error, 1)
	go func() {
		// The thread changes its namespace and is not given back: it ends with the goroutine.
		runtime.LockOSThread()
		done <- flushConntrack(l.namespace("router"))
	}()
	select {
	case err := <-done:
		if err != nil {
			return fmt.Errorf("cannot flush conntrack: %w", err)
		}
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func flushConntrack(namespace string) error {
	ns, err := os.Open(namespace)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5}); err != nil {
		return err
	}
	const subsystemConntrack, messageDelete = 1, 2
	msg := make([]byte, 20) // nlmsghdr, then an all-zero nfgenmsg: any family, no tuple
	binary.NativeEndian.PutUint32(msg[0:], uint32(len(msg)))
	binary.NativeEndian.PutUint16(msg[4:], subsystemConntrack<<8|messageDelete)
	binary.NativeEndian.PutUint16(msg[6:], unix.NLM_F_REQUEST|unix.NLM_F_ACK)
	binary.NativeEndian.PutUint32(msg[8:], 1)
	if err := unix.Sendto(fd, msg, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	answer := make([]byte, 4096)
	n, _, err := unix.Recvfrom(fd, answer, 0)
	if err != nil {
		return err
	}
	if n < 20 || binary.NativeEndian.Uint16(answer[4:]) != unix.NLMSG_ERROR {
		return errors.New("unexpected netlink answer")
	}
	if code := int32(binary.NativeEndian.Uint32(answer[16:])); code != 0 {
		return unix.Errno(-code)
	}
	return nil
}

// run runs a command to its end and puts what it said into the error.
func run(ctx context.Context, stdin, name string, args ...string) error {
	path, err := findTool(name)
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env = append(os.Environ(), "PATH="+os.Getenv("PATH")+":/usr/sbin:/sbin")
	cmd.Stdin = strings.NewReader(stdin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot run %s: %w: %s", name, err, strings.TrimSpace(string(out)))
	}
	return nil
}
