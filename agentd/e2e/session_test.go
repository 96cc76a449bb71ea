package e2e

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func ctx(t *testing.T) context.Context {
	c, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	t.Cleanup(cancel)
	return c
}

func TestSessionKeepsStreamsApartAndReturnsTheExit(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	for _, x := range []struct {
		argv   []string
		stdin  string
		out    string
		errOut string
		code   int
		signal string
	}{
		{argv: []string{"sh", "-c", "echo out; echo err >&2; exit 3"}, out: "out\n", errOut: "err\n", code: 3},
		{argv: []string{"cat"}, stdin: strings.Repeat("input\n", 100_000), out: strings.Repeat("input\n", 100_000)},
		{argv: []string{"sh", "-c", "kill -TERM $$"}, code: 143, signal: "TERM"},
		{argv: []string{"true"}},
		{argv: []string{"printf", "%s|", "a b", "", "*", "$HOME"}, out: "a b||*|$HOME|"},
		{argv: []string{"printf", "%s", "\xff\xe4\x80"}, out: "\xff\xe4\x80"},
		{argv: []string{"sh", "-c", `printf %s "${#1}"`, "sh", strings.Repeat("<", 120_000)}, out: "120000"},
		{argv: append([]string{"sh", "-c", `printf %s "$#"`, "sh"}, slices.Repeat([]string{strings.Repeat("<", 100_000)}, 10)...), out: "10"},
		{argv: []string{"no-such-program"}, code: 127},
		{argv: []string{"/etc/passwd"}, code: 126},
	} {
		var out, errOut bytes.Buffer
		a := agentclient.Attachment{Stdout: &out, Stderr: &errOut}
		if x.stdin != "" {
			a.Stdin = strings.NewReader(x.stdin)
		}
		id, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: x.argv}, a)
		if err != nil {
			t.Fatalf("%.80v: %.200v", x.argv, err)
		}
		if exit.Code != x.code || exit.Signal != x.signal || out.String() != x.out || errOut.String() != x.errOut || exit.Gone {
			t.Errorf("%v: exit %+v, %d bytes out, stderr %q", x.argv, exit, out.Len(), errOut.String())
		}
		m.await("the exit record", func() bool {
			s, err := c.Session(ctx(t), id)
			return err == nil && s.State == wire.SessionExited && s.Exit != nil && s.Exit.Code == x.code
		})
	}
}

func TestSessionEnvironmentIsALogins(t *testing.T) {
	m, _, _ := installed(t)
	m.env = append(m.env, "NOTIFY_SOCKET=@nowhere", "FLEET_SECRET_THING=x")
	m.start()
	var out bytes.Buffer
	_, exit, err := m.client().Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "env; pwd; umask; ls -l /proc/self/fd | wc -l"}, Env: map[string]string{"ADDED": "yes=1"}, Dir: "/usr"}, agentclient.Attachment{Stdout: &out})
	if err != nil || exit.Code != 0 {
		t.Fatal(exit, err)
	}
	s := out.String()
	for _, want := range []string{"HOME=", "USER=", "LOGNAME=", "SHELL=", "PATH=", "ADDED=yes=1\n", "\n/usr\n", "FLEET_SESSION=s_"} {
		if !strings.Contains(s, want) {
			t.Errorf("%q is missing in\n%s", want, s)
		}
	}
	for _, not := range []string{"NOTIFY_SOCKET", "FLEET_SECRET_THING"} {
		if strings.Contains(s, not) {
			t.Errorf("%s reached the session", not)
		}
	}
}

func TestSessionWithTerminal(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	var out bytes.Buffer
	_, exit, err := m.client().Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "stty size; tty; echo $TERM; read x; echo got $x"}, PTY: &wire.PTY{Term: "xterm", Rows: 33, Cols: 77}},
		agentclient.Attachment{Stdout: &out, Stdin: strings.NewReader("typed\n"), Size: agentclient.Size{Rows: 33, Cols: 77}})
	if err != nil || exit.Code != 0 {
		t.Fatal(exit, err, out.String())
	}
	for _, want := range []string{"33 77", "/dev/pts/", "xterm", "got typed"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is missing in %q", want, out.String())
		}
	}
}

