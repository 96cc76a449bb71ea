package credential

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"slices"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/wire"
)

// Where the plane is, and what vouches for it.
//
// Invariant: plane.json always holds one configuration that worked or that an
// install brought, and what no person of this machine's signers signed changes
// nothing of it.
//
// The plane hands out statements: this URL, or these roots, from now on. It is
// not believed. A statement counts when its signature, in the namespace of
// material, is by one of the keys in the file signers, which an install left and
// nothing that the plane says reaches; when it names the URL that this machine
// has now, so that another plane's does not fit, or says what the machine has
// already, installed after the move; and when its version is higher
// than what plane.json has of that kind, so that an older one cannot be brought
// again. Signers are read anew each time: a key that was removed signs no more.
//
//  1. The statement is staged: plane.next, synced, read back. It holds the signed
//     bytes, not what follows from them, and is judged again whenever it is read.
//     A crash leaves it absent or whole; plane.json is untouched.
//  2. The configuration that it leads to is tried, once, with a connection of its
//     own beside the one in use: who answers there must know this machine by
//     its credential. Checks go on where they went.
//  3. Where that fails, plane.next is removed, and all is as before. A statement
//     that the plane still wants is fetched again after more and more checks.
//  4. Where it works, plane.json is copied to plane.previous, and replaced in one
//     rename. Before the rename the machine is where it was and a restart
//     tries again; after it, it is at the new place, and the statement left in
//     plane.next is no longer newer than what is held, so it is removed.
//
// plane.previous is asked for news, and for nothing else, when the place in use
// does not answer: so a move that a person takes back reaches a machine whose
// new place has gone. Whoever answers there can only hand out statements.

// Names of the files.
const (
	SignersFile       = place.SignersFile
	nextPlaneFile     = "plane.next"
	previousPlaneFile = "plane.previous"
)

// Try makes sure that the plane that p leads to knows this machine. m is the
// statement that led there.
type Try func(ctx context.Context, p Plane, m *wire.Material) error

// signedKinds are those that a person signs, in the order in which they are
// looked at: a new root may be needed to reach a new place.
var signedKinds = []string{wire.MaterialTrust, wire.MaterialURL}

// Version is what the configuration has of a kind, 0 before any statement.
func (p *Plane) Version(kind string) int64 {
	if kind == wire.MaterialURL {
		return p.URLVersion
	}
	return p.TrustVersion
}

func (p *Plane) value(kind string) string {
	if kind == wire.MaterialURL {
		return spelled(p.URL)
	}
	return p.RootsPEM
}

// moves is what Store knows of statements. It is guarded by Store.mu.
type moves struct {
	failures map[string]int // trials in a row that did not succeed, by kind
	skip     map[string]int // how many checks a kind is left alone for
	problem  string         // why the plane's last statement was not taken
	staged   bool           // plane.next may be there
}

// maxSkip is for how many checks at most a statement is left alone that did not
// work out.
const maxSkip = 64

// Refusals of a statement, which no trial changes.
var (
	errNoSigners = errors.New("nobody's statements are taken on this machine: it has no signers")
	errOther     = errors.New("it is for another plane")
	errOlder     = errors.New("it is not newer than what this machine has")
)

// judge says what a statement leads to from the configuration p.
func (s *Store) judge(p Plane, m *wire.Material) (Plane, error) {
	keys, err := s.fs.Read(SignersFile)
	if errors.Is(err, fs.ErrNotExist) {
		return p, errNoSigners
	}
	if err != nil {
		return p, fmt.Errorf("cannot read the signers: %w", err)
	}
	signers, err := artifact.ParseSigners(keys)
	if err != nil {
		return p, fmt.Errorf("cannot read the signers: %w", err)
	}
	if len(signers) == 0 {
		return p, errNoSigners
	}
	if len(m.Value) > wire.MaxStatement || len(m.Signature) > wire.MaxStatement {
		return p, errors.New("it is too long")
	}
	if _, err := signers.VerifyIn(wire.NamespaceMaterial, []byte(m.Value), []byte(m.Signature)); err != nil {
		return p, err
	}
	st, err := wire.ParseStatement([]byte(m.Value))
	switch {
	case err != nil:
		return p, err
	case st.Kind != m.Kind || st.Version != m.Version:
		return p, errors.New("it is not the statement that the plane says it is")
	case !slices.Contains(st.Planes, spelled(p.URL)) && st.Value() != p.value(st.Kind):
		return p, errOther
	case st.Version <= p.Version(st.Kind):
		return p, errOlder
	}
	if st.Kind == wire.MaterialURL {
		p.URL, p.URLVersion = st.URL, st.Version
	} else {
		if err := checkRoots(st.RootsPEM); err != nil {
			return p, err
		}
		p.RootsPEM, p.TrustVersion = st.RootsPEM, st.Version
	}
	return p, nil
}

