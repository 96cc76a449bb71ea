package credential

import (
	"context"
	"errors"
	"fmt"
	"io/fs"

	"fleet.example/fleet/core/wire"
)

// The gate token is one of the whole fleet, so it has no generations: the plane
// names the version that it wants. A new one is staged as gate.next, synced and
// read back before it is presented, and renamed over gate when it has been
// accepted. So the disk holds, at every instant, the version that was accepted
// last; a full disk leaves the machine with it, and says so.
//
// Whoever is refused with both asks for the material itself, which stands in
// front of the gate: it takes the credential alone, and so tells which of the
// two was not good.

// gateNextFile is the version that was fetched and not accepted yet.
const gateNextFile = GateFile + ".next"

// Fetcher brings material from the plane, presenting c. Where the plane gives
// another version than the one that is asked for, it names that and m is nil.
type Fetcher interface {
	Material(ctx context.Context, c Credential, kind string, version int64) (m *wire.Material, want int64, err error)
}

// gates is what Store knows of the gate token. It is guarded by Store.mu.
type gates struct {
	held    *wire.CredentialGate // accepted, or brought by an install
	next    *wire.CredentialGate // staged
	refused bool                 // next was: held is presented
	proven  bool                 // next was accepted
	back    bool                 // held was accepted since
	problem string               // why the last write did not succeed
}

func (g *gates) present() *wire.CredentialGate {
	if g.next != nil && (!g.refused || g.held == nil) {
		return g.next
	}
	return g.held
}

// find is the one of a version, or nil.
func (g *gates) find(version int64) *wire.CredentialGate {
	for _, v := range []*wire.CredentialGate{g.next, g.held} {
		if v != nil && v.Version == version {
			return v
		}
	}
	return nil
}

// turn makes present return v, which is one of the two.
func (g *gates) turn(v *wire.CredentialGate) { g.refused, g.back = v != g.next, false }

// readGate reads both files. A staged one that is damaged is none: it was read
// back before it was presented.
func (s *Store) readGate() (g gates, err error) {
	b, err := s.fs.Read(gateNextFile)
	if err == nil {
		if v, err := wire.ParseGate(string(b)); err == nil {
			g.next = &v
		}
	} else if !errors.Is(err, fs.ErrNotExist) {
		return g, err
	}
	if b, err = s.fs.Read(GateFile); errors.Is(err, fs.ErrNotExist) {
		return g, nil
	}
	if err != nil {
		return g, err
	}
	v, err := wire.ParseGate(string(b))
	if err != nil {
		return g, errDamaged
	}
	g.held = &v
	if g.next != nil && *g.next == v {
		g.next = nil
	}
	return g, nil
}

// adopt takes what the disk holds and keeps what is known of it.
func (g *gates) adopt(disk gates) {
	if g.next != nil && disk.next != nil && *g.next == *disk.next {
		disk.refused, disk.proven, disk.back = g.refused, g.proven, g.back
	}
	disk.problem = g.problem
	*g = disk
}

// GateAccepted says that a check was answered to which version was presented.
func (s *Store) GateAccepted(version int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if n := s.gates.next; n != nil && n.Version == version {
		s.gates.proven = true
	} else if h := s.gates.held; n != nil && h != nil && h.Version == version {
		s.gates.back = true
	}
}

// AdvanceGate does what answers make possible: it keeps a version that was
// accepted, and fetches the one that is wanted. moved reports that another one
// is to be presented.
func (s *Store) AdvanceGate(ctx context.Context, f Fetcher, c Credential, want int64) (moved bool, err error) {
	if err := s.keepGate(); err != nil {
		return false, err
	}
	s.mu.Lock()
	p := s.gates.present()
	if want == 0 && s.gates.next != nil && s.gates.refused && s.gates.back {
		s.mu.Unlock()
		return false, s.dropNext()
	}
	if want == 0 || p != nil && p.Version == want {
		s.mu.Unlock()
		return false, nil
	}
	if v := s.gates.find(want); v != nil {
		s.gates.turn(v)
		s.mu.Unlock()
		return true, nil
	}
	s.mu.Unlock()
	m, _, err := f.Material(ctx, c, wire.MaterialGate, want)
	if err != nil || m == nil { // the plane wants another one by now, and says so with the next check
		return false, err
	}
	return s.stageGate(m)
}

