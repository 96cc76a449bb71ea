package main

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"time"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/wan"
	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

const (
	starts    = 101 // of each kind, at least
	startRest = 20 * time.Millisecond
	together  = 8 // so many run at the same time, of which some find a host
	// filled is more output than a spool holds.
	filled       = 256 << 20
	streamed     = 256 << 20
	sessionLimit = 10 * time.Minute
)

// sessions measures how soon a session's command runs and what its host takes,
// how soon a keystroke is echoed, and how fast output comes.
func sessions(ctx context.Context, b *bench) (err error) {
	ctx, cancel := context.WithTimeout(ctx, sessionLimit)
	defer cancel()
	h, err := b.lab.Host(ctx, lab.HostSpec{Name: "box", Accounts: []lab.Account{{Name: "dana", HomeBytes: 4 << 30}}})
	if err != nil {
		return err
	}
	far, err := wan.Listen(ctx, "127.0.0.1:0", net.JoinHostPort(h.Addr(), "22"), wan.Profile{Delay: 10 * time.Millisecond})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, far.Close()) }()
	_, port, err := net.SplitHostPort(far.Addr())
	if err != nil {
		return err
	}
	_, key, _ := strings.Cut(strings.TrimSpace(strings.Split(h.KnownHosts(), "\n")[0]), " ")
	// Keystrokes that are held back to hide when they were typed would make ssh
	// the slower one.
	file, err := b.config(fmt.Sprintf("IgnoreUnknown ObscureKeystrokeTiming\nHost box\n  HostName %s\nHost far\n  HostName 127.0.0.1\n  Port %s\n"+
		"Host *\n  User dana\n  HostKeyAlias box\n  ControlPath %s/cm-%%n\n  ObscureKeystrokeTiming no\n", h.Addr(), port, b.dir), "box "+key+"\n")
	if err != nil {
		return err
	}
	if err := b.plane(ctx); err != nil {
		return err
	}
	if err := b.do("fleet", "install", "box", "-F", file, "--name", "box", "--trust", "known_hosts"); err != nil {
		return err
	}
	a, err := b.onHost(h)
	if err != nil {
		return err
	}
	defer a.client.Close()
	if err := a.starts(ctx); err != nil {
		return err
	}
	if err := b.do("fleet", "mux", "start"); err != nil {
		return err
	}
	defer b.do("fleet", "mux", "stop")
	for _, to := range []string{"box", "far"} {
		// Its output would hold the pipes for as long as it lives.
		if err := b.cmd("ssh", "-F", file, "-fNM", to).Run(); err != nil {
			return fmt.Errorf("ssh -M %s: %w", to, err)
		}
		defer b.cmd("ssh", "-F", file, "-O", "exit", to).Run()
	}
	if err := b.streams(file); err != nil {
		return err
	}
	if err := b.echoes(ctx, file, "box", 0); err != nil {
		return err
	}
	if err := b.do("fleet", "trust", "far", "-F", file, "--trust", "known_hosts"); err != nil {
		return err
	}
	if err := b.do("fleet", "host", "link", "box", "far", "-F", file); err != nil {
		return err
	}
	return b.echoes(ctx, file, "far", 20*time.Millisecond)
}

// streams measures a large output, over connections that are there.
func (b *bench) streams(file string) error {
	if err := b.do("fleet", "exec", "box", "--", "sh", "-c", fmt.Sprintf("head -c %d /dev/urandom > large", streamed)); err != nil {
		return err
	}
	into := func(w io.Writer, name string, args ...string) error {
		c := b.cmd(name, args...)
		c.Stdout = w // nil: /dev/null
		return c.Run()
	}
	var sums [2][]byte
	for i, args := range [][]string{{"ssh", "-F", file, "box", "cat large"}, {"fleet", "exec", "box", "--", "cat", "large"}} {
		sum := sha256.New()
		if err := into(sum, args[0], args[1:]...); err != nil {
			return fmt.Errorf("%s: %w", args[0], err)
		}
		sums[i] = sum.Sum(nil)
	}
	if !slices.Equal(sums[0], sums[1]) {
		return errors.New("the output of fleet exec is not ssh's")
	}
	return turns(7,
		line{"ssh cat of 256 MiB over a master", func() error { return into(nil, "ssh", "-F", file, "box", "cat large") }},
		line{"fleet exec cat of 256 MiB over a shared connection", func() error { return into(nil, "fleet", "exec", "box", "--", "cat", "large") }})
}