// spelled is a URL as statements spell it.
func spelled(url string) string {
	if u, err := wire.PlaneURL(url); err == nil {
		return u
	}
	return url
}

// checkRoots refuses what cannot vouch for a plane.
func checkRoots(text string) error {
	for rest := []byte(text); ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil || !c.IsCA {
			return errors.New("its roots are no authorities' certificates")
		}
	}
}

// AdvancePlane does what an answer makes possible for a person's statements:
// want is the version of each kind that the plane wants this machine to have.
// moved reports that plane.json became another.
func (s *Store) AdvancePlane(ctx context.Context, f Fetcher, c Credential, want map[string]int64, try Try) (moved bool, err error) {
	if moved, err = s.goOn(ctx, try); moved || err != nil {
		return moved, err
	}
	skipped := false
	for _, kind := range signedKinds {
		p, _ := s.Plane()
		if p == nil || want[kind] == 0 || want[kind] == p.Version(kind) {
			s.leaveAlone(kind, 0)
			continue
		}
		if s.skipped(kind) {
			skipped = true
			continue
		}
		m, _, err := f.Material(ctx, c, kind, want[kind])
		if err != nil || m == nil {
			return false, err
		}
		return s.move(ctx, m, try)
	}
	if !skipped {
		s.noted(nil)
	}
	return false, nil
}

// SeekPlane asks whoever answers at f, with every credential in turn, whether
// there is a statement that is newer than what this machine has.
func (s *Store) SeekPlane(ctx context.Context, f Fetcher, try Try) (moved bool, err error) {
	if moved, err = s.goOn(ctx, try); moved || err != nil {
		return moved, err
	}
	for _, kind := range signedKinds {
		p, _ := s.Plane()
		if p == nil {
			return false, nil
		}
		m, err := s.seek(ctx, f, kind, p.Version(kind))
		if err != nil {
			return false, err
		}
		if m == nil || s.skipped(kind) {
			continue
		}
		return s.move(ctx, m, try)
	}
	return false, nil
}

// seek is the statement of a kind that is given now, if it is newer.
func (s *Store) seek(ctx context.Context, f Fetcher, kind string, has int64) (*wire.Material, error) {
	var last error
	for _, c := range s.credentials() {
		_, want, err := f.Material(ctx, c, kind, has)
		if err == nil && want > has {
			var m *wire.Material
			if m, _, err = f.Material(ctx, c, kind, want); err == nil {
				return m, nil
			}
		}
		if err == nil {
			return nil, nil
		}
		last = errors.Join(last, err)
	}
	return nil, last
}

// credentials are those on disk, the one that is presented first.
func (s *Store) credentials() (out []Credential) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range slots {
		if c := s.held[(s.cursor+i)%slots]; c != nil {
			out = append(out, *c)
		}
	}
	return out
}

// move takes a statement through its steps.
func (s *Store) move(ctx context.Context, m *wire.Material, try Try) (moved bool, err error) {
	held, next, err := s.stageStatement(m)
	if err != nil {
		s.leaveAlone(m.Kind, 1)
		return false, s.noted(fmt.Errorf("cannot take the plane's statement, version %d of the %s: %w", m.Version, m.Kind, err))
	}
	return s.decide(ctx, held, next, m, try)
}

// goOn takes up a statement that was staged before a crash.
func (s *Store) goOn(ctx context.Context, try Try) (moved bool, err error) {
	s.mu.Lock()
	staged := s.moves.staged
	s.mu.Unlock()
	if !staged {
		return false, nil
	}
	b, err := s.fs.Read(nextPlaneFile)
	if errors.Is(err, fs.ErrNotExist) {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.moves.staged = false
		return false, nil
	}
	var m wire.Material
	p, _ := s.Plane()
	if err == nil && p != nil {
		if err = json.Unmarshal(b, &m); err == nil {
			var next Plane
			if next, err = s.judge(*p, &m); err == nil {
				return s.decide(ctx, *p, next, &m, try)
			}
		}
	}
	return false, s.drop() // absent, torn, done already, or signed by a key that was removed since
}

// stageStatement judges a statement and writes it beside what is in use.
func (s *Store) stageStatement(m *wire.Material) (held, next Plane, err error) {
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.fs.Lock()
	if err != nil {
		return held, next, err
	}
	defer unlock()
	p, _ := s.Plane()
	if p == nil {
		return held, next, errors.New("this machine has no plane")
	}
	if next, err = s.judge(*p, m); err != nil {
		return *p, next, err
	}
	b, err := json.Marshal(m)
	if err != nil {
		return *p, next, err
	}
	s.mu.Lock()
	s.moves.staged = true
	s.mu.Unlock()
	return *p, next, Replace(s.fs, nextPlaneFile, append(b, '\n'))
}

