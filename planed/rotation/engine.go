package rotation

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
)

// ReplicaLives is for how long a replica that has not reported counts as one
// that runs.
const ReplicaLives = 30 * time.Second

const (
	reportEvery = 10 * time.Second
	idleEvery   = reportEvery
	passFor     = 30 * time.Second // a pass that takes longer is given up
)

// Replica is what one running plane says of itself.
type Replica struct {
	ID       string
	Kind     string
	Versions []int64 // that it accepts
	Run      time.Time
	Step     string
	Proved   bool // it has seen the retired value of Run refused
	Erased   bool // it holds the target alone
	At       time.Time
}

// Tally counts machines from memory.
type Tally struct {
	All    int
	Moved  int // presented the target last
	Left   int // have not, and were left
	Behind int // have not, and were not
	Uses   int64
	Last   time.Time // of a use by one that was not left
}

// Caller is one that is no known machine, by the path that it calls.
type Caller struct {
	Path string
	Uses int64 // of the retiring value
	Last time.Time
}

// Store is what an engine asks of the store.
type Store interface {
	RotationState(ctx context.Context, kind string) (State, error)
	// Steer lets f change the state, in one transaction with its events. session
	// must live then, unless it is zero. An error of f changes nothing.
	Steer(ctx context.Context, kind string, session secret.Digest, f func(*State) ([]audit.Event, error)) (State, error)
	// Tally counts the machines by what they presented last, and the uses of the
	// retiring version since it became that.
	Tally(kind string, moved func(version int64) bool, left func(machine string) bool) Tally
	// Callers are those that are no known machine and used the retiring version.
	Callers(kind string) []Caller
	// Behind names, in order, at most limit machines that have not moved by what
	// they presented last.
	Behind(ctx context.Context, kind string, moved func(version int64) bool, limit int) ([]string, error)
	Report(ctx context.Context, r Replica) error
	Replicas(ctx context.Context, kind string, since time.Time) ([]Replica, error)
	// Since is from when on uses are known without a gap.
	Since() time.Time
}

// Material is what is rotated, on one running plane. Its methods are called by
// one goroutine at a time.
type Material interface {
	// Load reads what the plane's host holds. It is in use once hold was called.
	Load() (primary Holding, secondary *Holding, hold func(), err error)
	// Make makes the value of a version unless it is there, and returns it.
	Make(version int64) (Holding, error)
	// Apply accepts what the state does and is held, and returns that.
	Apply(State) (versions []int64)
	// Prove returns an error unless the retired version is refused.
	Prove(ctx context.Context, retired int64) error
	// Erase leaves one version alone.
	Erase(keep int64) error
	Only(version int64) bool
}

// Engine does for one kind what its state asks of this plane.
type Engine struct {
	Kind     string
	Store    Store
	Material Material
	Replica  string        // this plane's id
	Flat     time.Duration // for how long uses have to have been flat: more than the slowest interval
	Pause    time.Duration // between two passes while a rotation is under way
	Log      hclog.Logger
	Now      func() time.Time

	kick chan struct{}

	pass     sync.Mutex // one at a time
	proved   time.Time  // start of the run whose retired value was seen refused here
	turned   bool       // whether that run went back then
	reported time.Time

	mu      sync.Mutex
	problem string
}

// Init makes the engine ready.
func (e *Engine) Init() { e.kick = make(chan struct{}, 1) }

// Kick asks for a pass soon.
func (e *Engine) Kick() {
	select {
	case e.kick <- struct{}{}:
	default:
	}
}

// Reload reads what the plane's host holds and brings the state in line with
// it. On an error everything stays as it was.
func (e *Engine) Reload(ctx context.Context) error {
	e.pass.Lock()
	defer e.pass.Unlock()
	primary, secondary, hold, err := e.Material.Load()
	if err != nil {
		return err
	}
	s, err := e.Store.Steer(ctx, e.Kind, secret.Digest{}, func(s *State) ([]audit.Event, error) {
		return s.Adopt(primary, secondary, e.Now())
	})
	if err != nil {
		return err
	}
	hold()
	versions := e.Material.Apply(s)
	if len(versions) == 0 {
		return fmt.Errorf("nothing that lies ready for the %s is accepted", e.Kind)
	}
	e.Log.Info("material read", "kind", e.Kind, "accepted", versions)
	e.reported = time.Time{}
	e.Kick()
	return nil
}

// Run makes passes until the context ends.
func (e *Engine) Run(ctx context.Context) {
	for {
		running := e.Pass(ctx)
		wait := idleEvery
		if running {
			wait = e.Pause
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-e.kick:
		case <-t.C:
		}
		t.Stop()
	}
}

// Pass does what the state asks for now, for as long as that leads on, and
// returns whether a rotation is under way.
func (e *Engine) Pass(ctx context.Context) (running bool) {
	e.pass.Lock()
	defer e.pass.Unlock()
	ctx, cancel := context.WithTimeout(ctx, passFor)
	defer cancel()
	for {
		s, moved, err := e.once(ctx)
		e.said(err)
		if !moved || err != nil {
			return s.Running()
		}
	}
}

func (e *Engine) said(err error) {
	words := ""
	if err != nil {
		words = err.Error()
	}
	e.mu.Lock()
	same := e.problem == words
	e.problem = words
	e.mu.Unlock()
	if err != nil && !same {
		e.Log.Warn("the rotation does not go on", "kind", e.Kind, "error", words)
	}
}

// Problem is why the last pass did not do what it had to.
func (e *Engine) Problem() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.problem
}

