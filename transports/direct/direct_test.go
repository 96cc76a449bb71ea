package direct

import (
	"context"
	"errors"
	"io/fs"
	"net"
	"testing"
	"time"

	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
)

type local struct{}

func (local) Dial(ctx context.Context, t sdk.Target) (net.Conn, error) {
	return Transport{}.Dial(ctx, sdk.NoTransportHost{}, t)
}

func TestConforms(t *testing.T) {
	for _, c := range conformance.Transport(context.Background(), local{}, conformance.TransportEnv{}) {
		t.Run(c.Name, func(t *testing.T) { c.Report(t) })
	}
}

func TestTargetsThatNeedMoreThanTCPAreRefused(t *testing.T) { // issue 2: refused in words until the transports are there
	hop := sdk.Hop{Host: "127.0.0.1", Port: 22}
	for name, v := range map[string]struct {
		target sdk.Target
		as     error
	}{
		"jump hosts":    {sdk.Target{Hop: hop, Jumps: []sdk.Hop{hop}}, sdk.ErrUnsupported},
		"proxy command": {sdk.Target{Hop: hop, Proxy: sdk.Proxy{Command: "nc x 22"}}, sdk.ErrUnsupported},
		"no host":       {sdk.Target{Hop: sdk.Hop{Port: 22}}, sdk.ErrInvalid},
		"no port":       {sdk.Target{Hop: sdk.Hop{Host: "x"}}, sdk.ErrInvalid},
		"family":        {sdk.Target{Hop: hop, AddressFamily: "inet7"}, sdk.ErrInvalid},
		"other family":  {sdk.Target{Hop: hop, AddressFamily: "inet6"}, sdk.ErrUnreachable},
		"no such name":  {sdk.Target{Hop: sdk.Hop{Host: "a..b", Port: 22}}, fs.ErrNotExist},
	} {
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
		conn, err := Transport{}.Dial(ctx, sdk.NoTransportHost{}, v.target)
		cancel()
		if conn != nil || !errors.Is(err, v.as) {
			t.Errorf("%s: %v, want %v", name, err, v.as)
		}
	}
}

func TestBindAddressAndFamilyAreUsed(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	conn, err := Transport{}.Dial(context.Background(), sdk.NoTransportHost{}, sdk.Target{
		Hop: sdk.Hop{Host: "localhost", Port: l.Addr().(*net.TCPAddr).Port}, AddressFamily: "inet", BindAddress: "127.0.0.2", ConnectTimeout: 5 * time.Second,
	})
	if err != nil {
		t.Skip(err) // not every system has all of 127/8
	}
	defer conn.Close()
	if host, _, _ := net.SplitHostPort(conn.LocalAddr().String()); host != "127.0.0.2" {
		t.Errorf("connected from %s", host)
	}
}
