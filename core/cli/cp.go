package cli

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"net"
	"path"
	"strings"
	"sync"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/carry"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/splice"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

func cpCommand(reach Reach) *command.Command {
	return &command.Command{Name: "cp", Group: groupReach, Args: "SRC DST", Summary: "copy files to, from and between machines",
		Help: `SRC and DST are MACHINE:PATH, or a path here; one at least is on a machine. A path
of a machine without / at its beginning begins in the account's home directory, and
MACHINE: is that directory. A path here that has a colon before any slash is written
with ./ before it.

A directory as DST takes the copy in under SRC's last name; any other name is the
copy's own. SRC with /. at its end is what is in the directory. Files and directories
that are new get SRC's permissions, without setuid, setgid and sticky, and times; what
is overwritten keeps its own mode, owner and attributes. With -r, symbolic links are
copied as links and none is followed; FIFOs, sockets and devices are named and left
out. A file appears whole or not at all.

A connection that is lost is made again, and the copy goes on. Of a large file the same
command goes on later, too, with what an interrupted one had brought.`,
		Min: 2, Max: 2,
		Flags: append(command.JSONFlags(false), &ufcli.BoolFlag{Name: "r", Aliases: []string{"recursive"}, Usage: "copy directories with everything in them"}),
		Run: func(ctx context.Context, c *command.Call) error {
			src, dst := parsePlace(c.Arg(0)), parsePlace(c.Arg(1))
			if src.machine == "" && dst.machine == "" {
				return fault.Usagef("neither %q nor %q is on a machine", c.Arg(0), c.Arg(1)).WithHint("MACHINE:PATH names a file of one; cp(1) copies here")
			}
			if err := checkPlaces(src, dst, c.Bool("r")); err != nil {
				return err
			}
			return openPlace(ctx, c, reach, src, func() error {
				return openPlace(ctx, c, reach, dst, func() error {
					return runCopy(ctx, c, src, dst)
				})
			})
		}}
}

// checkPlaces refuses, before anything is asked, what is wrong in the words and
// what is not here to be copied.
func checkPlaces(src, dst *copyPlace, recursive bool) error {
	for _, p := range []*copyPlace{src, dst} {
		if p.machine != "" {
			if err := fanout.CheckWord(p.machine); err != nil {
				return err
			}
		} else if p.path == "" {
			return fault.Usagef("an empty path names nothing")
		}
	}
	switch {
	case src.machine == "":
		s, err := tree.OpenSource(tree.Local{}, src.path, recursive)
		if err != nil {
			return orRefused(err)
		}
		s.Close()
	case dst.machine == "":
		d, err := tree.OpenDestination(tree.Local{}, dst.path, src.base(), "")
		if err != nil {
			return orRefused(err)
		}
		d.Close()
	}
	return nil
}

func orRefused(err error) error {
	if final := refused(err); final != nil {
		return final
	}
	return err
}

// copyPlace is one end of a copy.
type copyPlace struct {
	word    string
	machine string // "" is here
	path    string

	way    Target
	client *agentclient.Client
	id     string // of the copy there: both may be the same machine
	as     string // where the copy goes, once an attempt has found that out
}

// parsePlace tells MACHINE:PATH from a path here, as scp does.
func parsePlace(word string) *copyPlace {
	colon, slash := strings.IndexByte(word, ':'), strings.IndexByte(word, '/')
	if colon <= 0 || slash >= 0 && slash < colon {
		return &copyPlace{word: word, path: word}
	}
	return &copyPlace{word: word, machine: word[:colon], path: word[colon+1:]}
}

// base is what the place is called: its name in a directory. It is taken from
// what the person wrote, never from what a machine says.
func (p *copyPlace) base() string {
	trimmed := strings.TrimRight(p.path, "/")
	switch b := path.Base(trimmed); {
	case trimmed == "", strings.HasSuffix(trimmed, "/."), strings.HasSuffix(trimmed, "/.."), b == ".", b == "..", p.machine != "" && trimmed == "~":
		return "."
	default:
		return b
	}
}