func TestSignalReachesTheProcessGroup(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "sleep 1000 & wait"}})
	if err != nil {
		t.Fatal(err)
	}
	if s.State != wire.SessionRunning || s.PID == 0 || s.Argv0 != "sh" {
		t.Fatalf("%+v", s)
	}
	if _, err := c.Signal(ctx(t), s.ID, "NOSUCH"); fault.Of(err).Exit != fault.Usage {
		t.Fatalf("err = %v", err)
	}
	if _, err := c.Signal(ctx(t), s.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	exit, _, err := c.Attach(ctx(t), s.ID, 0, agentclient.Attachment{})
	if err != nil || exit.Signal != "KILL" || exit.Code != 137 {
		t.Fatal(exit, err)
	}
	m.await("the session's host to end", func() bool {
		_, err := c.Signal(ctx(t), s.ID, "TERM")
		return err != nil && fault.Of(err).Code == wire.CodeConflict
	})
	if _, err := c.Session(ctx(t), "s_aaaaaaaaaa"); fault.Of(err).Exit != fault.NotFound {
		t.Fatalf("err = %v", err)
	}
}

// hasher counts and hashes what it is given.
type hasher struct {
	mu sync.Mutex
	n  int
	b  []byte
}

func (h *hasher) Write(p []byte) (int, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.n += len(p)
	h.b = append(h.b, p...)
	return len(p), nil
}

func (h *hasher) len() int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.n
}

func TestKilledAgentLosesNoByteOfASession(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	// Both directions run while agentd dies again and again.
	const lines = 200_000
	var in, want bytes.Buffer
	for i := range lines {
		fmt.Fprintf(&in, "line %d\n", i)
	}
	want.Write(in.Bytes())
	got := &hasher{}
	notices := 0
	done, killed := make(chan error, 1), make(chan struct{})
	go func() {
		_, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"cat"}},
			agentclient.Attachment{Stdin: &slow{r: &in, hold: in.Len() / 4, until: killed}, Stdout: got, Notice: func(string) { notices++ }})
		if err == nil && exit.Code != 0 {
			err = fmt.Errorf("exit %+v", exit)
		}
		done <- err
	}()
	for i := range 3 {
		m.await("output", func() bool { return got.len() > (i+1)*200_000 })
		m.kill()
		m.start()
	}
	close(killed)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if sha256.Sum256(got.b) != sha256.Sum256(want.Bytes()) {
		t.Fatalf("%d bytes came back of %d", len(got.b), want.Len())
	}
	if notices == 0 {
		t.Fatal("the connection was never lost: nothing was tested")
	}
	// A second reader gets it all again, from the middle too, after the end.
	list, err := c.Sessions(ctx(t))
	if err != nil || len(list.Sessions) != 1 {
		t.Fatal(list, err)
	}
	again := &hasher{}
	exit, at, err := c.Attach(ctx(t), list.Sessions[0].ID, 1_000_003, agentclient.Attachment{Stdout: again})
	if err != nil || exit.Code != 0 || at != int64(want.Len()) || !bytes.Equal(again.b, want.Bytes()[1_000_003:]) {
		t.Fatal(exit, at, err, again.n)
	}
}

// slow gives its bytes in small pieces with pauses, as a person or a pipe does,
// and the last of them only after until.
type slow struct {
	r     *bytes.Buffer
	n     int
	hold  int
	until <-chan struct{}
}

func (s *slow) Read(p []byte) (int, error) {
	if s.n++; s.n%4 == 0 {
		time.Sleep(2 * time.Millisecond)
	}
	if s.r.Len() <= s.hold {
		<-s.until
	}
	return s.r.Read(p[:min(len(p), 4096)])
}

func TestKilledShimIsConfirmedGone(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "echo begun; exec sleep 1000"}})
	if err != nil {
		t.Fatal(err)
	}
	m.await("output", func() bool {
		b, _ := os.ReadFile(m.data + "/sessions/" + s.ID + "/spool/0000000000000000.out")
		return bytes.Contains(b, []byte("begun"))
	})
	m.killShims()
	m.await("the session to be gone", func() bool {
		one, err := c.Session(ctx(t), s.ID)
		return err == nil && one.State == wire.SessionGone
	})
	var out bytes.Buffer
	exit, _, err := c.Attach(ctx(t), s.ID, 0, agentclient.Attachment{Stdout: &out})
	if err != nil || !exit.Gone || out.String() != "begun\n" {
		t.Fatal(exit, err, out.String())
	}
}

func TestRemovedSocketIsMadeAgain(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"sleep", "1000"}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(m.run + "/" + s.ID + ".sock"); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Signal(ctx(t), s.ID, "TERM"); err != nil {
		t.Fatal(err)
	}
	exit, _, err := c.Attach(ctx(t), s.ID, 0, agentclient.Attachment{})
	if err != nil || exit.Signal != "TERM" {
		t.Fatal(exit, err)
	}
}

