package shim_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/agentd/shim"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/programs"
	"fleet.example/fleet/core/wire"
)

var bin string

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, &bin, func(dir string) error { return programs.Build(dir, nil, "agentd-shim") }))
}

// patience bounds every wait; nothing here is that slow.
const patience = time.Minute

// host is a real shim with one session.
type host struct {
	t   *testing.T
	cfg shim.Config
	// idle gets the byte with which the shim says that it let go of the session.
	ready *bufio.Reader
	cmd   *exec.Cmd
}

func begin(t *testing.T, change func(*shim.Config), argv ...string) *host {
	t.Helper()
	dir, err := os.MkdirTemp("", "fs") // short: the socket lies in it
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	h := &host{t: t, cfg: shim.Config{ID: "s_1", Dir: dir, Socket: dir + "/s", Token: "fx_t", Argv: argv, Cwd: "/", Env: []string{"PATH=" + os.Getenv("PATH"), "TERM=dumb"}}}
	if change != nil {
		change(&h.cfg)
	}
	in, inW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	ready, readyW, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	h.cmd = exec.Command(filepath.Join(bin, "agentd-shim"))
	h.cmd.Stdin, h.cmd.ExtraFiles = in, []*os.File{readyW}
	if err := h.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	in.Close()
	readyW.Close()
	t.Cleanup(func() {
		inW.Close()
		h.cmd.Process.Kill()
		h.cmd.Wait()
		ready.Close()
	})
	b, err := json.Marshal(h.cfg)
	if err == nil {
		_, err = inW.Write(append(b, '\n'))
	}
	if err != nil {
		t.Fatal(err)
	}
	ready.SetReadDeadline(time.Now().Add(patience))
	h.ready = bufio.NewReader(ready)
	if c, err := h.ready.ReadByte(); err != nil || c != '+' {
		t.Fatalf("the shim says %q, %v", c, err)
	}
	return h
}

// letGo waits until the shim is done with its session.
func (h *host) letGo() {
	h.t.Helper()
	if c, err := h.ready.ReadByte(); err != nil && !errors.Is(err, io.EOF) || err == nil && c != shim.Idle {
		h.t.Fatalf("the shim does not let go of its session: %q, %v", c, err)
	}
}

func (h *host) dial() net.Conn {
	h.t.Helper()
	nc, err := net.Dial("unix", h.cfg.Socket)
	if err != nil {
		h.t.Fatal(err)
	}
	nc.SetDeadline(time.Now().Add(patience))
	if _, err := nc.Write(frame.Append(nil, frame.Hello, []byte(h.cfg.Token))); err != nil {
		h.t.Fatal(err)
	}
	return nc
}

// ask sends one short request.
func (h *host) ask(t frame.Type, payload string) (frame.Type, []byte) {
	h.t.Helper()
	nc := h.dial()
	defer nc.Close()
	if _, err := nc.Write(frame.Append(nil, t, []byte(payload))); err != nil {
		h.t.Fatal(err)
	}
	got, p, err := frame.NewReader(nc).Next()
	if err != nil {
		h.t.Fatalf("%c is answered with %v", t, err)
	}
	return got, bytes.Clone(p)
}

func (h *host) clients() int {
	h.t.Helper()
	t, p := h.ask(frame.Query, "")
	var info frame.InfoAnswer
	if t != frame.Info || frame.ParseJSON(p, &info) != nil {
		h.t.Fatalf("%c %s", t, p)
	}
	return info.Clients
}

type client struct {
	net.Conn
	*frame.Reader
}

// attach attaches and returns the first frame that comes back.
func (h *host) attach(req frame.AttachRequest) (client, frame.Type, []byte) {
	h.t.Helper()
	nc := h.dial()
	if _, err := nc.Write(frame.AppendJSON(nil, frame.Attach, req)); err != nil {
		h.t.Fatal(err)
	}
	c := client{nc, frame.NewReader(nc)}
	t, p, err := c.Next()
	if err != nil {
		h.t.Fatal(err)
	}
	return c, t, p
}

