package catalog_test

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/sdk"
)

func sha(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func TestOwnPluginsRunAndLeaveNothing(t *testing.T) { // R40, R41
	c, d := home(t)
	withOwn(t, d)
	ctx := within(t, 30*time.Second)
	p, err := c.LaunchProbe(ctx, "host")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Probe(ctx, here(t)); err != nil {
		t.Error(err)
	}
	if n := processesOf(t, d); len(n) != 1 {
		t.Errorf("%d processes, want 1", len(n))
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
	nothingLeft(t, d)
}

func TestTransportHandsOverItsOwnConnection(t *testing.T) { // design §8: bulk bytes do not go through gRPC
	c, d := home(t)
	withOwn(t, d)
	ctx := within(t, 30*time.Second)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	tr, err := c.LaunchTransport(ctx, "direct", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer tr.Close()
	conn, _, err := tr.Dial(ctx, sdk.Target{Hop: sdk.Hop{Host: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port}})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	tr.Close()
	nothingLeft(t, d)
	far, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer far.Close()
	if _, err := far.Write([]byte("SSH-2.0-x\r\n")); err != nil {
		t.Fatal(err)
	}
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || line != "SSH-2.0-x\r\n" {
		t.Fatalf("read %q, %v after the plugin ended", line, err)
	}
}

// startFailures are the ways in which a plugin fails before it serves.
var startFailures = []struct{ way, code, says string }{
	{"hang", catalog.CodeSlow, "did not answer within"},
	{"deaf", catalog.CodeSlow, "did not answer within"},
	{"crash", catalog.CodeCrashed, "licence server not found"},
	{"exit", catalog.CodeCrashed, "configuration missing"},
	{"quiet", catalog.CodeCrashed, "said nothing"},
	{"garbage", catalog.CodeGarbled, "Welcome to Acme!"},
	{"flood", catalog.CodeGarbled, "not fleet's plugin protocol"},
	{"future", catalog.CodeTooNew, "99"},
	{"socket", catalog.CodeGarbled, ""},
}

func TestBadPluginsGiveOneClearErrorAndLeaveNothing(t *testing.T) { // R41
	for _, f := range startFailures {
		t.Run(f.way, func(t *testing.T) {
			t.Parallel()
			c, d := home(t)
			path := withBad(t, c, f.way)
			c.Limits.Start = 3 * time.Second
			if f.way == "hang" || f.way == "deaf" {
				c.Limits.Start = time.Second
			}
			began := time.Now()
			_, err := c.LaunchProbe(within(t, 30*time.Second), "bad-"+f.way)
			if took := time.Since(began); took > 10*time.Second {
				t.Errorf("it took %v", took)
			}
			clear(t, err, f.code, path, f.says)
			nothingLeft(t, d)
		})
	}
}

// clear checks that an error is the one clear error of R41.
func clear(t *testing.T, err error, code, path, says string) {
	t.Helper()
	if err == nil {
		t.Fatal("no error")
	}
	var e *fault.Error
	if !errors.As(err, &e) {
		t.Fatalf("not a fault: %v", err)
	}
	if e.Code != code {
		t.Errorf("code %s, want %s: %v", e.Code, code, err)
	}
	for _, w := range []string{path, "version 6.6.6", "fleet 9.9.9", says} {
		if !strings.Contains(e.Msg, w) {
			t.Errorf("%q does not say %q", e.Msg, w)
		}
	}
	if strings.Contains(e.Msg, "\n") || len(e.Msg) > 1000 {
		t.Errorf("not one line: %q", e.Msg)
	}
	if e.Hint == "" {
		t.Errorf("no hint: %q", e.Msg)
	}
}

func TestBadCallsGiveOneClearErrorAndLeaveNothing(t *testing.T) { // R41
	for _, f := range []struct{ way, code, says string }{
		{"call-hang", catalog.CodeSlow, "did not finish Probe"},
		{"call-crash", catalog.CodeCrashed, "nil licence"},
		{"call-kill", catalog.CodeCrashed, "signal: killed"},
	} {
		t.Run(f.way, func(t *testing.T) {
			t.Parallel()
			c, d := home(t)
			path := withBad(t, c, f.way)
			c.Limits.Call = time.Second
			p, err := c.LaunchProbe(within(t, 30*time.Second), "bad-"+f.way)
			if err != nil {
				t.Fatal(err)
			}
			_, err = p.Probe(context.Background(), here(t))
			clear(t, err, f.code, path, f.says)
			began := time.Now()
			p.Close()
			if took := time.Since(began); took > 8*time.Second {
				t.Errorf("ending took %v", took)
			}
			nothingLeft(t, d)
		})
	}
}

func TestBrokenFindingsAreAnErrorNeverNothing(t *testing.T) { // R15
	for _, way := range []string{"call-unlisted", "call-escape"} {
		c, d := home(t)
		withBad(t, c, way)
		p, err := c.LaunchProbe(within(t, 30*time.Second), "bad-"+way)
		if err != nil {
			t.Fatal(err)
		}
		if found, err := p.Probe(within(t, 10*time.Second), here(t)); err == nil {
			t.Errorf("%s: %v", way, found)
		}
		p.Close()
		nothingLeft(t, d)
	}
}

func TestBeforeTheHostKeyIsConfirmedOnlyDescribedCommandsRun(t *testing.T) { // R2
	c, _ := home(t)
	withBad(t, c, "call-undescribed")
	p, err := c.LaunchProbe(within(t, 30*time.Second), "bad-call-undescribed")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	for phase, allowed := range map[sdk.Phase]bool{
		sdk.PhaseUnconfirmed: false, sdk.PhaseExamine: false, sdk.PhaseChange: true, sdk.PhaseResident: true, "": false,
	} {
		h := here(t)
		h.F.Phase = phase
		_, err := p.Probe(within(t, 10*time.Second), h)
		if allowed != (err == nil) || !allowed && !errors.Is(err, sdk.ErrDenied) {
			t.Errorf("phase %q: %v", phase, err)
		}
	}
}

func TestPluginCannotEatTheHostsInput(t *testing.T) { // R41
	c, d := home(t)
	withBad(t, c, "eat")
	p, err := c.LaunchProbe(within(t, 30*time.Second), "bad-eat")
	if err != nil {
		t.Fatal(err)
	}
	in, err := os.Readlink(fmt.Sprintf("/proc/%d/fd/0", processesOf(t, d)[0]))
	ours, _ := os.Readlink("/proc/self/fd/0")
	if err != nil || in == ours && in != os.DevNull || in != os.DevNull {
		t.Errorf("its standard input is %s (%v), ours %s", in, err, ours)
	}
	p.Close()
	nothingLeft(t, d)
}

func TestDescendantsEndWithThePlugin(t *testing.T) { // R41
	c, d := home(t)
	withBad(t, c, "children")
	p, err := c.LaunchProbe(within(t, 30*time.Second), "bad-children")
	if err != nil {
		t.Fatal(err)
	}
	if n := processesOf(t, d); len(n) != 3 {
		t.Errorf("%d processes, want the plugin and two children", len(n))
	}
	p.Close()
	nothingLeft(t, d)
}

// victim is a host of plugins that waits to be killed.
func victim() {
	d, kind, name, _ := cut4(os.Getenv(envVictim))
	c := catalogIn(d)
	ctx := context.Background()
	var err error
	switch kind {
	case "probe":
		_, err = c.LaunchProbe(ctx, name)
	case "service":
		_, err = c.LaunchService(ctx, name)
	case "transport":
		_, err = c.LaunchTransport(ctx, name, nil)
	case "starting":
		c.Limits.Start = time.Hour
		fmt.Println("up")
		_, err = c.LaunchProbe(ctx, name)
	case "calling":
		var p *catalog.Probe
		if p, err = c.LaunchProbe(ctx, name); err == nil {
			fmt.Println("up")
			f, _ := localhost.Gather()
			_, err = p.Probe(ctx, &localhost.Host{F: f})
		}
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println("up")
	time.Sleep(time.Hour)
}

func cut4(s string) (a, b, c, rest string) {
	f := append(strings.Split(s, "|"), "", "", "", "")
	return f[0], f[1], f[2], f[3]
}

func TestNothingIsLeftWhenTheHostIsKilled(t *testing.T) { // R41
	for _, v := range []struct{ kind, name string }{
		{"probe", "host"}, {"service", "systemd"}, {"transport", "direct"},
		{"probe", "bad-children"}, {"probe", "bad-eat"}, {"calling", "bad-call-hang"}, {"starting", "bad-hang"},
	} {
		t.Run(v.kind+" "+v.name, func(t *testing.T) {
			t.Parallel()
			c, d := home(t)
			if way, bad := strings.CutPrefix(v.name, "bad-"); bad {
				withBad(t, c, way)
			} else {
				withOwn(t, d)
			}
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), envVictim+"="+strings.Join([]string{d, v.kind, v.name}, "|"))
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			line, _ := bufio.NewReader(out).ReadString('\n')
			for end := time.Now().Add(10 * time.Second); v.kind == "starting" && len(processesOf(t, d)) == 0 && time.Now().Before(end); {
				time.Sleep(10 * time.Millisecond)
			}
			if line != "up\n" || len(processesOf(t, d)) == 0 {
				t.Errorf("the host said %q and has processes %v", line, processesOf(t, d))
			}
			if err := cmd.Process.Kill(); err != nil { // SIGKILL
				t.Fatal(err)
			}
			_ = cmd.Wait()
			if v.kind == "starting" {
				// What never came to serve removes nothing; the next launch does.
				withOwn(t, d)
				p, err := c.LaunchProbe(within(t, 30*time.Second), "host")
				if err != nil {
					t.Fatal(err)
				}
				p.Close()
			}
			nothingLeft(t, d)
		})
	}
}

func TestAlteredPluginDoesNotRun(t *testing.T) { // R40
	c, d := home(t)
	path := withBad(t, c, "fine")
	f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.Write([]byte{0}); err != nil {
		t.Fatal(err)
	}
	f.Close()
	_, err = c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
	clear(t, err, catalog.CodeAltered, path, "SHA-256")
	nothingLeft(t, d)
}

func TestPluginThatIsReplacedWhileItRunsIsStillTheLockedOne(t *testing.T) { // R40
	c, d := home(t)
	path := withBad(t, c, "fine")
	p, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	exe, err := os.Readlink(fmt.Sprintf("/proc/%d/exe", processesOf(t, d)[0]))
	if err != nil || exe == path {
		t.Errorf("it runs from %s itself (%v), not from a private copy", exe, err)
	}
}

func TestPluginGetsNoSecretOfTheEnvironment(t *testing.T) { // R40
	t.Setenv("SSH_AUTH_SOCK", "/tmp/agent")
	t.Setenv("ACME_PASSWORD", "hunter2")
	c, d := home(t)
	withBad(t, c, "fine")
	p, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	env, err := os.ReadFile(fmt.Sprintf("/proc/%d/environ", processesOf(t, d)[0]))
	if err != nil || strings.Contains(string(env), "SSH_AUTH_SOCK") || strings.Contains(string(env), "hunter2") {
		t.Errorf("environment %q, %v", env, err)
	}
}

func TestMissingPluginSaysWhereItWasLookedFor(t *testing.T) { // R41
	c, d := home(t)
	_, err := c.LaunchService(within(t, time.Second), "upstart")
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != catalog.CodeMissing {
		t.Fatal(err)
	}
	for _, w := range []string{"fleet-service-upstart", "9.9.9", filepath.Join(d, "own"), filepath.Join(d, "mine")} {
		if !strings.Contains(e.Msg, w) {
			t.Errorf("%q does not say %q", e.Msg, w)
		}
	}
}

func TestManyLaunchesAtOnce(t *testing.T) {
	c, d := home(t)
	withOwn(t, d)
	errs := make(chan error, 8)
	for range cap(errs) {
		go func() {
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			p, err := c.LaunchProbe(ctx, "host")
			if err == nil {
				_, err = p.Codes(ctx)
				err = errors.Join(err, p.Close())
			}
			errs <- err
		}()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	nothingLeft(t, d)
}
