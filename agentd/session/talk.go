package session

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"path/filepath"
	"syscall"
	"time"

	"fleet.example/fleet/agentd/shim"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/wire"
)

// dial connects to a session's shim and says Hello. A shim whose socket was
// removed under it is asked to make it again; one that is just about to let its
// lock go is waited for, so that the caller finds it alive or gone.
func (m *Manager) dial(ctx context.Context, r *record) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, askTimeout)
	defer cancel()
	dir := filepath.Join(m.Dir, r.ID)
	asked := false
	for gap := time.Millisecond; ; gap = min(2*gap, 20*time.Millisecond) {
		nc, err := hello(ctx, r)
		absent := errors.Is(err, fs.ErrNotExist)
		if err == nil || !absent && !errors.Is(err, syscall.ECONNREFUSED) && !hungUp(err) || shim.Look(dir) != shim.Alive {
			return nc, err
		}
		if absent && !asked {
			asked = true
			if pid, err := shim.PID(dir); err == nil && pid > 1 && shim.Look(dir) == shim.Alive {
				syscall.Kill(pid, syscall.SIGHUP) // the lock's holder, so no other process
			}
		}
		select {
		case <-ctx.Done():
			return nil, err
		case <-time.After(gap):
		}
	}
}

func hello(ctx context.Context, r *record) (net.Conn, error) {
	var d net.Dialer
	nc, err := d.DialContext(ctx, "unix", r.Socket)
	if err != nil {
		return nil, err
	}
	nc.SetWriteDeadline(time.Now().Add(askTimeout))
	if _, err := nc.Write(frame.Append(nil, frame.Hello, []byte(r.Token))); err != nil {
		nc.Close()
		return nil, err
	}
	nc.SetWriteDeadline(time.Time{})
	return nc, nil
}

// hungUp reports whether a shim ended a connection without a word.
func hungUp(err error) bool {
	return errors.Is(err, io.EOF) || errors.Is(err, syscall.ECONNRESET) || errors.Is(err, syscall.EPIPE)
}

// ask sends one request to a shim and returns its answer. A shim that hung up on
// it was letting go, which the second try waits for.
func (m *Manager) ask(ctx context.Context, r *record, t frame.Type, payload []byte) (frame.Type, []byte, error) {
	got, p, err := m.askOnce(ctx, r, t, payload)
	if hungUp(err) {
		return m.askOnce(ctx, r, t, payload)
	}
	return got, p, err
}

func (m *Manager) askOnce(ctx context.Context, r *record, t frame.Type, payload []byte) (frame.Type, []byte, error) {
	nc, err := m.dial(ctx, r)
	if err != nil {
		return 0, nil, err
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(askTimeout))
	if _, err := nc.Write(frame.Append(nil, t, payload)); err != nil {
		return 0, nil, err
	}
	return frame.NewReader(nc).Next()
}

func (m *Manager) query(ctx context.Context, r *record) (*frame.InfoAnswer, error) {
	t, p, err := m.ask(ctx, r, frame.Query, nil)
	if err != nil {
		return nil, err
	}
	var info frame.InfoAnswer
	if t != frame.Info {
		return nil, frame.ErrMalformed
	}
	return &info, frame.ParseJSON(p, &info)
}

// Signal sends a signal, named without SIG, to the session's process group. In
// the chain of its error may be ErrNotFound, ErrEnded, ErrUnclear or
// ErrBadSignal.
func (m *Manager) Signal(ctx context.Context, id, name string) error {
	r, err := m.load(id)
	if err != nil {
		return err
	}
	t, p, err := m.ask(ctx, r, frame.Signal, []byte(name))
	if err != nil {
		switch shim.Look(filepath.Join(m.Dir, id)) {
		case shim.Gone:
			return ErrEnded
		case shim.Unclear:
			return ErrUnclear
		}
		return fmt.Errorf("cannot reach session host: %w", err)
	}
	if t == frame.Done {
		return nil
	}
	var e frame.ErrorDetail
	if err := frame.ParseJSON(p, &e); err != nil {
		return err
	}
	if e.Code == wire.CodeConflict {
		return ErrEnded
	}
	return fmt.Errorf("%w: %s", ErrBadSignal, e.Message)
}

// Stream is a connection to a session's shim, or, when the shim is gone, nil:
// then Replay serves what is on disk. The caller closes it. In the chain of the
// error may be ErrNotFound or ErrUnclear.
func (m *Manager) Stream(ctx context.Context, id string) (net.Conn, error) {
	r, err := m.load(id)
	if err != nil {
		return nil, err
	}
	nc, err := m.dial(ctx, r)
	if err == nil {
		return nc, nil
	}
	switch shim.Look(filepath.Join(m.Dir, id)) {
	case shim.Gone:
		return nil, nil
	case shim.Unclear:
		return nil, ErrUnclear
	}
	return nil, fmt.Errorf("cannot reach session host: %w", err)
}

// Replay serves one client of a session whose shim is gone.
func (m *Manager) Replay(nc net.Conn, r *frame.Reader, id string) error {
	return shim.Replay(nc, r, id, filepath.Join(m.Dir, id))
}