func (h *host) attached(req frame.AttachRequest) client {
	h.t.Helper()
	c, t, p := h.attach(req)
	if t != frame.Attached {
		h.t.Fatalf("%c: %s", t, p)
	}
	return c
}

// follow reads to the end, acknowledging all, and returns the output.
func (c client) follow() (out []byte, exit frame.ExitStatus, err error) {
	for {
		kind, p, err := c.Next()
		if err != nil {
			return out, exit, fmt.Errorf("after %d bytes: %w", len(out), err)
		}
		switch kind {
		case frame.Stdout, frame.Stderr:
			_, data, err := frame.ParseData(p)
			if err != nil {
				return out, exit, err
			}
			out = append(out, data...)
			c.Write(frame.AppendOffset(nil, frame.Ack, int64(len(out)))) // the last one finds nobody
		case frame.Exit:
			return out, exit, frame.ParseJSON(p, &exit)
		case frame.Error, frame.Lost:
			return out, exit, fmt.Errorf("%c %s", kind, p)
		}
	}
}

func (c client) followed(t *testing.T) ([]byte, frame.ExitStatus) {
	t.Helper()
	out, exit, err := c.follow()
	if err != nil {
		t.Fatal(err)
	}
	return out, exit
}

func (h *host) waitFor(what string, is func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(patience); !is(); {
		if time.Now().After(deadline) {
			h.t.Fatalf("it does not come to this: %s", what)
		}
		time.Sleep(5 * time.Millisecond)
	}
}

// TestClientsOfAQuietSessionComeAndGo: nothing that it writes tells the shim
// that one of them has left.
func TestClientsOfAQuietSessionComeAndGo(t *testing.T) { // R34
	h := begin(t, nil, "sleep", "1000")
	for range 150 {
		h.attached(frame.AttachRequest{From: -1}).Close()
	}
	h.waitFor("no client is left", func() bool { return h.clients() == 0 })
	if kind, p := h.ask(frame.Signal, "TERM"); kind != frame.Done {
		t.Fatalf("%c %s", kind, p)
	}
	if _, exit := h.attached(frame.AttachRequest{}).followed(t); exit.Signal != "TERM" || exit.Code != 143 {
		t.Errorf("%+v", exit)
	}
	h.letGo()
}

func TestOneClientTooManyIsToldSoAndTheSessionCanBeEnded(t *testing.T) {
	h := begin(t, nil, "sleep", "1000")
	var all []client
	for range 64 {
		all = append(all, h.attached(frame.AttachRequest{From: -1}))
	}
	c, kind, p := h.attach(frame.AttachRequest{From: -1})
	c.Close()
	if kind != frame.Error || !strings.Contains(string(p), wire.CodeBusy) || !strings.Contains(string(p), "64 clients") {
		t.Fatalf("%c %s", kind, p)
	}
	if n := h.clients(); n != 64 {
		t.Errorf("%d clients", n)
	}
	if kind, p := h.ask(frame.Signal, "KILL"); kind != frame.Done {
		t.Fatalf("%c %s", kind, p)
	}
	for _, c := range all {
		if _, exit := c.followed(t); exit.Signal != "KILL" {
			t.Fatalf("%+v", exit)
		}
		c.Close()
	}
}