func (e *Engine) once(ctx context.Context) (s State, moved bool, err error) {
	if s, err = e.Store.RotationState(ctx, e.Kind); err != nil {
		return s, false, err
	}
	if !s.Running() {
		return s, false, e.report(ctx, s, e.Material.Apply(s))
	}
	if s.Run.Step == wire.StepWiden && s.Run.ToDigest.IsZero() {
		h, err := e.Material.Make(s.Run.To)
		if err != nil {
			return s, false, err
		}
		s, err = e.Store.Steer(ctx, e.Kind, secret.Digest{}, func(s *State) ([]audit.Event, error) { return nil, s.Made(h) })
		return s, err == nil, err
	}
	versions := e.Material.Apply(s)
	if s.Run.Step == wire.StepNarrow {
		if err := e.narrow(ctx, s); err != nil {
			return s, false, err
		}
	}
	if err := e.report(ctx, s, versions); err != nil {
		return s, false, err
	}
	f, err := e.facts(ctx, s)
	if err != nil {
		return s, false, err
	}
	step, back, proved := s.Run.Step, s.Run.Back, s.Run.ProvedAt
	s, err = e.Store.Steer(ctx, e.Kind, secret.Digest{}, func(now *State) ([]audit.Event, error) {
		// The facts belong to the state that they were gathered for.
		if !now.Running() || !now.Run.StartedAt.Equal(s.Run.StartedAt) || now.Run.Step != step || now.Run.Back != back ||
			!slices.Equal(now.Run.Leave, s.Run.Leave) {
			return nil, nil
		}
		ev, _ := now.Advance(f, e.Now())
		return ev, nil
	})
	if err != nil {
		return s, false, err
	}
	moved = !s.Running() || s.Run.Step != step || s.Run.Back != back || !s.Run.ProvedAt.Equal(proved)
	if moved {
		e.Log.Info("rotation", "kind", e.Kind, "step", s.Run.Step, "back", s.Run.Back, "from", s.Run.From, "to", s.Run.To, "ended", s.Run.Outcome)
	}
	return s, moved, nil
}

// narrow does this plane's part. What is accepted was narrowed before.
func (e *Engine) narrow(ctx context.Context, s State) error {
	if !e.hasProved(s) {
		if err := e.Material.Prove(ctx, s.Retiring()); err != nil {
			return fmt.Errorf("cannot prove that version %d is refused: %w", s.Retiring(), err)
		}
		e.proved, e.turned = s.Run.StartedAt, s.Run.Back
	}
	if s.Run.ProvedAt.IsZero() {
		return nil // what a proof needs is kept until there is one everywhere
	}
	if e.Material.Only(s.Target()) {
		return nil
	}
	return e.Material.Erase(s.Target())
}

func (e *Engine) hasProved(s State) bool {
	return e.proved.Equal(s.Run.StartedAt) && !e.proved.IsZero() && e.turned == s.Run.Back
}

func (e *Engine) report(ctx context.Context, s State, versions []int64) error {
	now := e.Now()
	if !s.Running() && now.Sub(e.reported) < reportEvery {
		return nil
	}
	r := Replica{ID: e.Replica, Kind: e.Kind, Versions: versions, At: now}
	if s.Running() {
		r.Run, r.Step = s.Run.StartedAt, s.Run.Step
		r.Proved = s.Run.Step == wire.StepNarrow && e.hasProved(s)
		r.Erased = s.Run.Step == wire.StepNarrow && e.Material.Only(s.Target())
	}
	e.reported = now
	return e.Store.Report(ctx, r)
}

// facts gathers what the next decision rests on.
func (e *Engine) facts(ctx context.Context, s State) (Facts, error) {
	f := Facts{Since: e.Store.Since(), Flat: e.Flat}
	replicas, err := e.Store.Replicas(ctx, e.Kind, e.Now().Add(-ReplicaLives))
	if err != nil {
		return f, err
	}
	f.Ready, f.Proved, f.Erased = len(replicas) > 0, len(replicas) > 0, len(replicas) > 0
	for _, r := range replicas {
		f.Ready = f.Ready && slices.Contains(r.Versions, s.Run.From) && slices.Contains(r.Versions, s.Run.To)
		mine := r.Run.Equal(s.Run.StartedAt) && r.Step == wire.StepNarrow
		f.Proved = f.Proved && mine && r.Proved
		f.Erased = f.Erased && mine && r.Erased
	}
	t := e.Store.Tally(e.Kind, s.Moved, s.Left)
	f.Behind, f.Last = t.Behind, t.Last
	for _, c := range e.Store.Callers(e.Kind) {
		if !s.Left(c.Path) && c.Last.After(f.Last) {
			f.Last = c.Last
		}
	}
	if s.Run.Drill && !s.Run.Back {
		if f.Missed, err = e.missed(ctx, s); err != nil {
			return f, err
		}
	}
	return f, nil
}

// missed names who holds narrowing up.
func (e *Engine) missed(ctx context.Context, s State) ([]string, error) {
	names, err := e.Store.Behind(ctx, e.Kind, s.Moved, MaxNamed)
	if err != nil {
		return nil, err
	}
	for _, c := range e.Store.Callers(e.Kind) {
		if len(names) < MaxNamed && e.Now().Sub(c.Last) <= e.Flat {
			names = append(names, c.Path)
		}
	}
	return names, nil
}

// Steer lets somebody change the state, and has the engine do what follows.
func (e *Engine) Steer(ctx context.Context, session secret.Digest, f func(*State) ([]audit.Event, error)) (State, error) {
	s, err := e.Store.Steer(ctx, e.Kind, session, f)
	e.Kick()
	return s, err
}
