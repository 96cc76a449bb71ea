// Package gate is the gate token: one secret of the whole fleet in front of the
// machine endpoints. It says that a caller belongs here, never who it is.
//
// A plane's host keeps it in files of one line, a version and a value. Two are
// accepted from the first day, so that a rotation needs no moment at which
// every machine changes at once. Which versions are accepted is decided by the
// rotation's state; this package cuts that with what the files hold, and fails
// closed: a file that is unreadable, empty or malformed is an error in words,
// at the start as at a reload, and an unset value matches nothing (R24, R26).
//
// Judging is lock-free and compares both digests every time, so that it tells
// by its time neither whether a value was nearly right nor which of the two it
// was.
//
// The package knows no HTTP and no store.
package gate

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"sync"
	"sync/atomic"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/rotation"
)

const (
	prefix  = "fg_"
	maxFile = 4 << 10
	// maxValue is the longest that wire takes for a value.
	maxValue = 256
)

// token is one version of the gate's value.
type token struct {
	version int64
	value   secret.Text
}

func (t *token) holding() rotation.Holding {
	return rotation.Holding{Version: t.version, Digest: t.value.Digest()}
}

func (t *token) line() []byte {
	return []byte(wire.CredentialGate{Version: t.version, Value: t.value.Reveal()}.Line())
}

// SchemaFile names the File document.
const SchemaFile = "fleet.gate-file/v1"

// File is fleet.gate-file/v1: where a token was written. Its value stands in the
// file alone.
type File struct {
	Schema  string `json:"schema"`
	File    string `json:"file"`
	Version int64  `json:"version"`
}

// Make writes a new file with a fresh value. It never replaces one.
func Make(path string, version int64) error {
	t := token{version, secret.New(prefix)}
	err := durable.CreateFile(path, t.line(), 0o600)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s is there already", path)
	}
	return err
}

func read(path string) (*token, error) {
	b, err := durable.ReadPrivate(path, maxFile)
	if err != nil {
		return nil, fmt.Errorf("cannot read the gate token: %w", err)
	}
	if len(bytes.TrimSpace(b)) == 0 {
		return nil, fmt.Errorf("cannot use the gate token in %s: the file is empty: %w", path, errEmpty)
	}
	g, err := wire.ParseGate(string(b))
	if err != nil {
		return nil, fmt.Errorf("cannot use the gate token in %s: %w", path, err)
	}
	return &token{g.Version, secret.Of(g.Value)}, nil
}

var errEmpty = errors.New("planed gate new FILE makes one")

// Files are what a plane's host holds.
type Files struct {
	primary, secondary *token
	// twice is set when the secondary file has the primary's value, as after a
	// crash in the middle of Erase. It counts as none and is still to be removed.
	twice bool
}

// Use is what a presented value was.
type Use struct {
	Version  int64 // 0: the plane has no gate
	Retiring bool  // it is to be accepted no more
}

// accepted is what a moment accepts. It is replaced, never changed.
type accepted struct {
	digests  [2]secret.Digest
	versions [2]int64
	retiring int64
	target   int64
	value    *token // of the target, if the files hold it
}

// Gate is the gate of one running plane.
type Gate struct {
	primary, secondary string // paths

	mu   sync.Mutex
	held Files

	now atomic.Pointer[accepted]
	// Refused counts what was turned away, for those who wonder why machines are
	// absent.
	Refused Refusals
}

// New makes a gate over files that Read has not looked at yet. It refuses
// everything until Apply.
func New(primary, secondary string) *Gate {
	if secondary == "" {
		secondary = primary + ".secondary"
	}
	g := &Gate{primary: primary, secondary: secondary}
	g.now.Store(&accepted{})
	return g
}

// Read reads the files. A secondary that is missing, empty or has the primary's
// value is none.
func (g *Gate) Read() (Files, error) {
	var f Files
	var err error
	if f.primary, err = read(g.primary); err != nil {
		return Files{}, err
	}
	f.secondary, err = read(g.secondary)
	switch {
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errEmpty):
		f.secondary = nil
	case err != nil:
		return Files{}, err
	case secret.Match(f.secondary.value.Digest(), f.primary.value.Digest()) >= 0:
		f.secondary, f.twice = nil, true
	case f.secondary.version == f.primary.version:
		return Files{}, fmt.Errorf("cannot use the gate tokens: %s and %s hold two values of version %d", g.primary, g.secondary, f.primary.version)
	}
	return f, nil
}

// Holdings are the files' versions.
func (f Files) Holdings() (primary rotation.Holding, secondary *rotation.Holding) {
	if f.secondary != nil {
		h := f.secondary.holding()
		secondary = &h
	}
	return f.primary.holding(), secondary
}

// Hold takes what was read into use; Apply says what of it is accepted.
func (g *Gate) Hold(f Files) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.held = f
}

func (g *Gate) tokens() []*token {
	g.mu.Lock()
	defer g.mu.Unlock()
	return slices.DeleteFunc([]*token{g.held.primary, g.held.secondary}, func(t *token) bool { return t == nil })
}

func (g *Gate) token(version int64) *token {
	for _, t := range g.tokens() {
		if t.version == version {
			return t
		}
	}
	return nil
}

