// Package session is agentd's side of sessions: it starts a shim for each,
// finds shims again after a restart, and tells what became of those that are
// gone. A session's state is what its directory says - record, lock, exit,
// spool - so agentd holds nothing that its own end could lose (R34).
//
// Three answers about a shim are kept apart: it lives (its lock is held), it
// is gone (the lock is free), it cannot be told (any other error). Only "gone"
// frees what the session held. A PID alone is never believed.
//
// The package knows nothing of HTTP, tokens or the plane.
package session

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/agentd/shim"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

const (
	recordFile   = "record"
	failedSuffix = ".failed"
	startTimeout = 10 * time.Second
	askTimeout   = 2 * time.Second

	// DefaultLimit is a session's spool in bytes when the request names none.
	DefaultLimit = 64 << 20
	maxLimit     = 4 << 30
	maxRunning   = 256

	// What is kept of ended sessions.
	keepEnded = 100
	keepAge   = 7 * 24 * time.Hour
	keepBytes = 512 << 20
)

// Manager starts and finds the sessions of one data directory. Its methods may
// be used from several goroutines.
type Manager struct {
	Dir     string // DATA/sessions
	Run     string // the runtime directory, where shims listen
	Shim    string // the shim's absolute path
	Account account.Account
	Getenv  func(string) string
	Umask   int // the account's, not agentd's own
	Host    string
	Machine func() string
	Log     hclog.Logger
	Changed func() // called when Unusable has another answer

	mu       sync.Mutex
	starting map[string]bool
	lastErr  atomic.Pointer[string] // why the last start went wrong
	shimSeen shimCheck
	spares   spares
	open     map[string]struct{} // ids not known to be gone; nil before the first look
	children children

	sweeping   atomic.Bool
	swept      atomic.Int64 // when the last sweep began, Unix nanoseconds
	background sync.WaitGroup
}

// record is what a session's directory says of it. It carries no argument and
// no environment of the command.
type record struct {
	ID        string    `json:"id"`
	Argv0     string    `json:"argv0"`
	Workspace string    `json:"workspace,omitempty"`
	StartedAt wire.Time `json:"started_at"`
	PTY       bool      `json:"pty"`
	Socket    string    `json:"socket"`
	Token     string    `json:"token"`
}

// Errors of the methods; the API turns them into codes.
var (
	ErrNotFound  = errors.New("no such session")
	ErrUnclear   = errors.New("cannot tell whether the session's host process lives")
	ErrEnded     = errors.New("the session has ended")
	ErrBadSignal = errors.New("bad signal")
	ErrTooMany   = fmt.Errorf("%d sessions are running already", maxRunning)
)

// RequestError is a request that can never succeed.
type RequestError struct{ msg string }

func (e *RequestError) Error() string { return e.msg }

// Create starts a session and returns its id. The command has been started, or
// could not be, which its exit record tells.
func (m *Manager) Create(ctx context.Context, req wire.SessionRequest) (_ string, err error) {
	cfg, argv0, err := m.configure(req)
	if err != nil {
		return "", err
	}
	id := req.ID
	if id == "" {
		id = wire.NewSessionID()
	} else if there, err := m.repeated(ctx, id); err != nil || there {
		return id, err
	}
	dir := filepath.Join(m.Dir, id)
	others, free := m.reserve(id)
	if !free { // two requests with one id at the same moment
		return m.other(ctx, id)
	}
	defer func() {
		m.mu.Lock()
		delete(m.starting, id)
		m.mu.Unlock()
	}()
	if _, err := os.Lstat(dir); err == nil { // the other one has just done it
		return id, nil
	}
	if m.runningBeside(others)+len(others) >= maxRunning {
		return "", ErrTooMany
	}
	defer func() {
		var now *string
		if err != nil {
			msg := err.Error()
			now = &msg
		}
		if old := m.lastErr.Swap(now); (old == nil) != (now == nil) && m.Changed != nil {
			m.background.Go(m.Changed)
		}
	}()
	if err := os.MkdirAll(m.Dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot make session directory: %w", err)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		return "", fmt.Errorf("cannot make session directory: %w", err)
	}
	token := secret.New("fx_")
	rec := record{ID: id, Argv0: argv0, Workspace: req.Workspace, StartedAt: wire.Time{Time: time.Now()}, PTY: req.PTY != nil,
		Socket: filepath.Join(m.Run, id+".sock"), Token: token.Reveal()}
	cfg.ID, cfg.Dir, cfg.Socket, cfg.Token = id, dir, rec.Socket, rec.Token
	cfg.Env = append(cfg.Env, "FLEET_SESSION="+id)
	b, err := json.Marshal(rec)
	if err != nil {
		return "", err
	}
	// The record need not survive a power cut, which ends the session anyway.
	if err := os.WriteFile(filepath.Join(dir, recordFile), b, 0o600); err != nil {
		os.RemoveAll(dir)
		return "", fmt.Errorf("cannot write session record: %w", err)
	}
	// A client that leaves meanwhile stops nothing: it may ask again by the id,
	// and a start that was given up half-way would look like one that went wrong.
	if err := m.spawn(context.WithoutCancel(ctx), cfg); err != nil {
		m.clear(dir)
		return "", err
	}
	m.Log.Info("session started", "session", id)
	return id, nil
}

