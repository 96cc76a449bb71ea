package e2e

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// endless is input that never ends.
type endless struct{ read atomic.Int64 }

func (e *endless) Read(p []byte) (int, error) {
	e.read.Add(int64(len(p)))
	return len(p), nil
}

// Whatever a command does with what it was given, its end is told, and what it
// said before is whole.
func TestAnIllMannedChildEndsLikeAnyOther(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	big := map[string]string{}
	for i := range 10 {
		big[fmt.Sprintf("BIG%d", i)] = strings.Repeat("e", 100_000)
	}
	for _, x := range []struct {
		name   string
		script string
		env    map[string]string
		stdin  io.Reader
		out    string
		code   int
	}{
		{name: "a mebibyte of environment", script: `printf %s "$BIG0$BIG1$BIG2$BIG3$BIG4$BIG5$BIG6$BIG7$BIG8$BIG9" | wc -c`, env: big, out: "1000000\n"},
		{name: "variables that are no UTF-8", script: `printf %s "$ODD"`, env: map[string]string{"ODD": "\xff\xc0\xaf\xed\xa0\x80"}, out: "\xff\xc0\xaf\xed\xa0\x80"},
		{name: "output that is no UTF-8 and has zeros", script: `printf '\377\000\300\257'`, out: "\xff\x00\xc0\xaf"},
		{name: "closed output", script: `echo before; exec >&- 2>&- <&-; exit 4`, out: "before\n", code: 4},
		{name: "stdin that is never read", script: `echo here; exit 5`, stdin: &endless{}, out: "here\n", code: 5},
		{name: "stdin that is closed", script: `exec <&-; echo here; exit 6`, stdin: &endless{}, out: "here\n", code: 6},
	} {
		t.Run(x.name, func(t *testing.T) {
			var out bytes.Buffer
			_, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", x.script}, Env: x.env}, agentclient.Attachment{Stdin: x.stdin, Stdout: &out})
			if err != nil || exit.Code != x.code || exit.Gone || out.String() != x.out {
				t.Errorf("%+v, %v, %.100q", exit, err, out.String())
			}
		})
	}
}

// What a client sends to a command that does not read waits with the client.
func TestInputThatNobodyReadsIsNotKept(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	in, held := &endless{}, make(chan string, 1)
	done := make(chan error, 1)
	go func() {
		_, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "echo up; exec sleep 1000"}},
			agentclient.Attachment{Stdin: in, Stdout: said(held)})
		if err == nil && exit.Signal != "KILL" {
			err = fmt.Errorf("%+v", exit)
		}
		done <- err
	}()
	<-held
	last := int64(-1)
	m.await("the input to stop", func() bool {
		now := in.read.Load()
		still := now == last && now > 0
		last = now
		return still
	})
	if last > 16<<20 {
		t.Errorf("%d bytes were taken", last)
	}
	list, err := c.Sessions(ctx(t))
	if err != nil || len(list.Sessions) != 1 {
		t.Fatal(list, err)
	}
	if _, err := c.Signal(ctx(t), list.Sessions[0].ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// said tells of the first output.
type said chan string

func (s said) Write(p []byte) (int, error) {
	select {
	case s <- string(p):
	default:
	}
	return len(p), nil
}

// A command that ignores every signal that can be ignored goes on, and KILL ends
// it.
func TestAChildThatIgnoresSignals(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	up := make(said, 1)
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "trap '' TERM INT HUP QUIT; echo up; while :; do sleep 0.1; done"}})
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan string, 1)
	go func() {
		exit, _, err := c.Attach(ctx(t), s.ID, 0, agentclient.Attachment{Stdout: up})
		done <- fmt.Sprint(err, " ", exit != nil && exit.Signal == "KILL")
	}()
	<-up
	for _, sig := range []string{"TERM", "INT", "HUP", "QUIT"} {
		if _, err := c.Signal(ctx(t), s.ID, sig); err != nil {
			t.Fatal(err)
		}
	}
	if one, err := c.Session(ctx(t), s.ID); err != nil || one.State != wire.SessionRunning {
		t.Fatal(one, err)
	}
	if _, err := c.Signal(ctx(t), s.ID, "KILL"); err != nil {
		t.Fatal(err)
	}
	if got := <-done; got != "<nil> true" {
		t.Error(got)
	}
}

