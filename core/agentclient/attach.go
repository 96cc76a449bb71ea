package agentclient

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"net/http/httptrace"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/wire"
)

// Size is a terminal's, in characters.
type Size struct{ Rows, Cols uint16 }

// Attachment is what a client connects with a session. Every field may be left
// out.
type Attachment struct {
	Stdin   io.Reader // its end is passed on, but for ErrDetached
	Stdout  io.Writer
	Stderr  io.Writer
	Signals <-chan string // names without SIG
	Sizes   <-chan Size
	Size    Size

	// From is the output offset from which Run writes: a session that was begun
	// before, and is begun again under its id, goes on there.
	From int64
	// Patience is how long a lost connection is tried again; 0 means
	// DefaultPatience, negative not at all.
	Patience time.Duration
	// Notice is told, in words, when the connection is lost and when it is back.
	Notice func(text string)
	// Connected is told when a connection carries the session, and when none
	// does any more.
	Connected func(bool)
	// Lost is told of output that the machine no longer has.
	Lost func(from, to int64)
}

// DefaultPatience outlasts a laptop's change of networks.
const DefaultPatience = 2 * time.Minute

// ackEvery is how many bytes of output are acknowledged together.
const ackEvery = 32 << 10

// lastWords is how long a connection that takes nothing more is still read.
const lastWords = 5 * time.Second

// ErrDetached says that the attachment ended and the session goes on.
var ErrDetached = errors.New("detached; the session goes on")

// ErrOutput says that what came could not be written on this side.
var ErrOutput = errors.New("cannot write output")

// A signal that comes while nothing is connected is for this side: nobody could
// say when the command would get it.
var (
	ErrInterrupted = errors.New("interrupted; the session goes on")
	ErrNotBegun    = errors.New("interrupted; no command was started")
)

// Run starts a session and stays attached until it ends. The id is set as soon
// as the session may exist, also when an error is returned: a request whose
// answer was lost may have started it, and is followed up under its id.
func (c *Client) Run(ctx context.Context, req wire.SessionRequest, a Attachment) (id string, exit *frame.ExitStatus, err error) {
	req.Stdin = req.Stdin || a.Stdin != nil
	if req.ID == "" {
		req.ID = wire.NewSessionID()
	}
	f := newFollower(a, a.From)
	req.First = f.attach()
	// A request that may have been sent is waited for: only its answer tells
	// whether there is a session, which the signal then goes to.
	sent := make(chan struct{})
	asking, settled := f.apart(ctx, sent)
	var once sync.Once
	s, err := c.Exec(httptrace.WithClientTrace(asking, &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { once.Do(func() { close(sent) }) }}), req)
	if settled() {
		if err == nil {
			s.Close()
			return s.Session, nil, ErrInterrupted
		}
		return "", nil, ErrNotBegun
	}
	if err != nil {
		if id, s, err = c.unanswered(ctx, req.ID, f, sent, err); err != nil {
			return id, nil, err
		}
	}
	exit, _, err = c.follow(ctx, s, s.Session, f)
	return s.Session, exit, err
}

// unanswered follows a request up that may have started a session and brought
// no answer. It returns the session, or its id with what went wrong, or no id
// when there is no session.
func (c *Client) unanswered(ctx context.Context, id string, f *follower, sent <-chan struct{}, err error) (string, *Stream, error) {
	select {
	case <-sent:
	default:
		return "", nil, err
	}
	if f.back.patience < 0 || ctx.Err() != nil || errors.As(err, new(*Error)) {
		return "", nil, err
	}
	if known := fault.Of(err); known != nil && known.Exit == fault.Refused {
		return id, nil, err // as of an agent that was stopped meanwhile: it is not waited for
	}
	f.notice("no answer (" + err.Error() + "), asking again")
	f.back.afresh()
	apart, settled := f.apart(ctx, nil)
	s, again := c.reopen(apart, id, f)
	switch {
	case settled():
		if again == nil {
			s.Close()
		}
		return id, nil, ErrInterrupted
	case isMissing(again):
		return "", nil, err
	}
	return id, s, again
}

func isMissing(err error) bool {
	var refused *Error
	return errors.As(err, &refused) && refused.Detail.Code == wire.CodeNotFound
}

// Attach stays attached to a session from an output offset on (-1: only what is
// to come) until it ends, over any number of connections. It returns the
// offset up to which output was written.
func (c *Client) Attach(ctx context.Context, id string, from int64, a Attachment) (*frame.ExitStatus, int64, error) {
	s, err := c.Open(ctx, id)
	if err != nil {
		return nil, from, err
	}
	return c.follow(ctx, s, id, newFollower(a, from))
}