// decide tries what was staged, and keeps it or rolls it back.
func (s *Store) decide(ctx context.Context, held, next Plane, m *wire.Material, try Try) (moved bool, err error) {
	if next.URL != held.URL || next.RootsPEM != held.RootsPEM {
		if err := try(ctx, next, m); err != nil {
			if ctx.Err() != nil {
				return false, err // it was not tried to the end: the next call does
			}
			s.leaveAlone(m.Kind, 1)
			return false, errors.Join(s.noted(fmt.Errorf("version %d of the %s was tried and taken back: %w", m.Version, m.Kind, err)), s.drop())
		}
	}
	if err := s.keep(held, m); err != nil {
		return false, s.noted(fmt.Errorf("cannot keep version %d of the %s: %w", m.Version, m.Kind, err))
	}
	s.leaveAlone(m.Kind, 0)
	return true, s.noted(nil)
}

// keep makes what was tried the configuration in use.
func (s *Store) keep(held Plane, m *wire.Material) error {
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.fs.Lock()
	if err != nil {
		return err
	}
	defer unlock()
	// Another process, an install, may have put another one in place meanwhile, or
	// taken a signer away.
	if now, err := s.decodePlane(PlaneFile); err != nil || *now != held {
		return errors.New("what is in use changed meanwhile")
	}
	next, err := s.judge(held, m)
	if err != nil {
		return err
	}
	old, err := s.fs.Read(PlaneFile)
	if err != nil {
		return err
	}
	if held.URL != next.URL || held.RootsPEM != next.RootsPEM {
		if err := Replace(s.fs, previousPlaneFile, old); err != nil {
			return err
		}
	}
	b, err := encodePlane(next)
	if err != nil {
		return err
	}
	if err := Replace(s.fs, PlaneFile, b); err != nil {
		// The rename may have come about: what is on disk is read, and both do.
		if now, e := s.decodePlane(PlaneFile); e != nil || *now != next {
			return err
		}
	}
	s.mu.Lock()
	s.plane = &next
	s.mu.Unlock()
	return s.unstage()
}

// drop ends a staged statement.
func (s *Store) drop() error {
	s.io.Lock()
	defer s.io.Unlock()
	return s.unstage()
}

func (s *Store) unstage() error {
	if err := errors.Join(s.fs.Remove(nextPlaneFile), s.fs.SyncDir()); err != nil {
		return fmt.Errorf("cannot remove %s: %w", nextPlaneFile, err)
	}
	s.mu.Lock()
	s.moves.staged = false
	s.mu.Unlock()
	return nil
}

// Previous is the configuration before the one in use, or nil.
func (s *Store) Previous() *Plane {
	s.io.Lock()
	defer s.io.Unlock()
	p, err := s.decodePlane(previousPlaneFile)
	if err != nil {
		return nil
	}
	return p
}

func (s *Store) skipped(kind string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moves.skip[kind] == 0 {
		return false
	}
	s.moves.skip[kind]--
	return true
}

// leaveAlone counts a failure, or with 0 forgets them.
func (s *Store) leaveAlone(kind string, failed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.moves.skip == nil {
		s.moves.skip, s.moves.failures = map[string]int{}, map[string]int{}
	}
	if failed == 0 {
		s.moves.skip[kind], s.moves.failures[kind] = 0, 0
		return
	}
	n := min(s.moves.failures[kind]+failed, 6)
	s.moves.failures[kind], s.moves.skip[kind] = n, min(1<<n-1, maxSkip)
}

// noted keeps why a statement was not taken, for the blockers.
func (s *Store) noted(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.moves.problem = ""
	if err != nil {
		s.moves.problem = err.Error()
	}
	return err
}

func encodePlane(p Plane) ([]byte, error) {
	b, err := json.MarshalIndent(planeFile(p), "", "  ")
	return append(b, '\n'), err
}

// decodePlane reads a configuration.
func (s *Store) decodePlane(name string) (*Plane, error) {
	var p planeFile
	b, err := s.fs.Read(name)
	if err != nil {
		return nil, err
	}
	if err := json.Unmarshal(bytes.TrimSpace(b), &p); err != nil {
		return nil, err
	}
	if err := checkPlane(wire.CredentialPlane(p)); err != nil {
		return nil, err
	}
	out := Plane(p)
	return &out, nil
}
