package route_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/contrib/lab/loopback"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/route"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/transports/direct"
	"fleet.example/fleet/transports/proxycommand"
	"fleet.example/fleet/transports/proxyjump"
)

func server(t *testing.T, config string) *loopback.Server {
	t.Helper()
	s, err := loopback.Start(t.Context(), loopback.Options{SSHDConfig: "LogLevel VERBOSE\n" + config})
	if err != nil {
		t.Skipf("no ssh server on loopback: %v", err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

// here is a transport in this process, with everything else as it is with a plugin.
type here struct {
	sdk.Transport
	th  sdk.TransportHost
	dir string
}

func (h here) Dial(ctx context.Context, t sdk.Target) (net.Conn, bool, error) {
	conn, err := h.Transport.Dial(ctx, h.th, t)
	_, tcp := conn.(*net.TCPConn)
	return conn, tcp, err
}

func (h here) Dir() string { return h.dir }

func (h here) Close() error {
	if c, ok := h.Transport.(io.Closer); ok {
		return c.Close()
	}
	return nil
}

// world is one person on a way through servers.
type world struct {
	t     *testing.T
	dir   string // of the agents' sockets
	known string
	pins  *hostkey.Store
	way   route.Way

	mu   sync.Mutex
	met  []string
	said strings.Builder
}

func newWorld(t *testing.T, servers ...*loopback.Server) *world {
	t.Helper()
	home := t.TempDir()
	pins, err := hostkey.OpenStore(state.Dirs{UID: os.Getuid(), Getenv: func(k string) string {
		if k == "HOME" {
			return home
		}
		return ""
	}})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "fr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		left, err := os.ReadDir(dir)
		if err != nil || len(left) > 0 {
			t.Errorf("sockets are left: %v, %v", left, err)
		}
		os.RemoveAll(dir)
	})
	w := &world{t: t, dir: dir, pins: pins, known: filepath.Join(home, "known_hosts")}
	c := &sshconfig.Chain{}
	for i, s := range servers {
		conf := &sshconfig.Config{Alias: fmt.Sprintf("h%d", i+1), HostName: "127.0.0.1", Port: s.Port(), User: s.User(),
			IdentityFiles: []string{s.KeyPath()}, IdentityFileSet: true, UserKnownHostsFiles: []string{w.known}}
		if i < len(servers)-1 {
			c.Jumps = append(c.Jumps, conf)
		} else {
			c.Target = conf
		}
	}
	w.way = route.Way{Chain: c, Pins: pins, Notef: t.Logf, Output: &w.said,
		Met: func(m hostkey.Met, by string, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.met = append(w.met, fmt.Sprintf("%s %q %v", m.Names[0], by, err == nil))
		},
		Launch: func(_ context.Context, name string, th sdk.TransportHost) (route.Transport, error) {
			switch name {
			case "proxyjump":
				return here{&proxyjump.Transport{}, th, dir}, nil
			case "proxycommand":
				return here{&proxycommand.Transport{}, th, dir}, nil
			}
			return here{direct.Transport{}, th, dir}, nil
		}}
	return w
}

func (w *world) dial() (net.Conn, error) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), 30*time.Second)
	defer cancel()
	conn, err := w.way.Dial(ctx)
	if err == nil {
		w.t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

func (w *world) must() net.Conn {
	w.t.Helper()
	conn, err := w.dial()
	if err != nil {
		w.t.Fatal(err)
	}
	return conn
}

func (w *world) yes() {
	w.way.Decide = func(context.Context, hostkey.Met) (string, error) { return hostkey.ByPrompt, nil }
}

func key(t *testing.T, s *loopback.Server) ssh.PublicKey {
	t.Helper()
	k, _, _, _, err := ssh.ParseAuthorizedKey([]byte(s.HostKey()))
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func TestAHopThatNobodyConfirmedIsNotLoggedInTo(t *testing.T) { // R2
	first, second, target := server(t, ""), server(t, ""), server(t, "")
	w := newWorld(t, first, second, target)
	places := sshconn.PlacesOf(w.way.Chain)
	if err := w.pins.Set(t.Context(), places[0], key(t, first), hostkey.ByPrompt); err != nil {
		t.Fatal(err)
	}
	_, err := w.dial()
	f := fault.Of(err)
	if f == nil || f.Exit != fault.HostKey || f.Code != "host_key_unknown" || !strings.Contains(f.Msg, "jump host "+places[1].String()) || !strings.Contains(f.Hint, "--fingerprint h2=SHA256:") {
		t.Fatalf("%v", err)
	}
	if strings.Join(w.met, "; ") != `h1 "" true; h2 "" false` {
		t.Error(w.met)
	}
	if log := second.Log(); strings.Contains(log, "publickey") || strings.Contains(log, "Connection from") && strings.Contains(log, "userauth-request") {
		t.Error(log)
	}
}

func TestConfirmedHopsArePinnedPerChain(t *testing.T) { // R2
	first, second, target := server(t, ""), server(t, ""), server(t, "")
	w := newWorld(t, first, second, target)
	w.yes()
	banner := make([]byte, 8)
	if _, err := io.ReadFull(w.must(), banner); err != nil || string(banner) != "SSH-2.0-" {
		t.Fatalf("%q, %v", banner, err)
	}
	entries, err := w.pins.List()
	if err != nil || len(entries) != 2 {
		t.Fatalf("%+v, %v", entries, err)
	}
	h1 := w.way.Chain.Jumps[0].HostKeyName()
	chains := map[string]string{}
	for _, e := range entries {
		chains[e.Name] = e.Chain
	}
	if chains[h1] != "" || chains[w.way.Chain.Jumps[1].HostKeyName()] != h1 {
		t.Errorf("%v", chains)
	}
	w.way.Decide = func(_ context.Context, m hostkey.Met) (string, error) {
		t.Errorf("asked about %s again", m.Place)
		return "", nil
	}
	w.must()
}

func TestALooseDialPinsNothing(t *testing.T) {
	w := newWorld(t, server(t, ""), server(t, ""))
	w.yes()
	w.way.Loose = true
	w.must()
	if entries, err := w.pins.List(); err != nil || len(entries) != 0 {
		t.Errorf("%+v, %v", entries, err)
	}
}

func TestAChangedKeyOfAHopStopsTheDial(t *testing.T) { // R2
	first, target := server(t, ""), server(t, "")
	w := newWorld(t, first, target)
	w.yes()
	if err := w.pins.Set(t.Context(), sshconn.PlacesOf(w.way.Chain)[0], key(t, target), hostkey.ByPrompt); err != nil {
		t.Fatal(err)
	}
	_, err := w.dial()
	f := fault.Of(err)
	if f == nil || f.Exit != fault.HostKey || f.Code != "host_key_changed" || !strings.Contains(f.Msg, "jump host ") || !strings.Contains(f.Msg, "host key changed: ") || !strings.Contains(f.Hint, "fleet trust h1 --fingerprint") {
		t.Errorf("%v", err)
	}
	if strings.Contains(first.Log(), "publickey") {
		t.Error(first.Log())
	}
}

// TestAnotherKeyTypeOnAHopIsNoAlarm pins one of two keys of a server that would
// rather present the other.
func TestAnotherKeyTypeOnAHopIsNoAlarm(t *testing.T) { // R2
	file := filepath.Join(t.TempDir(), "ecdsa")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ecdsa", "-N", "", "-f", file).CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	b, err := os.ReadFile(file + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	ecdsa, _, _, _, err := ssh.ParseAuthorizedKey(b)
	if err != nil {
		t.Fatal(err)
	}
	first := server(t, "HostKey "+file)
	for _, pinned := range []ssh.PublicKey{ecdsa, key(t, first)} {
		w := newWorld(t, first, first)
		w.way.Chain.Target.User = "another" // no loop
		if err := w.pins.Set(t.Context(), sshconn.PlacesOf(w.way.Chain)[0], pinned, hostkey.ByPrompt); err != nil {
			t.Fatal(err)
		}
		w.must()
	}
}

func TestEvidenceAboutAHopIsWeighed(t *testing.T) { // R2
	dir := t.TempDir()
	ca, host := filepath.Join(dir, "ca"), filepath.Join(dir, "host")
	run := func(args ...string) {
		t.Helper()
		if out, err := exec.Command("ssh-keygen", append([]string{"-q"}, args...)...).CombinedOutput(); err != nil {
			t.Fatal(string(out))
		}
	}
	run("-t", "ed25519", "-N", "", "-f", ca)
	run("-t", "ed25519", "-N", "", "-f", host)
	run("-s", ca, "-I", "h", "-h", "-n", "127.0.0.1", "-V", "+1h", host+".pub")
	pub, err := os.ReadFile(ca + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	first, target := server(t, "HostKey "+host+"\nHostCertificate "+host+"-cert.pub"), server(t, "")
	place := fmt.Sprintf("[127.0.0.1]:%d", first.Port())
	for line, want := range map[string]string{
		"@cert-authority " + place + " " + string(pub): hostkey.EvidenceAuthority,
		place + " " + target.HostKey():                 hostkey.EvidenceOther,
	} {
		w := newWorld(t, first, target)
		if err := os.WriteFile(w.known, []byte(line+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		got := ""
		w.way.Decide = func(_ context.Context, m hostkey.Met) (string, error) {
			if len(m.Evidence) == 1 {
				got = m.Evidence[0].Kind
			}
			return hostkey.ByCertAuthority, nil
		}
		w.must()
		if got != want {
			t.Errorf("%s: %q", line, got)
		}
	}
	w := newWorld(t, first, target)
	w.yes()
	if err := os.WriteFile(w.known, []byte("@revoked * "+string(pub)+"\n@cert-authority * "+string(pub)), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := w.dial(); fault.Of(err) == nil || fault.Of(err).Code != "host_key_revoked" || !strings.Contains(err.Error(), "jump host ") {
		t.Errorf("%v", err)
	}
}

func TestWhatFailsAtAHopNamesItWithItsHint(t *testing.T) { // R32
	encrypted := filepath.Join(t.TempDir(), "encrypted")
	if out, err := exec.Command("ssh-keygen", "-q", "-t", "ed25519", "-N", "secret", "-f", encrypted).CombinedOutput(); err != nil {
		t.Fatal(string(out))
	}
	first, second := server(t, ""), server(t, "AllowTcpForwarding no")
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := closed.Addr().(*net.TCPAddr).Port
	closed.Close()
	for what, c := range map[string]struct {
		change      func(*sshconfig.Chain)
		words, hint string
		at          int
	}{
		"an encrypted key":     {func(c *sshconfig.Chain) { c.Jumps[0].IdentityFiles = []string{encrypted} }, "cannot log in to %s: Permission denied (publickey)", "load this key into ssh-agent first", 0},
		"no server":            {func(c *sshconfig.Chain) { c.Jumps[0].Port = port }, "jump host %s: dial tcp", "", 0},
		"nothing gets through": {func(c *sshconfig.Chain) {}, "jump host %s: cannot connect from there to 127.0.0.1:", "AllowTcpForwarding", 1},
		"algorithms":           {func(c *sshconfig.Chain) { c.Jumps[1].Ciphers = []string{"rot13"} }, "cannot connect to %s: Ciphers is rot13", "fleet has", 1},
		"passwords only":       {func(c *sshconfig.Chain) { c.Jumps[0].PreferredAuthentications = []string{"password"} }, "cannot log in to %s: PreferredAuthentications is password", "", 0},
	} {
		w := newWorld(t, first, second, first)
		w.way.Chain.Target.User = "another"
		w.yes()
		c.change(w.way.Chain)
		_, err := w.dial()
		f := fault.Of(err)
		if f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, fmt.Sprintf(c.words, w.way.Chain.Jumps[c.at])) || !strings.Contains(f.Hint, c.hint) {
			t.Errorf("%s: %v (%v)", what, err, f)
		}
	}
}

func TestTheHopAtWhichAConnectionIsLostIsNamed(t *testing.T) { // R41
	first, second, target := server(t, ""), server(t, ""), server(t, "")
	w := newWorld(t, first, second, target)
	w.yes()
	conn := w.must()
	second.Close()
	io.Copy(io.Discard, conn)
	err := conn.(interface{ Lost() error }).Lost()
	if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, "jump host "+w.way.Chain.Jumps[1].String()) {
		t.Errorf("%v", err)
	}
}

// A jump host that has enough logins under way is asked again, wherever it
// stands, and named when it goes on hanging up.
func TestAJumpHostWithTooManyLoginsUnderWay(t *testing.T) {
	for at := range 2 {
		t.Run(fmt.Sprint(at+1), func(t *testing.T) {
			servers := []*loopback.Server{server(t, ""), server(t, ""), server(t, "")}
			servers[at] = server(t, "MaxStartups 1")
			w := newWorld(t, servers...)
			w.yes()
			w.must().Close() // now the keys are pinned
			var again int
			held := hold(t, servers[at])
			w.way.Notef = func(format string, args ...any) {
				if strings.Contains(fmt.Sprintf(format, args...), "asking again") {
					again++
					held.Close()
				}
			}
			w.must().Close()
			if again == 0 {
				t.Error("it was not asked again")
			}
			w.way.Notef = t.Logf
			defer hold(t, servers[at]).Close()
			_, err := w.dial()
			if f := fault.Of(err); f == nil || f.Code != "hung_up" || f.Exit != fault.Unreachable || !strings.Contains(f.Hint, "MaxStartups") ||
				!strings.Contains(f.Msg, "jump host "+w.way.Chain.Jumps[at].String()+": it hung up before it identified itself") {
				t.Errorf("%v (%v)", err, f)
			}
		})
	}
}

// hold takes a server's only place for a login.
func hold(t *testing.T, s *loopback.Server) net.Conn {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); {
		c, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		c.SetReadDeadline(time.Now().Add(10 * time.Second))
		// The login before may be under way still.
		if got := make([]byte, 4); read(c, got) && string(got) == "SSH-" {
			return c
		}
		c.Close()
	}
	t.Fatal("the server takes no login")
	return nil
}

func read(c net.Conn, b []byte) bool {
	_, err := io.ReadFull(c, b)
	return err == nil
}

// However the end of a program is noticed, by reading or by writing, before or
// after the program ended, it is named with its exit status and its last words.
func TestTheEndOfAProxyCommandIsNamedAlike(t *testing.T) {
	target := server(t, "")
	for what, command := range map[string]string{
		"at once":                    "echo because >&2; exit 4",
		"after a line":               "echo SSH-2.0-x; echo because >&2; exit 4",
		"a while after its output":   "echo SSH-2.0-x; exec <&- >&-; sleep 1; echo because >&2; exit 4",
		"a while after, and at once": "exec <&- >&-; sleep 0.5; echo because >&2; exit 4",
		"when it was talked to":      "read line; echo because >&2; exit 4",
		"in the middle of a line":    "printf SSH-2; echo because >&2; exit 4",
	} {
		t.Run(what, func(t *testing.T) {
			w := newWorld(t, target)
			w.way.Chain.Target.ProxyCommand = "sh -c '" + command + "'"
			_, err := sshconn.Dial(t.Context(), sshconn.Params{Config: w.way.Chain.Target, Pins: w.pins, Chain: "ProxyCommand",
				Dial: func(ctx context.Context, _ *sshconfig.Config) (net.Conn, error) { return w.way.Dial(ctx) }})
			if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, `ended: exit status 4; it last said "because"`) {
				t.Error(err)
			}
		})
	}
}

func TestAJumpHostMayStandBehindAProxyCommand(t *testing.T) {
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip(err)
	}
	first, target := server(t, ""), server(t, "")
	w := newWorld(t, first, target)
	w.yes()
	w.way.Chain.Jumps[0].ProxyCommand = fmt.Sprintf(`bash -c 'echo hello >&2; exec 3<>/dev/tcp/127.0.0.1/%d; cat <&3 & exec cat >&3'`, first.Port())
	conn := w.must()
	b := make([]byte, 8)
	if _, err := io.ReadFull(conn, b); err != nil || string(b) != "SSH-2.0-" {
		t.Fatalf("%q, %v", b, err)
	}
	conn.Close()
	if w.said.String() != "hello\n" {
		t.Errorf("the person saw %q", w.said.String())
	}
	places := sshconn.PlacesOf(w.way.Chain)
	if places[0].Chain != "ProxyCommand" || places[1].Chain != "ProxyCommand,"+places[0].Name {
		t.Errorf("%+v", places)
	}
}

func TestADialThatIsGivenUpLeavesNothing(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	w := newWorld(t, server(t, ""), server(t, ""))
	w.way.Chain.Jumps[0].Port = l.Addr().(*net.TCPAddr).Port // accepted by the kernel, never answered
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(50*time.Millisecond, cancel)
	if _, err := w.way.Dial(ctx); err == nil {
		t.Error("connected to nobody")
	}
}