func openPlace(ctx context.Context, c *command.Call, reach Reach, p *copyPlace, do func() error) error {
	if p.machine == "" {
		return do()
	}
	m, err := reach.Find(ctx, c, p.machine)
	if err != nil {
		return err
	}
	return opened(ctx, fanout.Alone(c, m), reach, func(_ *fanout.One, t Target, a *agentclient.Client) error {
		id := make([]byte, 16)
		rand.Read(id)
		p.way, p.client, p.id = t, a, hex.EncodeToString(id)
		return do()
	})
}

// maxProblems bounds those that a document names.
const maxProblems = 1000

// copyRun is one `fleet cp`.
type copyRun struct {
	call     *command.Call
	src, dst *copyPlace
	show     *copyProgress

	mu       sync.Mutex
	failed   int64
	problems []wire.CopyProblem
	said     map[wire.CopyProblem]bool // in this attempt or one before
	moved    int64                     // files and bytes of this attempt: whether there is any progress
}

func runCopy(ctx context.Context, c *command.Call, src, dst *copyPlace) error {
	r := &copyRun{call: c, src: src, dst: dst, problems: []wire.CopyProblem{}, said: map[wire.CopyProblem]bool{}, show: newCopyProgress(c)}
	began := time.Now()
	result, err := r.attempts(ctx)
	r.show.done()
	if err != nil {
		return err
	}
	if r.failed == 1 && result.Files+result.Directories+result.Links == 0 {
		p := r.problems[0] // the one thing that was to be copied
		return agentclient.Refusal(wire.ErrorDetail{Code: p.Code, Message: p.Message})
	}
	if c.WantsJSON() {
		if err := c.Print(wire.Copy{Schema: wire.SchemaCopy, Source: wire.Bytes(src.word), Destination: wire.Bytes(dst.word),
			Files: result.Files, Directories: result.Directories, Symlinks: result.Links, Bytes: result.Bytes, KeptBytes: result.Kept,
			Failed: r.failed, Problems: r.problems, ElapsedS: time.Since(began).Seconds()}); err != nil {
			return err
		}
	}
	if r.failed > 0 {
		return fault.New(fault.Partial, "partial", "%d of %d not copied", r.failed, r.failed+result.Files+result.Directories+result.Links)
	}
	return nil
}

// attempts copies until that is done, is refused, or no connection brings
// anything for too long.
func (r *copyRun) attempts(ctx context.Context) (tree.Result, error) {
	var since time.Time // of the last progress
	for n := 0; ; n++ {
		r.mu.Lock()
		r.moved, r.failed, r.problems = 0, 0, r.problems[:0] // each attempt names them anew
		r.mu.Unlock()
		result, begun, err := r.attempt(ctx, n > 0)
		switch {
		case err == nil:
			return result, nil
		case ctx.Err() != nil:
			return result, ctx.Err()
		}
		if final := refused(err); final != nil {
			return result, final
		}
		if n == 0 && !begun {
			return result, err
		}
		r.mu.Lock()
		fresh := r.moved > 0 || since.IsZero()
		r.mu.Unlock()
		if fresh {
			since = time.Now()
			r.note("the connection is lost, and made again: " + err.Error())
		}
		if time.Since(since) > agentclient.DefaultPatience {
			return result, fault.New(fault.Unreachable, "agent_unreachable", "the copy was cut: %w", err).
				WithHint("the same command goes on with large files")
		}
		select {
		case <-ctx.Done():
			return result, ctx.Err()
		case <-time.After(min(time.Duration(n+1)*200*time.Millisecond, 5*time.Second)):
		}
	}
}

// refused is what a failure is for the person if another attempt would fail
// alike, or nil.
func refused(err error) error {
	if e := new(tree.Error); errors.As(err, &e) {
		return agentclient.Refusal(wire.ErrorDetail{Code: e.Code, Message: e.Msg, Hint: e.Hint})
	}
	if errors.Is(err, tree.ErrMalformed) {
		return fault.New(fault.Failure, wire.CodeBadRequest, "%w", err)
	}
	var f *fault.Error
	if errors.As(err, &f) && f.Exit != fault.Unreachable {
		return err
	}
	return nil
}

// carrier makes a copy's attempt itself, if it can: the way to a machine, which
// is nearer to it than this process.
type carrier interface {
	Carry(ctx context.Context, c carry.Copy) (o carry.Outcome, done bool, err error)
}

