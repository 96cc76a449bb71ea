//go:build linux

package lab

import (
	"context"
	"fmt"
)

// The IPv6 addresses of a lab, for hosts that have no others.
func planeAddr6(id int) string   { return fmt.Sprintf("fd97:0:%x::1", id) }
func routerAddr6(id int) string  { return fmt.Sprintf("fd97:0:%x::2", id) }
func gatewayAddr6(id int) string { return fmt.Sprintf("fd97:0:%x:1::1", id) }
func hostAddr6(id, n int) string { return fmt.Sprintf("fd97:0:%x:1::%x", id, 0x100+n) }

// PlaneAddr6 is the address in the root namespace that hosts without IPv4 reach. It is there once there is such a
// host, or after StartIPv6.
func (l *Lab) PlaneAddr6() string { return planeAddr6(l.id) }

// planeAddr is the address under which the host reaches the plane.
func (h *Host) planeAddr() string {
	if h.spec.IPv6Only {
		return h.lab.PlaneAddr6()
	}
	return h.lab.PlaneAddr()
}

// StartIPv6 gives the lab's network its IPv6 addresses. As with IPv4, hosts reach the plane and nothing else, and
// only the operator reaches them; nothing is translated. It may be called again.
func (l *Lab) StartIPv6(ctx context.Context) error {
	root := fmt.Sprintf(`
echo 0 >/proc/sys/net/ipv6/conf/%[1]s/disable_ipv6
ip addr replace %[2]s/64 dev %[1]s nodad
ip route replace fd97:0:%[3]x:1::/64 via %[4]s
`, l.linkName(), planeAddr6(l.id), l.id, routerAddr6(l.id))
	router := fmt.Sprintf(`
echo 0 >/proc/sys/net/ipv6/conf/outer/disable_ipv6
echo 1 >/proc/sys/net/ipv6/conf/all/forwarding
ip addr replace %[1]s/64 dev outer nodad
nft -f - <<'RULES'
table ip6 lab
delete table ip6 lab
table ip6 lab {
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		iifname "outer" ip6 saddr %[2]s accept
		oifname "outer" ip6 daddr %[2]s accept
	}
}
RULES
`, routerAddr6(l.id), planeAddr6(l.id))
	if err := l.in(ctx, "router", router); err != nil {
		return err
	}
	return run(ctx, root, "sh", "-e")
}

// connectHost6 gives host n its namespace, an IPv6 address and a way out.
func (l *Lab) connectHost6(ctx context.Context, n int) error {
	if err := l.StartIPv6(ctx); err != nil {
		return err
	}
	ns := fmt.Sprintf("h%d", n)
	if err := l.newNamespace(ctx, ns); err != nil {
		return err
	}
	router := fmt.Sprintf(`
ip link add %[1]s type veth peer name host0 netns %[2]s
echo 0 >/proc/sys/net/ipv6/conf/%[1]s/disable_ipv6
ip link set %[1]s up
ip addr add %[3]s/128 dev %[1]s nodad
ip route add %[4]s/128 dev %[1]s
`, ns, l.namespace(ns), gatewayAddr6(l.id), hostAddr6(l.id, n))
	if err := l.in(ctx, "router", router); err != nil {
		return err
	}
	host := quietNamespace + fmt.Sprintf(`
echo 0 >/proc/sys/net/ipv6/conf/lo/disable_ipv6
echo 0 >/proc/sys/net/ipv6/conf/host0/disable_ipv6
ip link set host0 up
ip addr add %[1]s/128 dev host0 nodad
ip route add %[2]s/128 dev host0
ip route add default via %[2]s
`, hostAddr6(l.id, n), gatewayAddr6(l.id))
	return l.in(ctx, ns, host)
}