// follower is one attachment over its connections.
type follower struct {
	Attachment
	at    int64 // the next output byte; -1 until it is known
	input *sendBuffer
	back  comeback
	use   bool        // the last connection has carried the session
	begun sync.Once   // reading input
	held  chan string // a signal that was taken and is for the command
}

// comeback paces the attempts to come back to a session. Patience runs, and the
// gaps grow, from the last time that a connection was of use: one that is made
// and carries nothing is as good as none.
type comeback struct {
	patience time.Duration
	deadline time.Time
	gap      time.Duration
}

const (
	firstGap = 50 * time.Millisecond
	mostGap  = 3 * time.Second
	// ofUse is how long a connection has to last to be of use though it brought
	// no output.
	ofUse = 5 * time.Second
)

func (b *comeback) afresh() { b.deadline, b.gap = time.Now().Add(b.patience), firstGap }

// wait waits before the next attempt.
func (b *comeback) wait(ctx context.Context) error {
	t := time.NewTimer(b.gap)
	defer t.Stop()
	b.gap = min(2*b.gap, mostGap)
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}

// apart is for while nothing is connected: a signal ends its context, unless
// what is waited for is on its way. settled ends that and reports whether it
// came so.
func (f *follower) apart(ctx context.Context, onItsWay <-chan struct{}) (_ context.Context, settled func() bool) {
	ctx, cancel := context.WithCancelCause(ctx)
	done, ended := make(chan struct{}), make(chan struct{})
	go func() { // ends when settled is called
		defer close(ended)
		select {
		case <-done:
		case <-onItsWay:
		case sig := <-f.Signals:
			select {
			case <-onItsWay:
				f.held <- sig
			default:
				cancel(ErrInterrupted)
			}
		}
	}()
	return ctx, func() bool {
		close(done)
		<-ended
		interrupted := errors.Is(context.Cause(ctx), ErrInterrupted)
		cancel(nil)
		return interrupted
	}
}

func (f *follower) connected(is bool) {
	if f.Connected != nil {
		f.Connected(is)
	}
}

func newFollower(a Attachment, from int64) *follower {
	f := &follower{Attachment: a, at: from, input: newSendBuffer(), held: make(chan string, 1)}
	if f.back.patience = a.Patience; a.Patience == 0 {
		f.back.patience = DefaultPatience
	}
	f.back.afresh()
	return f
}

// attach is the first frame of a stream.
func (f *follower) attach() []byte {
	req := frame.AttachRequest{From: f.at, Client: f.input.writer, Rows: f.Size.Rows, Cols: f.Size.Cols}
	if f.Stdin != nil {
		req.Writer = f.input.writer
	}
	return frame.AppendJSON(nil, frame.Attach, req)
}

func (c *Client) follow(ctx context.Context, s *Stream, id string, f *follower) (*frame.ExitStatus, int64, error) {
	defer f.input.stop()
	for {
		begun, at := time.Now(), f.at
		exit, err := f.serve(ctx, s)
		if exit != nil || err == nil {
			return exit, f.at, nil
		}
		var final *finalError
		switch {
		case ctx.Err() != nil:
			return nil, f.at, ctx.Err()
		case errors.As(err, &final):
			return nil, f.at, final.err
		case f.back.patience < 0:
			return nil, f.at, lost(id, err)
		}
		f.connected(false)
		f.notice("connection lost (" + err.Error() + "), reconnecting")
		useless := !f.use || f.at == at && time.Since(begun) < ofUse
		switch {
		case !useless:
			f.back.afresh()
		case time.Now().After(f.back.deadline):
			return nil, f.at, lost(id, err)
		}
		apart, settled := f.apart(ctx, nil)
		if useless {
			err = f.back.wait(apart)
		}
		if !useless || err == nil {
			s, err = c.reopen(apart, id, f)
		}
		if settled() {
			if err == nil {
				s.Close()
			}
			return nil, f.at, ErrInterrupted
		}
		if err != nil {
			return nil, f.at, err
		}
		f.notice("reconnected")
	}
}

func lost(id string, err error) error {
	return fault.New(fault.Unreachable, "connection_lost", "the connection to session %s is lost: %w", id, err).
		WithHint("the session goes on; fleet attach MACHINE %s shows the rest", id)
}