// A command that leaves a process behind, which holds its output open, has ended
// all the same.
func TestAChildThatForksAway(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	var out bytes.Buffer
	_, exit, err := m.client().Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "setsid sleep 1000 & echo $!; exit 3"}}, agentclient.Attachment{Stdout: &out})
	if pid, perr := strconv.Atoi(strings.TrimSpace(out.String())); perr != nil {
		t.Error(out.String())
	} else {
		defer syscall.Kill(pid, syscall.SIGKILL)
	}
	if err != nil || exit.Code != 3 || exit.Gone {
		t.Error(exit, err)
	}
}

// A command that floods and is not followed takes no more of the disk than its
// spool may have, and whoever comes later is told what is missing.
func TestAChildThatFloodsIsBounded(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	const limit, size = 4 << 20, 200 << 20
	s, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"head", "-c", fmt.Sprint(size), "/dev/zero"}, Spool: &wire.SpoolPolicy{LimitBytes: limit, Policy: wire.SpoolDropOldest}})
	if err != nil {
		t.Fatal(err)
	}
	most := int64(0)
	m.await("its end", func() bool {
		out, _ := exec.Command("du", "-sB1", m.data+"/sessions/"+s.ID+"/spool").Output()
		var n int64
		fmt.Sscan(string(out), &n)
		most = max(most, n)
		one, err := c.Session(ctx(t), s.ID)
		return err == nil && one.State == wire.SessionExited
	})
	if most > 3*limit {
		t.Errorf("%d bytes on the disk, for a limit of %d", most, limit)
	}
	var got counting
	missing := int64(0)
	exit, at, err := c.Attach(ctx(t), s.ID, 0, agentclient.Attachment{Stdout: &got, Lost: func(from, to int64) { missing += to - from }})
	if err != nil || exit.Code != 0 || at != size || missing == 0 || int64(got)+missing != size {
		t.Errorf("%+v, %v: %d bytes came, %d are missing, of %d", exit, err, got, missing, size)
	}
}

// The resources that a command took are told at its end, and a core dump.
func TestTheEndTellsWhatItTook(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	_, exit, err := m.client().Run(ctx(t), wire.SessionRequest{Argv: []string{"sh", "-c", "ulimit -c unlimited; i=0; while [ $i -lt 20000 ]; do i=$((i+1)); done; kill -SEGV $$"}, Dir: m.root}, agentclient.Attachment{})
	if err != nil || exit.Signal != "SEGV" || exit.Code != 139 || exit.UserS+exit.SystemS <= 0 || exit.MaxRSS <= 0 {
		t.Fatalf("%+v, %v", exit, err)
	}
	var limit syscall.Rlimit
	pattern, _ := os.ReadFile("/proc/sys/kernel/core_pattern")
	if syscall.Getrlimit(syscall.RLIMIT_CORE, &limit); limit.Max > 0 && strings.HasPrefix(string(pattern), "core") && !exit.Core {
		t.Errorf("no word of the core dump: %+v", exit)
	}
}

// A thousand at once: as many as may run do, the others are refused in words, the
// agent stays small, and afterwards all is as before.
func TestAThousandSessionsAtOnce(t *testing.T) { // R34
	m, _, _ := installed(t)
	m.start()
	c := m.client()
	var began, refused atomic.Int64
	var wg sync.WaitGroup
	slots := make(chan struct{}, 64) // connections at a time
	for range 1000 {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			_, err := c.Create(ctx(t), wire.SessionRequest{Argv: []string{"sleep", "1000"}})
			switch f := fault.Of(err); {
			case err == nil:
				began.Add(1)
			case f.Exit == fault.Refused && strings.Contains(f.Msg, "sessions are running already"):
				refused.Add(1)
			default:
				t.Errorf("%v (%s)", err, f.Code)
			}
		})
	}
	wg.Wait()
	if began.Load() < 200 || began.Load()+refused.Load() != 1000 || refused.Load() == 0 {
		t.Errorf("%d began, %d were refused", began.Load(), refused.Load())
	}
	if rss := statusKiB(t, m.cmd.Process.Pid, "VmHWM"); rss > 96<<10 {
		t.Errorf("the agent took %.0f KiB", rss)
	}
	list, err := c.Sessions(ctx(t))
	if err != nil || int64(len(list.Sessions)) != began.Load() {
		t.Fatalf("%d are listed of %d: %v", len(list.Sessions), began.Load(), err)
	}
	for _, s := range list.Sessions {
		if _, err := c.Signal(ctx(t), s.ID, "KILL"); err != nil {
			t.Fatal(err)
		}
	}
	m.await("room", func() bool {
		_, exit, err := c.Run(ctx(t), wire.SessionRequest{Argv: []string{"true"}}, agentclient.Attachment{})
		return err == nil && exit.Code == 0
	})
}
