package tree

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"sync"
)

// RelayOptions say what a relay's caller hears, from several goroutines.
type RelayOptions struct {
	Trouble  func(Problem)
	Progress func(files, bytes int64)
	// Wide is told once when a file passes for which lanes are worth while.
	Wide func()
}

// Relay passes a copy from a sender to a receiver, until the receiver has said
// its last word. It looks at what passes and takes part in nothing. It closes
// the connections.
func Relay(ctx context.Context, from, to net.Conn, o RelayOptions) (Result, error) {
	ctx, end := context.WithCancelCause(ctx)
	defer end(nil)
	y := &relaying{o: o}
	down, up := newLane(ctx, from), newLane(ctx, to)
	var wg sync.WaitGroup
	wg.Go(func() { end(pass(down, up, y.fromSender)) })
	err := pass(up, down, y.fromReceiver)
	if y.result == nil {
		if ctx.Err() != nil {
			err = context.Cause(ctx)
		}
		end(err)
	}
	down.close() // the last word has gone to the sender by then
	end(nil)
	up.close()
	wg.Wait()
	switch {
	case y.result == nil:
		return Result{}, err
	case y.result.Error != nil:
		return *y.result, &Error{Code: y.result.Error.Code, Msg: y.result.Error.Message, Hint: y.result.Error.Hint}
	}
	return *y.result, nil
}

// pass moves frames one way until look or the connection ends that.
func pass(from, to *lane, look func(Type, []byte) error) error {
	for {
		t, p, err := from.Next()
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		if err != nil {
			return err
		}
		if t == Noop { // each connection has its own
			continue
		}
		if err := to.put(func(b []byte) []byte { return AppendRaw(b, t, p) }); err != nil {
			return err
		}
		if err := look(t, p); err != nil {
			return err
		}
	}
}

type relaying struct {
	o      RelayOptions
	wide   bool
	result *Result
}

func (y *relaying) fromSender(t Type, p []byte) error {
	switch t {
	case Trouble:
		return y.trouble(p)
	case Large:
		f, err := parseLarge(p)
		if err == nil && f.size >= wideFrom && !y.wide && y.o.Wide != nil {
			y.wide = true
			y.o.Wide()
		}
		return err
	}
	return nil
}

func (y *relaying) fromReceiver(t Type, p []byte) error {
	switch t {
	case Trouble:
		return y.trouble(p)
	case Ack:
		f := fields{p: p}
		files, bytes := f.count(), f.count()
		if err := f.end(); err != nil {
			return err
		}
		if y.o.Progress != nil {
			y.o.Progress(files, bytes)
		}
	case Done:
		var r Result
		if len(p) > maxDoc || json.Unmarshal(p, &r) != nil {
			return malformed("a result that is no JSON")
		}
		y.result = &r
		return errOver
	}
	return nil
}

func (y *relaying) trouble(p []byte) error {
	var problem Problem
	if len(p) > maxDoc || json.Unmarshal(p, &problem) != nil {
		return malformed("a problem that is no JSON")
	}
	if y.o.Trouble != nil {
		y.o.Trouble(problem)
	}
	return nil
}