// attempt copies once. begun says that it got as far as the machines.
func (r *copyRun) attempt(ctx context.Context, again bool) (_ tree.Result, begun bool, err error) {
	recursive := r.call.Bool("r")
	ask := func(p *copyPlace, op, base string) wire.TreeRequest {
		return wire.TreeRequest{Op: op, ID: p.id, Path: wire.Bytes(p.path), Base: wire.Bytes(base),
			As: p.as, From: r.src.id, Recursive: recursive, Again: again}
	}
	c := carry.Copy{Trouble: r.trouble, Progress: r.progress}
	far := r.dst
	switch {
	case r.src.machine == "":
		if c.Source, err = tree.OpenSource(tree.Local{}, r.src.path, recursive); err != nil {
			return tree.Result{}, false, err
		}
		defer c.Source.Close()
		r.show.total(c.Source.Size())
		c.Request = ask(r.dst, wire.TreeReceive, r.src.base())
	case r.dst.machine == "":
		if c.Destination, err = tree.OpenDestination(tree.Local{}, r.dst.path, r.src.base(), r.dst.as); err != nil {
			return tree.Result{}, false, err
		}
		defer c.Destination.Close()
		r.dst.as = c.Destination.As()
		far = r.src
		c.Request = ask(r.src, wire.TreeSend, "")
	default:
		return r.relay(ctx, ask)
	}
	var o carry.Outcome
	var done bool
	if by, ok := far.way.(carrier); ok {
		o, done, err = by.Carry(ctx, c)
	}
	if !done {
		o, err = c.Run(ctx, far.client)
	}
	if o.As != "" {
		far.as = o.As
	}
	return o.Result, o.Begun, err
}

// relay copies from machine to machine.
func (r *copyRun) relay(ctx context.Context, ask func(p *copyPlace, op, base string) wire.TreeRequest) (_ tree.Result, begun bool, err error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	var from, to net.Conn
	for sum := wire.TreeSumXXH64; to == nil; {
		send, receive := ask(r.src, wire.TreeSend, ""), ask(r.dst, wire.TreeReceive, r.src.base())
		var sends, receives agentclient.TreeAnswer
		send.Sum = sum
		if from, sends, err = r.src.client.Tree(ctx, send); err != nil {
			return tree.Result{}, false, err
		}
		receive.Sum = sends.Sum
		if to, receives, err = r.dst.client.Tree(ctx, receive); err != nil {
			from.Close()
			return tree.Result{}, false, err
		}
		r.dst.as = receives.As
		if receives.Sum != sends.Sum { // the receiver does not know that one; what was begun ends with the next
			from.Close()
			to.Close()
			to, sum = nil, ""
		}
	}
	result, err := tree.Relay(ctx, from, to, tree.RelayOptions{Trouble: r.trouble, Progress: r.progress, Wide: func() {
		wg.Go(func() {
			carry.Widen(ctx, []carry.Place{{Client: r.src.client, ID: r.src.id}, {Client: r.dst.client, ID: r.dst.id}}, func(lanes []net.Conn) error {
				wg.Go(func() {
					stop := context.AfterFunc(ctx, func() { lanes[0].Close(); lanes[1].Close() })
					defer stop()
					defer lanes[1].Close()
					defer lanes[0].Close()
					splice.Conns(lanes[0], lanes[1])
				})
				return nil
			})
		})
	}})
	return result, true, err
}

// trouble takes note of what is not copied.
func (r *copyRun) trouble(p wire.CopyProblem) {
	r.mu.Lock()
	r.failed++
	if len(r.problems) < maxProblems {
		r.problems = append(r.problems, p)
	}
	first := !r.said[p] && len(r.said) < maxProblems
	if first {
		r.said[p] = true
	}
	r.mu.Unlock()
	if first && !r.call.WantsJSON() {
		r.note(p.Message)
	}
}

func (r *copyRun) note(text string) {
	r.show.done()
	r.call.Notef("fleet cp: %s", text)
}

func (r *copyRun) progress(files, bytes int64) {
	r.mu.Lock()
	r.moved = files + bytes
	r.mu.Unlock()
	r.show.at(files, bytes)
}