func TestMachineThatCannotStartASessionSaysSo(t *testing.T) { // R30
	m, p, _ := installed(t)
	m.start()
	if err := os.Rename(m.data+"/v/agentd-shim", m.data+"/v/away"); err != nil {
		t.Fatal(err)
	}
	_, _, err := m.client().Run(ctx(t), wire.SessionRequest{Argv: []string{"true"}}, agentclient.Attachment{})
	if f := fault.Of(err); f.Code != wire.CodeSessionUnusable {
		t.Fatalf("err = %v", err)
	}
	s := p.Await(t, "the blocker", func(s seen) bool {
		return s.Body.Readiness != nil && len(s.Body.Readiness.Blockers) > 0
	})
	if s.Body.Readiness.Blockers[0].Code != "session_unusable" {
		t.Fatalf("%+v", s.Body.Readiness)
	}
}

func TestDrainRefusesSessionsAndOutlivesARestart(t *testing.T) { // R30
	m, p, _ := installed(t)
	m.start()
	c := m.client()
	before, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"true"}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Drain(ctx(t)); err != nil {
		t.Fatal(err)
	}
	// Who did not hear that it has begun asks again, and begins nothing new.
	if again, err := c.Create(ctx(t), wire.SessionRequest{ID: before.ID, Argv: []string{"true"}}); err != nil || again.ID != before.ID {
		t.Fatalf("%+v, %v", again, err)
	}
	p.Await(t, "the blocker", func(s seen) bool {
		return s.Body.Readiness != nil && len(s.Body.Readiness.Blockers) == 1 && s.Body.Readiness.Blockers[0].Code == "draining"
	})
	m.kill()
	m.start()
	_, err = c.Create(ctx(t), wire.SessionRequest{Argv: []string{"true"}})
	if f := fault.Of(err); f.Code != wire.CodeDraining || f.Exit != fault.Refused || f.Hint == "" {
		t.Fatalf("err = %v", err)
	}
	if _, err := c.Undrain(ctx(t)); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"true"}}); err != nil {
		t.Fatal(err)
	}
}

func TestBadSessionRequestsAreRefused(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	for _, req := range []wire.SessionRequest{
		{}, {Argv: []string{""}}, {Argv: []string{"a\x00b"}}, {Shell: true, Argv: []string{"x"}},
		{Argv: []string{"true"}, Env: map[string]string{"A=B": "x"}}, {Argv: []string{"true"}, Env: map[string]string{"": "x"}},
		{Argv: []string{"true"}, Spool: &wire.SpoolPolicy{Policy: "forget"}}, {Argv: []string{"true"}, PTY: &wire.PTY{Term: "../x"}},
		{Argv: []string{"true", strings.Repeat("x", 2<<20)}},
	} {
		if _, err := c.Create(ctx(t), req); fault.Of(err).Exit != fault.Usage {
			t.Errorf("%.60v: err = %v", req, err)
		}
	}
	if _, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"true"}, Workspace: "w"}); fault.Of(err).Code != wire.CodeWorkspaceMissing {
		t.Errorf("err = %v", err)
	}
}

// The end of a session cuts nothing off: its last output and its exit code come
// over the connection that is there, whatever acknowledgements are under way.
func TestTheEndOfASessionIsNoLostConnection(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	notices := 0
	for range 40 {
		var out counting
		_, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"head", "-c", "3000000", "/dev/zero"}},
			agentclient.Attachment{Stdout: &out, Notice: func(string) { notices++ }})
		if err != nil || exit.Code != 0 || out != 3_000_000 {
			t.Fatal(err, exit, out)
		}
	}
	if notices > 0 {
		t.Errorf("the connection was lost and found %d times", notices/2)
	}
}

// A session may be over before its client has attached. Whether the shim still
// listens, is letting go, or is with another session already, the client is
// told the end without a word of a lost connection.
func TestAClientMayComeWhenTheSessionEnds(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 40 {
				_, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"there is no such program"}},
					agentclient.Attachment{Notice: func(n string) { t.Error(n) }})
				if err != nil || exit.Code != 127 {
					t.Error(exit, err)
				}
			}
		})
	}
	wg.Wait()
}

type counting int64

func (c *counting) Write(p []byte) (int, error) {
	*c += counting(len(p))
	return len(p), nil
}