// SeekGate finds out, after a check was refused, whether the gate token was to
// blame. It asks with every credential, the one that is presented first, and the
// one that is taken is presented from then on.
func (s *Store) SeekGate(ctx context.Context, f Fetcher) (moved bool, err error) {
	s.mu.Lock()
	var has int64
	p := s.gates.present()
	if p != nil {
		has = p.Version
	}
	var held []*Credential
	for i := range slots {
		if c := s.held[(s.cursor+i)%slots]; c != nil {
			held = append(held, c)
		}
	}
	s.mu.Unlock()
	var last error
	for _, c := range held {
		m, want, err := f.Material(ctx, *c, wire.MaterialGate, has)
		if err == nil && m == nil && want != 0 {
			m, _, err = f.Material(ctx, *c, wire.MaterialGate, want)
		}
		if err != nil {
			last = errors.Join(last, err)
			continue
		}
		s.mu.Lock()
		for i := range slots {
			if s.held[i].is(c) {
				s.cursor = i
			}
		}
		s.mu.Unlock()
		if m == nil { // there is no gate
			return false, nil
		}
		return s.stageGate(m)
	}
	if last != nil {
		// Nothing is known, so the other one is tried.
		s.mu.Lock()
		defer s.mu.Unlock()
		if g := &s.gates; g.next != nil && g.held != nil {
			g.refused = !g.refused
			return true, last
		}
	}
	return false, last
}

// stageGate puts a version that was fetched beside the one that is held.
func (s *Store) stageGate(m *wire.Material) (moved bool, err error) {
	v := wire.CredentialGate{Version: m.Version, Value: m.Value}
	if err := v.Check(); err != nil {
		return false, fmt.Errorf("cannot take the gate token: %w", err)
	}
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.fs.Lock()
	if err != nil {
		return false, s.wroteGate(err)
	}
	defer unlock()
	s.mu.Lock()
	before := s.gates.present()
	if o := s.gates.find(v.Version); o != nil && *o == v {
		s.gates.turn(o)
		s.mu.Unlock()
		return before != o, nil
	}
	s.mu.Unlock()
	if err := Replace(s.fs, gateNextFile, []byte(v.Line())); err != nil {
		return false, s.wroteGate(fmt.Errorf("cannot write the next gate token: %w", err))
	}
	s.mu.Lock()
	s.gates.next, s.gates.refused, s.gates.proven, s.gates.back = &v, false, false, false
	s.mu.Unlock()
	return true, s.wroteGate(nil)
}

// keepGate renames a staged version that was accepted over the one before,
// which ends it.
func (s *Store) keepGate() error {
	s.mu.Lock()
	n, proven := s.gates.next, s.gates.proven
	s.mu.Unlock()
	if n == nil || !proven {
		return nil
	}
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.fs.Lock()
	if err != nil {
		return s.wroteGate(err)
	}
	defer unlock()
	// Another process may have put something else there.
	b, err := s.fs.Read(gateNextFile)
	if err == nil {
		v, perr := wire.ParseGate(string(b))
		if perr != nil || v != *n {
			err = errors.New("it is not what was accepted")
		}
	}
	if err != nil {
		// What was accepted is in memory and must not be lost with it.
		if err := Replace(s.fs, gateNextFile, []byte(n.Line())); err != nil {
			return s.wroteGate(fmt.Errorf("cannot keep the gate token: %w", err))
		}
	}
	if err := s.fs.Rename(gateNextFile, GateFile); err != nil {
		return s.wroteGate(fmt.Errorf("cannot keep the gate token: %w", err))
	}
	if err := s.fs.SyncDir(); err != nil {
		return s.wroteGate(fmt.Errorf("cannot keep the gate token: %w", err))
	}
	s.mu.Lock()
	s.gates.held, s.gates.next, s.gates.proven, s.gates.refused = n, nil, false, false
	s.mu.Unlock()
	return s.wroteGate(nil)
}

// dropNext ends a staged version that the plane took back: it wants no other
// than the one that is held, and has accepted that since.
func (s *Store) dropNext() error {
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.fs.Lock()
	if err != nil {
		return s.wroteGate(err)
	}
	defer unlock()
	if err := errors.Join(s.fs.Remove(gateNextFile), s.fs.SyncDir()); err != nil {
		return s.wroteGate(fmt.Errorf("cannot remove a gate token that was taken back: %w", err))
	}
	s.mu.Lock()
	s.gates.next, s.gates.refused, s.gates.back = nil, false, false
	s.mu.Unlock()
	return s.wroteGate(nil)
}

func (s *Store) wroteGate(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.gates.problem = ""
	if err != nil {
		s.gates.problem = err.Error()
	}
	return err
}