// reopen tries until it succeeds or patience ends. Why it does not succeed yet is
// said once, and again when it changes.
func (c *Client) reopen(ctx context.Context, id string, f *follower) (*Stream, error) {
	said := ""
	for {
		s, err := c.Open(ctx, id)
		switch {
		case err == nil:
			return s, nil
		case isMissing(err):
			return nil, err
		case time.Now().After(f.back.deadline):
			return nil, lost(id, err)
		}
		if why := err.Error(); why != said && ctx.Err() == nil {
			said = why
			f.notice("not reconnected yet: " + why)
		}
		if err := f.back.wait(ctx); err != nil {
			return nil, err
		}
	}
}

func (f *follower) notice(text string) {
	if f.Notice != nil {
		f.Notice(text)
	}
}

// finalError is one that another connection would not mend.
type finalError struct{ err error }

func (e *finalError) Error() string { return e.err.Error() }

// serve uses one connection until it or the session ends.
func (f *follower) serve(ctx context.Context, s *Stream) (*frame.ExitStatus, error) {
	stop := context.AfterFunc(ctx, func() { s.Close() })
	defer stop()
	defer s.Close()
	f.use = false
	if !s.begun {
		if _, err := s.Write(f.attach()); err != nil {
			return nil, err
		}
	}
	t, p, err := s.Next()
	if err != nil {
		return nil, err
	}
	if t == frame.Error {
		return nil, refusedFrame(p)
	}
	var attached frame.AttachedAnswer
	if t != frame.Attached || frame.ParseJSON(p, &attached) != nil {
		return nil, &finalError{frame.ErrMalformed}
	}
	if f.at < 0 {
		f.at = attached.End
	}
	if f.at > attached.End {
		return nil, &finalError{fault.New(fault.NotFound, "output_missing", "the session's output ends at %d on the machine, before %d", attached.End, f.at).
			WithHint("fleet attach without --from shows all that is kept")}
	}
	if f.input.forgotten(attached.Stdin) {
		return nil, &finalError{fault.New(fault.Failure, "input_forgotten", "the session no longer knows how much of this client's input it has taken")}
	}
	f.use = true
	f.connected(true)
	f.begun.Do(func() {
		if f.Stdin != nil {
			go f.input.fill(f.Stdin) // a blocked read of standard input cannot be woken; the process's end ends it
		}
	})
	up := &sender{f: f, s: s, acks: make(chan int64, 1), done: make(chan struct{})}
	var wg sync.WaitGroup
	defer func() {
		close(up.done)
		s.Close() // before waiting: the sender may be in the middle of a write
		wg.Wait()
	}()
	wg.Go(func() {
		if up.run(attached.Stdin) == nil {
			return
		}
		// What takes nothing more may have sent the end of the session before.
		grace := time.NewTimer(lastWords)
		defer grace.Stop()
		select {
		case <-up.done:
		case <-grace.C:
			s.Close()
		}
	})
	return f.receive(s, up)
}

func refusedFrame(p []byte) error {
	var e frame.ErrorDetail
	if err := frame.ParseJSON(p, &e); err != nil {
		return &finalError{err}
	}
	return &finalError{fault.New(fault.Failure, e.Code, "the session's host refuses: %s", e.Message)}
}

// receive writes output where it belongs until the session ends.
func (f *follower) receive(s *Stream, up *sender) (*frame.ExitStatus, error) {
	acked := f.at
	for {
		t, p, err := s.Next()
		if err != nil {
			if err == io.EOF {
				err = io.ErrUnexpectedEOF
			}
			return nil, err
		}
		switch t {
		case frame.Stdout, frame.Stderr:
			offset, data, err := frame.ParseData(p)
			if err != nil {
				return nil, &finalError{err}
			}
			if offset != f.at {
				return nil, &finalError{fmt.Errorf("%w: output at %d, %d expected", frame.ErrMalformed, offset, f.at)}
			}
			w := f.Stdout
			if t == frame.Stderr {
				w = f.Stderr
			}
			if w != nil {
				if _, err := w.Write(data); err != nil {
					return nil, &finalError{fmt.Errorf("%w: %w", ErrOutput, err)}
				}
			}
			f.at += int64(len(data))
		case frame.Lost:
			from, to, err := frame.ParseLost(p)
			if err != nil || from != f.at {
				return nil, &finalError{frame.ErrMalformed}
			}
			if f.Lost != nil {
				f.Lost(from, to)
			}
			f.at = to
		case frame.StdinAck:
			offset, err := frame.ParseOffset(p)
			if err != nil {
				return nil, &finalError{err}
			}
			f.input.acknowledged(offset)
		case frame.Exit:
			var exit frame.ExitStatus
			if err := frame.ParseJSON(p, &exit); err != nil {
				return nil, &finalError{err}
			}
			return &exit, nil
		case frame.Error:
			return nil, refusedFrame(p)
		}
		if f.at-acked >= ackEvery {
			acked = f.at
			up.ack(acked)
		}
	}
}