// onHost is the agent as a program on its host finds it. All of it is one
// kernel's, so a path through the process table leads to the host's sockets and
// files, and the agent answers root.
type onHost struct {
	root   string
	link   state.Link
	client *agentclient.Client
}

func (b *bench) onHost(h *lab.Host) (*onHost, error) {
	out, err := b.cmd("fleet", "host", "export").Output()
	if err != nil {
		return nil, fmt.Errorf("fleet host export: %w", err)
	}
	var doc struct{ Links []state.Link }
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, err
	}
	if len(doc.Links) != 1 {
		return nil, fmt.Errorf("%d links", len(doc.Links))
	}
	a := &onHost{root: fmt.Sprintf("/proc/%d/root", h.PID()), link: doc.Links[0]}
	a.client = agentclient.New(a)
	return a, nil
}

func (a *onHost) dial(ctx context.Context, socket string) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", a.root+a.link.Runtime+"/"+socket)
}

// Dial and Token make it an agentclient.Dialer.
func (a *onHost) Dial(ctx context.Context) (net.Conn, error) { return a.dial(ctx, place.AgentSocket) }

func (a *onHost) Token(ctx context.Context, _ bool) (secret.Text, error) {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return a.dial(ctx, place.MintSocket) }}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent"+wire.PathTokens, http.NoBody)
	if err != nil {
		return secret.Text{}, err
	}
	resp, err := tr.RoundTrip(req)
	if err != nil {
		return secret.Text{}, err
	}
	defer resp.Body.Close()
	var minted wire.TokenMinted
	err = json.NewDecoder(resp.Body).Decode(&minted)
	return secret.Of(minted.Token), err
}

// first is a command that says at once that it runs, and stays.
var first = []string{"/bin/sh", "-c", "echo; read x"}

// took is how long after the request a session's agent answered, and how long
// after it the first byte was here that the command wrote.
type took struct{ answer, output []time.Duration }

// starts measures from the request on. The agent answers once the command's exec
// has succeeded, so the answer is a bound that needs nothing of the command: no
// clock that both sides agree on, and not what a program does until it comes to
// its own first line. The command's first byte is measured too, and beside it
// what there is of that where nothing but this program starts the command.
//
// A session whose host had one before is told from one whose host is new by the
// host's process.
func (a *onHost) starts(ctx context.Context) error {
	var alone []time.Duration
	var again, anew took
	var m memory
	hosts := map[string]bool{}
	for len(alone) < starts {
		d, err := local()
		if err != nil {
			return err
		}
		alone = append(alone, d)
	}
	// One that begins while others run has a host of its own.
	for len(again.answer) < starts || len(anew.answer) < starts {
		var running []*agentclient.Stream
		for len(running) < together {
			s, answer, output, err := a.start(ctx, first)
			if err != nil {
				return err
			}
			running = append(running, s)
			pid, err := a.host(s.Session)
			if err != nil {
				return err
			}
			t := &anew
			if hosts[pid] {
				t = &again
			}
			hosts[pid] = true
			t.answer, t.output = append(t.answer, answer), append(t.output, output)
			time.Sleep(startRest)
		}
		for _, s := range running {
			if err := m.add(a, s); err != nil {
				return err
			}
			if err := a.end(s); err != nil {
				return err
			}
			time.Sleep(startRest)
		}
	}
	spread("a session's command runs, its host had one before", again.answer)
	spread("a session's command runs, its host is new", anew.answer)
	spread("the command's first output, its host had one before", again.output)
	spread("the command's first output, its host is new", anew.output)
	spread("the command's first output, started by this program", alone)
	m.tell("a session's host at rest")
	return a.fill(ctx)
}

