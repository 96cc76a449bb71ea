package proxyjump

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/contrib/lab/loopback"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
	"fleet.example/fleet/plugins/sdk/conformance/hops"
)

// operator is a transport's host that knows its servers' keys and signs for all
// of them.
type operator struct {
	sdk.NoTransportHost
	t      testing.TB
	hosts  map[string]*loopback.Server
	refuse string // a hop whose key is refused

	mu     sync.Mutex
	judged []string
	asked  []string // hops for which an agent was asked
	lost   []string
	heard  chan struct{}
}

func newOperator(t testing.TB, servers ...*loopback.Server) (*operator, []sdk.Hop) {
	o := &operator{t: t, hosts: map[string]*loopback.Server{}, heard: make(chan struct{}, 16)}
	var hops []sdk.Hop
	for i, s := range servers {
		h := sdk.Hop{ID: fmt.Sprintf("hop%d", i), Host: "127.0.0.1", Port: s.Port(), User: s.User()}
		o.hosts[h.ID] = s
		hops = append(hops, h)
	}
	return o, hops
}

func (o *operator) HostKeyAlgorithms(context.Context, string) ([]string, error) {
	return []string{ssh.KeyAlgoED25519}, nil
}

func (o *operator) VerifyHostKey(_ context.Context, hop string, key []byte, _ string) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.judged = append(o.judged, hop)
	want, _, _, _, err := ssh.ParseAuthorizedKey([]byte(o.hosts[hop].HostKey()))
	if err != nil || hop == o.refuse || string(want.Marshal()) != string(key) {
		return errors.New("host key unknown")
	}
	return nil
}

func (o *operator) AgentSocket(_ context.Context, hop string) (string, error) {
	o.mu.Lock()
	o.asked = append(o.asked, hop)
	o.mu.Unlock()
	b, err := os.ReadFile(o.hosts[hop].KeyPath())
	if err != nil {
		return "", err
	}
	key, err := ssh.ParseRawPrivateKey(b)
	if err != nil {
		return "", err
	}
	ring := agent.NewKeyring()
	if err := ring.Add(agent.AddedKey{PrivateKey: key}); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("/tmp", "fj")
	if err != nil {
		return "", err
	}
	o.t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", dir+"/a")
	if err != nil {
		return "", err
	}
	o.t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go agent.ServeAgent(ring, c)
		}
	}()
	return dir + "/a", nil
}

func (o *operator) Lost(_ context.Context, hop, reason string) {
	o.mu.Lock()
	o.lost = append(o.lost, hop+": "+reason)
	o.mu.Unlock()
	o.heard <- struct{}{}
}