// sender sends what goes up: input, signals, sizes, acknowledgements.
type sender struct {
	f    *follower
	s    *Stream
	acks chan int64
	done chan struct{}
}

// ack replaces an acknowledgement that was not sent yet.
func (u *sender) ack(offset int64) {
	select {
	case <-u.acks:
	default:
	}
	u.acks <- offset
}

func (u *sender) run(sent int64) error {
	var buf []byte
	eofSent := false
	for {
		chunk, eof, more := u.f.input.from(sent)
		buf = buf[:0]
		switch {
		case len(chunk) > 0:
			buf = frame.AppendData(buf, frame.Stdin, sent, chunk)
			sent += int64(len(chunk))
			buf = u.small(buf) // signals and sizes do not wait for a long input
		case eof && !eofSent:
			buf = frame.AppendOffset(buf, frame.StdinEOF, sent)
			eofSent = true
		default:
			select {
			case <-u.done:
				return nil
			case <-more:
				continue
			case offset := <-u.acks:
				buf = frame.AppendOffset(buf, frame.Ack, offset)
			case sig := <-u.f.held:
				buf = frame.Append(buf, frame.Signal, []byte(sig))
			case sig := <-u.f.Signals:
				buf = frame.Append(buf, frame.Signal, []byte(sig))
			case size := <-u.f.Sizes:
				u.f.Size = size
				buf = frame.AppendResize(buf, size.Rows, size.Cols)
			}
		}
		if _, err := u.s.Write(buf); err != nil {
			return err
		}
	}
}

// small appends what waits besides input.
func (u *sender) small(buf []byte) []byte {
	for {
		select {
		case offset := <-u.acks:
			buf = frame.AppendOffset(buf, frame.Ack, offset)
		case sig := <-u.f.held:
			buf = frame.Append(buf, frame.Signal, []byte(sig))
		case sig := <-u.f.Signals:
			buf = frame.Append(buf, frame.Signal, []byte(sig))
		case size := <-u.f.Sizes:
			u.f.Size = size
			buf = frame.AppendResize(buf, size.Rows, size.Cols)
		default:
			return buf
		}
	}
}

// sendBuffer holds the input that the shim has not taken yet.
type sendBuffer struct {
	writer string

	mu      sync.Mutex
	base    int64 // offset of buf[0]
	buf     []byte
	eof     bool
	stopped bool
	changed chan struct{}
}

func newSendBuffer() *sendBuffer {
	return &sendBuffer{writer: rand.Text()[:16], changed: make(chan struct{})}
}

func (b *sendBuffer) signal() {
	close(b.changed)
	b.changed = make(chan struct{})
}

// fill reads input, never more than the window ahead.
func (b *sendBuffer) fill(r io.Reader) {
	p := make([]byte, frame.MaxData)
	for {
		n, err := r.Read(p)
		b.mu.Lock()
		for len(b.buf)+n > frame.Window && !b.stopped {
			ch := b.changed
			b.mu.Unlock()
			<-ch
			b.mu.Lock()
		}
		if b.stopped {
			b.mu.Unlock()
			return
		}
		b.buf = append(b.buf, p[:n]...)
		b.eof = err != nil && !errors.Is(err, ErrDetached)
		b.signal()
		b.mu.Unlock()
		if err != nil {
			return
		}
	}
}

// from returns the input at offset on, whether it ends there, and a channel
// that is closed when there is more.
func (b *sendBuffer) from(offset int64) (chunk []byte, eof bool, more <-chan struct{}) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if at := offset - b.base; at >= 0 && at < int64(len(b.buf)) {
		chunk = append([]byte(nil), b.buf[at:min(at+frame.MaxData, int64(len(b.buf)))]...)
	}
	return chunk, b.eof, b.changed
}

// forgotten reports whether the other side wants input again that it has taken
// already, and that is not kept here.
func (b *sendBuffer) forgotten(taken int64) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	return taken < b.base
}

func (b *sendBuffer) acknowledged(offset int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if n := offset - b.base; n > 0 && n <= int64(len(b.buf)) {
		b.buf = append(b.buf[:0], b.buf[n:]...)
		b.base = offset
		b.signal()
	}
}

func (b *sendBuffer) stop() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.stopped = true
	b.signal()
}