// fill measures a session's host after much output.
func (a *onHost) fill(ctx context.Context) error {
	s, _, _, err := a.start(ctx, []string{"/bin/sh", "-c", fmt.Sprintf("echo; head -c %d /dev/zero; read x", filled-1)})
	if err != nil {
		return err
	}
	for at := int64(1); at < filled; {
		t, p, err := s.Next()
		if err != nil {
			return err
		}
		if t == frame.Stdout {
			at += int64(len(p) - 8)
			if _, err := s.Write(frame.AppendOffset(nil, frame.Ack, at)); err != nil {
				return err
			}
		}
	}
	var m memory
	if err := m.add(a, s); err != nil {
		return err
	}
	m.tell(fmt.Sprintf("the same after %d MiB of output", filled>>20))
	return a.end(s)
}

// local is how long the command's first byte takes by itself.
func local() (output time.Duration, err error) {
	c := exec.Command(first[0], first[1:]...)
	in, err := c.StdinPipe()
	if err != nil {
		return 0, err
	}
	out, err := c.StdoutPipe()
	if err != nil {
		return 0, err
	}
	began := time.Now()
	if err := c.Start(); err != nil {
		return 0, err
	}
	_, err = out.Read(make([]byte, 1))
	output = time.Since(began)
	in.Close()
	c.Wait() // 1: there was nothing to read
	return output, err
}

// start starts a session and waits for the first byte of its output.
func (a *onHost) start(ctx context.Context, argv []string) (s *agentclient.Stream, answer, output time.Duration, err error) {
	req := wire.SessionRequest{Argv: argv, Stdin: true, First: frame.AppendJSON(nil, frame.Attach, frame.AttachRequest{Writer: "bench"})}
	if err := a.client.Ready(ctx); err != nil {
		return nil, 0, 0, err
	}
	began := time.Now()
	if s, err = a.client.Exec(ctx, req); err != nil {
		return nil, 0, 0, err
	}
	answer = time.Since(began)
	t, p, err := s.Next()
	if err == nil && t == frame.Attached {
		t, p, err = s.Next()
	}
	if err == nil && (t != frame.Stdout || len(p) != 8+1) {
		err = fmt.Errorf("%q of %d bytes in place of the first output", t, len(p))
	}
	if err != nil {
		s.Close()
	}
	return s, answer, time.Since(began), err
}

// end ends a session and the connection to it.
func (a *onHost) end(s *agentclient.Stream) error {
	defer s.Close()
	if _, err := s.Write(frame.AppendOffset(nil, frame.StdinEOF, 0)); err != nil {
		return err
	}
	for {
		switch t, _, err := s.Next(); {
		case err != nil:
			return err
		case t == frame.Exit:
			return nil
		}
	}
}

// host is the process of a session's host, by its number there.
func (a *onHost) host(session string) (string, error) {
	pid, err := os.ReadFile(a.root + a.link.DataDir + "/" + place.SessionsDir + "/" + session + "/lock")
	return strings.TrimSpace(string(pid)), err
}

// memory is what hosts of sessions take, in KiB: all of it that is resident, with
// the pages of the program's file, which all hosts have in common; what is no
// file's; and what is a host's own with its share of the rest.
type memory struct{ resident, anonymous, share []int }

func (m *memory) add(a *onHost, s *agentclient.Stream) error {
	pid, err := a.host(s.Session)
	if err != nil {
		return err
	}
	for _, f := range []struct {
		file, key string
		to        *[]int
	}{{"status", "VmRSS", &m.resident}, {"status", "RssAnon", &m.anonymous}, {"smaps_rollup", "Pss", &m.share}} {
		text, err := os.ReadFile(a.root + "/proc/" + pid + "/" + f.file)
		if err != nil {
			return err
		}
		_, rest, _ := strings.Cut(string(text), "\n"+f.key+":")
		var kib int
		if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
			return fmt.Errorf("cannot read %s: %w", f.key, err)
		}
		*f.to = append(*f.to, kib)
	}
	return nil
}

func (m *memory) tell(what string) {
	mib := func(kib int) float64 { return float64(kib) / 1024 }
	n := len(m.resident)
	for _, l := range [][]int{m.resident, m.anonymous, m.share} {
		slices.Sort(l)
	}
	fmt.Printf("%-66s %8.2f MiB (at most %.2f; no file's %.2f; its share %.2f)\n", what+", resident:",
		mib(m.resident[n/2]), mib(m.resident[n-1]), mib(m.anonymous[n/2]), mib(m.share[n/2]))
}