func server(t testing.TB, config string) *loopback.Server {
	t.Helper()
	s, err := loopback.Start(context.Background(), loopback.Options{SSHDConfig: config})
	if err != nil {
		t.Skipf("no ssh server on loopback: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

type through1 struct {
	t *Transport
	o *operator
}

func (d through1) Dial(ctx context.Context, t sdk.Target) (net.Conn, error) {
	return d.t.Dial(ctx, d.o, t)
}

func TestConformsThroughTwoHops(t *testing.T) {
	o, hops := newOperator(t, server(t, ""), server(t, ""))
	tr := &Transport{}
	defer tr.Close()
	env := conformance.TransportEnv{Target: func(host string, port int) sdk.Target {
		return sdk.Target{Destination: "x", Hop: sdk.Hop{ID: "target", Host: host, Port: port, User: "nobody"}, Jumps: hops}
	}}
	for _, c := range conformance.Transport(t.Context(), through1{tr, o}, env) {
		t.Run(c.Name, func(t *testing.T) { c.Report(t) })
	}
}

type over struct {
	t *Transport
	h *hops.Host
}

func (d over) Dial(ctx context.Context, t sdk.Target) (net.Conn, error) {
	return d.t.Dial(ctx, d.h, t)
}

func TestConforms(t *testing.T) {
	h, err := hops.New(3)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	tr := &Transport{}
	defer tr.Close()
	env := conformance.TransportEnv{Way: sdk.WayJumps, Hops: h, Target: func(host string, port int) sdk.Target {
		return sdk.Target{Destination: "x", Hop: sdk.Hop{ID: "target", Host: host, Port: port, User: "nobody"}, Jumps: h.Hops()}
	}}
	for _, c := range conformance.Transport(t.Context(), over{tr, h}, env) {
		t.Run(c.Name, func(t *testing.T) { c.Report(t) })
	}
}

func dial(t *testing.T, o *operator, hops []sdk.Hop, target sdk.Hop) (*Transport, net.Conn, error) {
	t.Helper()
	tr := &Transport{}
	t.Cleanup(func() { tr.Close() })
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	conn, err := tr.Dial(ctx, o, sdk.Target{Hop: target, Jumps: hops})
	return tr, conn, err
}

func TestNobodyLogsInToAHopWhoseKeyIsRefused(t *testing.T) { // R2
	first, second := server(t, "LogLevel VERBOSE"), server(t, "LogLevel VERBOSE")
	o, hops := newOperator(t, first, second)
	o.refuse = "hop1"
	_, _, err := dial(t, o, hops, hops[0])
	if err == nil || !strings.Contains(err.Error(), name(hops[1])) || !strings.Contains(err.Error(), "host key unknown") {
		t.Fatal(err)
	}
	if strings.Join(o.judged, " ") != "hop0 hop1" || strings.Join(o.asked, " ") != "hop0" {
		t.Errorf("judged %q, agents for %q", o.judged, o.asked)
	}
	if log := second.Log(); strings.Contains(log, "publickey") || strings.Contains(log, "userauth") {
		t.Errorf("the hop heard of a login: %s", log)
	}
}

func TestWhatGoesWrongNamesTheHop(t *testing.T) {
	good, closed := server(t, ""), server(t, "AllowTcpForwarding no")
	// A login fails, the next hop is not there, a hop lets nothing through.
	o, hops := newOperator(t, good, closed)
	stranger := hops[1]
	stranger.User = "nobody"
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	nowhere := sdk.Hop{ID: "target", Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "x"}
	l.Close()
	for what, c := range map[string]struct {
		jumps  []sdk.Hop
		at     sdk.Hop
		words  string
		target sdk.Hop
	}{
		"login":     {[]sdk.Hop{hops[0], stranger}, stranger, "Permission denied (publickey)", hops[0]},
		"not there": {hops[:1], hops[0], "refused", nowhere},
		"closed":    {hops, hops[1], "administratively prohibited", hops[0]},
		"no server": {[]sdk.Hop{nowhere, hops[0]}, nowhere, "connection refused", hops[0]},
	} {
		_, _, err := dial(t, o, c.jumps, c.target)
		if err == nil || !strings.Contains(err.Error(), "jump host "+name(c.at)+": ") || !strings.Contains(strings.ToLower(err.Error()), strings.ToLower(c.words)) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestTheHopThatDiesIsNamedBeforeTheStreamEnds(t *testing.T) { // R41
	first, second := server(t, ""), server(t, "")
	o, hops := newOperator(t, first, second)
	echo := server(t, "")
	_, conn, err := dial(t, o, hops, sdk.Hop{ID: "target", Host: "127.0.0.1", Port: echo.Port()})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if _, err := conn.Read(make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	second.Close()
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, io.EOF) {
		t.Log(err)
	}
	select {
	case <-o.heard:
	default:
		t.Fatal("the stream ended and nobody said where")
	}
	if len(o.lost) != 1 || !strings.HasPrefix(o.lost[0], "hop1: the connection was lost") {
		t.Errorf("%q", o.lost)
	}
}

func TestATargetThatHangsUpIsNoHopsFault(t *testing.T) {
	o, hops := newOperator(t, server(t, ""))
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() {
		if c, err := l.Accept(); err == nil {
			c.Close()
		}
	}()
	_, conn, err := dial(t, o, hops, sdk.Hop{ID: "target", Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	io.Copy(io.Discard, conn)
	if len(o.lost) != 0 {
		t.Errorf("%q", o.lost)
	}
}

func TestASilentHopIsGivenUpInItsTime(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	o, hops := newOperator(t, server(t, ""))
	silent := sdk.Hop{ID: "hop9", Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "x", ConnectTimeout: 100 * time.Millisecond}
	for _, jumps := range [][]sdk.Hop{{silent}, {hops[0], silent}} {
		_, _, err := dial(t, o, jumps, hops[0])
		if err == nil || !strings.Contains(err.Error(), address(silent)) || !strings.Contains(err.Error(), "100ms") {
			t.Error(err)
		}
	}
}

func TestTargetsWithoutJumpsAreRefused(t *testing.T) {
	_, err := (&Transport{}).Dial(t.Context(), sdk.NoTransportHost{}, sdk.Target{Hop: sdk.Hop{Host: "x", Port: 22}})
	if !errors.Is(err, sdk.ErrUnsupported) {
		t.Error(err)
	}
}