// Apply makes the gate accept what the state does and the files hold, and
// returns the versions that are.
func (g *Gate) Apply(s rotation.State) (versions []int64) {
	a := &accepted{retiring: s.Retiring(), target: s.Target()}
	for _, t := range g.tokens() {
		h := t.holding()
		if !s.Accepts(h.Version, h.Digest) {
			continue
		}
		a.digests[len(versions)], a.versions[len(versions)] = h.Digest, h.Version
		versions = append(versions, h.Version)
		if h.Version == a.target {
			a.value = t
		}
	}
	g.now.Store(a)
	return versions
}

// Judge says which version a presented value is of.
func (g *Gate) Judge(presented string) (Use, bool) {
	a := g.now.Load()
	// A copy on the stack: what a string is converted to lies on the heap.
	var b [maxValue]byte
	if len(presented) > len(b) {
		return Use{}, false
	}
	i := secret.Match(sha256.Sum256(b[:copy(b[:], presented)]), a.digests[0], a.digests[1])
	if i < 0 {
		return Use{}, false
	}
	v := a.versions[i]
	return Use{v, v == a.retiring}, true
}

// Want is the version that a machine is to hold, if it is another than the one
// it has and there is a value to give.
func (g *Gate) Want(has int64) (version int64, ok bool) {
	a := g.now.Load()
	return a.target, a.value != nil && a.target != has
}

// Value is the target's value, for a machine or an installer. ok is false
// while the files do not hold it.
func (g *Gate) Value() (v wire.CredentialGate, ok bool) {
	a := g.now.Load()
	if a.value == nil {
		return v, false
	}
	return wire.CredentialGate{Version: a.value.version, Value: a.value.value.Reveal()}, true
}

// Make makes the new version beside the old one, unless it lies there already,
// and returns what it holds then.
func (g *Gate) Make(version int64) (rotation.Holding, error) {
	if t := g.token(version); t != nil {
		return t.holding(), nil
	}
	// A crash may have come after it was written.
	f, err := g.Read()
	if err != nil {
		return rotation.Holding{}, err
	}
	if f.secondary == nil || f.secondary.version != version {
		t := &token{version, secret.New(prefix)}
		if err := durable.WriteFile(g.secondary, t.line(), 0o600); err != nil {
			return rotation.Holding{}, fmt.Errorf("cannot write the new gate token: %w", err)
		}
		if f, err = g.Read(); err != nil {
			return rotation.Holding{}, err
		}
		if f.secondary == nil || f.secondary.version != version {
			return rotation.Holding{}, errors.New("cannot write the new gate token: it does not read back")
		}
	}
	g.Hold(f)
	return f.secondary.holding(), nil
}

// Load is Read for an engine.
func (m Material) Load() (primary rotation.Holding, secondary *rotation.Holding, hold func(), err error) {
	f, err := m.Read()
	if err != nil {
		return primary, nil, nil, err
	}
	primary, secondary = f.Holdings()
	return primary, secondary, func() { m.Hold(f) }, nil
}

// Material is a gate as its engine rotates it.
type Material struct {
	*Gate
	// Present makes a request with a value, of a kind that is answered
	// differently beyond the gate, and returns whether it was turned away there.
	Present func(ctx context.Context, value string) (refused bool, err error)
}

var _ rotation.Material = Material{}

// Prove presents the value of a version that was retired, and returns an error
// unless it is refused. A value that the files do not hold cannot be presented
// and is not accepted either.
func (m Material) Prove(ctx context.Context, retired int64) error {
	t := m.token(retired)
	if t == nil {
		return nil
	}
	// The control: what was not retired still gets through. Without it every
	// outage would be a proof.
	if good, ok := m.Value(); ok {
		refused, err := m.Present(ctx, good.Value)
		if err != nil {
			return err
		}
		if refused {
			return fmt.Errorf("version %d, which is to be accepted, is refused", good.Version)
		}
	}
	refused, err := m.Present(ctx, t.value.Reveal())
	if err != nil {
		return err
	}
	if !refused {
		return fmt.Errorf("version %d is still accepted", retired)
	}
	return nil
}

// Erase leaves version keep alone in the files. The primary is replaced first:
// from then on the secondary equals it and counts as none.
func (g *Gate) Erase(keep int64) error {
	t := g.token(keep)
	if t == nil {
		return fmt.Errorf("the files do not hold version %d of the gate token", keep)
	}
	f, err := g.Read()
	if err != nil {
		return err
	}
	if f.primary.version != keep {
		if err := durable.WriteFile(g.primary, t.line(), 0o600); err != nil {
			return fmt.Errorf("cannot write the gate token: %w", err)
		}
	}
	// A crash may have left a half of either file under a name of its own.
	if err := errors.Join(durable.Remove(g.secondary), durable.SweepFile(g.secondary), durable.SweepFile(g.primary)); err != nil {
		return fmt.Errorf("cannot remove the retired gate token: %w", err)
	}
	if f, err = g.Read(); err != nil {
		return err
	}
	g.Hold(f)
	return nil
}

// Only reports whether the files hold one version alone, and once.
func (g *Gate) Only(version int64) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	h := g.held
	return h.primary != nil && h.primary.version == version && h.secondary == nil && !h.twice
}