// TestAClientThatComesBackTakesThePlaceOfItsDeadConnection, which would hold the
// command up for as long as nobody knows that it is dead.
func TestAClientThatComesBackTakesThePlaceOfItsDeadConnection(t *testing.T) { // R34
	const total = 4_000_000
	h := begin(t, func(c *shim.Config) { c.Limit = 1 << 20 }, "head", "-c", strconv.Itoa(total), "/dev/zero")
	dead := h.attached(frame.AttachRequest{Client: "one"}) // and reads nothing, acknowledges nothing
	defer dead.Close()
	other := h.attached(frame.AttachRequest{Client: "two"})
	type followed struct {
		n   int
		err error
	}
	done := make(chan followed, 1)
	go func() { // a client of another name stays
		out, _, err := other.follow()
		done <- followed{len(out), err}
	}()
	out, exit := h.attached(frame.AttachRequest{Client: "one"}).followed(t)
	if len(out) != total || exit.Code != 0 || exit.End != total {
		t.Errorf("%d bytes, %+v", len(out), exit)
	}
	if f := <-done; f.n != total || f.err != nil {
		t.Errorf("the other client has %d bytes: %v", f.n, f.err)
	}
	if _, err := io.Copy(io.Discard, dead); errors.Is(err, os.ErrDeadlineExceeded) {
		t.Error("the dead connection is still open")
	}
}

// TestAJobThatOutlivesItsTerminalHoldsNothing: a shell that was left with
// something running in the background is over.
func TestAJobThatOutlivesItsTerminalHoldsNothing(t *testing.T) {
	h := begin(t, func(c *shim.Config) { c.PTY, c.Stdin = &wire.PTY{Term: "dumb", Rows: 24, Cols: 80}, true },
		"sh", "-c", `trap "" HUP; sleep 1000 & echo "job $!."; exit 3`)
	out, exit := h.attached(frame.AttachRequest{Writer: "w", Client: "w"}).followed(t)
	if exit.Code != 3 {
		t.Errorf("%+v", exit)
	}
	var job int
	if _, err := fmt.Sscanf(string(out), "job %d.", &job); err != nil {
		t.Fatalf("%q", out)
	}
	defer syscall.Kill(job, syscall.SIGKILL)
	h.letGo()
	if err := syscall.Kill(job, 0); err != nil {
		t.Errorf("the job is gone as well: %v", err)
	}
	if e, err := shim.ReadExit(h.cfg.Dir); err != nil || e.Code != 3 || e.End != int64(len(out)) {
		t.Errorf("%+v, %v", e, err)
	}
}

func TestATerminalFollowsItsSize(t *testing.T) {
	h := begin(t, func(c *shim.Config) { c.PTY, c.Stdin = &wire.PTY{Term: "dumb", Rows: 24, Cols: 80}, true },
		"sh", "-c", `trap 'stty size; exit' WINCH; stty size; while :; do sleep 0.05; done`)
	c := h.attached(frame.AttachRequest{Writer: "w"})
	defer c.Close()
	resized := false
	var out []byte
	for {
		kind, p, err := c.Next()
		if err != nil {
			t.Fatal(err)
		}
		if kind == frame.Exit {
			break
		}
		if kind == frame.Stdout {
			out = append(out, p[8:]...)
		}
		if !resized && bytes.Contains(out, []byte("24 80")) {
			resized = true
			if _, err := c.Write(frame.AppendResize(nil, 40, 132)); err != nil {
				t.Fatal(err)
			}
		}
	}
	if !bytes.Contains(out, []byte("40 132")) {
		t.Errorf("%q", out)
	}
}

// TestWhatCannotBeReadAnyMoreIsSaid: a client that hears nothing comes back for it.
func TestWhatCannotBeReadAnyMoreIsSaid(t *testing.T) {
	near, far := net.Pipe()
	defer near.Close()
	go func() { // ends with the connection
		shim.Replay(far, frame.NewReader(far), "s_1", t.TempDir())
		far.Close()
	}()
	near.SetDeadline(time.Now().Add(patience))
	if _, err := near.Write(frame.AppendJSON(nil, frame.Attach, frame.AttachRequest{})); err != nil {
		t.Fatal(err)
	}
	kind, p, err := frame.NewReader(near).Next()
	if err != nil || kind != frame.Error || !strings.Contains(string(p), "cannot read what is kept") {
		t.Fatalf("%c %s, %v", kind, p, err)
	}
}