// reserve makes the id one that is being started, unless it is one already,
// and returns the others.
func (m *Manager) reserve(id string) (others map[string]bool, free bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.starting[id] {
		return nil, false
	}
	if m.starting == nil {
		m.starting = map[string]bool{}
	}
	others = maps.Clone(m.starting)
	m.starting[id] = true
	m.look()
	m.open[id] = struct{}{}
	return others, true
}

// other waits for what another request for the same id comes to.
func (m *Manager) other(ctx context.Context, id string) (string, error) {
	there, err := m.repeated(ctx, id)
	if err == nil && !there {
		err = ErrUnclear
	}
	return id, err
}

// clear removes the directory of a session that did not start. Its shim may
// only be late: renamed first, the directory is out of its reach, and one that
// has come as far as the lock keeps it.
func (m *Manager) clear(dir string) {
	aside := dir + failedSuffix
	if os.Rename(dir, aside) != nil {
		return
	}
	if shim.Look(aside) != shim.Gone && os.Rename(aside, dir) == nil {
		return
	}
	os.RemoveAll(aside)
}

// repeated reports whether a session that is asked for is there already: its
// client did not hear the answer and asks again. One that is being started is
// waited for.
func (m *Manager) repeated(ctx context.Context, id string) (bool, error) {
	if !wire.IsSessionID(id) {
		return false, &RequestError{"the session's id is malformed"}
	}
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	for {
		m.mu.Lock()
		starting := m.starting[id]
		m.mu.Unlock()
		if !starting {
			_, err := os.Stat(filepath.Join(m.Dir, id, recordFile))
			return err == nil, nil
		}
		select {
		case <-ctx.Done():
			return false, ErrUnclear
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// spawn has a shim host the session and waits for its ready byte.
func (m *Manager) spawn(ctx context.Context, cfg *shim.Config) error {
	ctx, cancel := context.WithTimeout(ctx, startTimeout)
	defer cancel()
	b, err := json.Marshal(cfg)
	if err != nil {
		return err
	}
	if h := m.spares.take(); h != nil {
		err := m.serve(ctx, h, b)
		// A shim takes the lock before it begins anything. One that was ready and
		// ended before that has another one take its place.
		if _, locked := os.Lstat(filepath.Join(cfg.Dir, shim.LockFile)); err == nil || ctx.Err() != nil || !errors.Is(locked, fs.ErrNotExist) {
			return err
		}
	}
	h, err := m.launch()
	if err != nil {
		return err
	}
	return m.serve(ctx, h, b)
}

// serve gives a shim its session and waits until it says how that went.
func (m *Manager) serve(ctx context.Context, h *host, config []byte) (err error) {
	defer func() {
		if err != nil {
			h.close()
		} else {
			m.spares.lend(h)
		}
	}()
	deadline, _ := ctx.Deadline()
	if err := h.configure(config, deadline); err != nil {
		return err
	}
	ready := h.ready
	ready.SetReadDeadline(deadline)
	stop := context.AfterFunc(ctx, func() { ready.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	said := make([]byte, 1)
	_, err = io.ReadFull(ready, said)
	switch {
	case err == nil && said[0] == '+':
		return nil
	case err == nil:
		why, _ := io.ReadAll(io.LimitReader(ready, 4<<10))
		return fmt.Errorf("session host: %s", why)
	case err == io.EOF:
		return errors.New("session host ended before it was ready")
	default:
		return fmt.Errorf("session host does not answer: %w", err)
	}
}

// load reads a session's record.
func (m *Manager) load(id string) (*record, error) {
	if !wire.IsSessionID(id) {
		return nil, ErrNotFound
	}
	b, err := durable.ReadPrivate(filepath.Join(m.Dir, id, recordFile), 64<<10)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read session record: %w", err)
	}
	var r record
	if err := json.Unmarshal(b, &r); err != nil || r.ID != id {
		return nil, errors.New("cannot read session record: it is damaged")
	}
	return &r, nil
}

// Get describes one session. ErrNotFound is in the chain of its error where
// there is none.
func (m *Manager) Get(ctx context.Context, id string) (*wire.Session, error) {
	r, err := m.load(id)
	if err != nil {
		return nil, err
	}
	return m.describe(ctx, r), nil
}

func (m *Manager) describe(ctx context.Context, r *record) *wire.Session {
	dir := filepath.Join(m.Dir, r.ID)
	s := &wire.Session{Schema: wire.SchemaSession, ID: r.ID, Machine: m.Machine(), Host: m.Host, Workspace: r.Workspace,
		Argv0: r.Argv0, StartedAt: r.StartedAt, PTY: r.PTY, State: wire.SessionRunning}
	if e, err := shim.ReadExit(dir); err == nil {
		s.State, s.Exit, s.LostBytes = wire.SessionExited, &e.SessionExit, e.Lost
		s.UptimeS = e.At.Sub(r.StartedAt.Time).Seconds()
		return s
	}
	s.UptimeS = time.Since(r.StartedAt.Time).Seconds()
	m.mu.Lock()
	starting := m.starting[r.ID]
	m.mu.Unlock()
	switch life := shim.Look(dir); {
	case life == shim.Alive:
		if info, err := m.query(ctx, r); err == nil {
			s.State, s.PID, s.Clients, s.LostBytes = info.State, info.PID, info.Clients, info.Lost
		}
	case starting:
		s.State = wire.SessionStarting
	case life == shim.Gone:
		if e, err := shim.ReadExit(dir); err == nil { // it ended between the two looks
			s.State, s.Exit, s.LostBytes = wire.SessionExited, &e.SessionExit, e.Lost
			break
		}
		s.State, s.UptimeS = wire.SessionGone, 0
	default:
		s.State = wire.SessionUnclear
	}
	return s
}

// List describes all sessions, the latest first.
func (m *Manager) List(ctx context.Context) ([]wire.Session, error) {
	ids, err := m.ids()
	if err != nil {
		return nil, err
	}
	out := make([]wire.Session, 0, len(ids))
	var mu sync.Mutex
	var wg sync.WaitGroup
	gate := make(chan struct{}, 16)
	for _, id := range ids {
		r, err := m.load(id)
		if err != nil {
			continue // being made or removed just now
		}
		gate <- struct{}{}
		wg.Go(func() {
			defer func() { <-gate }()
			s := m.describe(ctx, r)
			mu.Lock()
			out = append(out, *s)
			mu.Unlock()
		})
	}
	wg.Wait()
	sort.Slice(out, func(i, j int) bool { return out[i].StartedAt.After(out[j].StartedAt.Time) })
	return out, nil
}

func (m *Manager) ids() ([]string, error) {
	entries, err := os.ReadDir(m.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot list sessions: %w", err)
	}
	var ids []string
	for _, e := range entries {
		if wire.IsSessionID(e.Name()) {
			ids = append(ids, e.Name())
		}
	}
	return ids, nil
}

// Running counts the sessions whose shim is not known to be gone.
func (m *Manager) Running() int { return m.runningBeside(nil) }

// runningBeside is Running without those that are being started. What is gone
// stays gone - a lock is taken once - so each is looked at until then only:
// what is kept of ended sessions costs the start of a new one nothing.
func (m *Manager) runningBeside(starting map[string]bool) int {
	m.mu.Lock()
	m.look()
	ids := slices.Collect(maps.Keys(m.open))
	m.mu.Unlock()
	n := 0
	for _, id := range ids {
		switch {
		case starting[id]:
		case shim.Look(filepath.Join(m.Dir, id)) != shim.Gone:
			n++
		default:
			m.mu.Lock()
			if !m.starting[id] {
				delete(m.open, id)
			}
			m.mu.Unlock()
		}
	}
	return n
}

// look finds the sessions that were there before this process was. The caller
// holds the mutex.
func (m *Manager) look() {
	if m.open != nil {
		return
	}
	ids, err := m.ids()
	if err != nil {
		ids = nil
	}
	m.open = map[string]struct{}{}
	for _, id := range ids {
		m.open[id] = struct{}{}
	}
}
