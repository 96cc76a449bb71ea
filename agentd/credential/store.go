package credential

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"syscall"
	"time"

	"fleet.example/fleet/core/wire"
)

// Names of the files.
const (
	CurrentFile  = "credential"
	NextFile     = "credential.next"
	PreviousFile = "credential.previous"
	PlaneFile    = "plane.json"
	GateFile     = "gate"
	rowFile      = "row.json"
	revokedFile  = "revoked"
	replacedFile = "credential.replaced"
)

type slot int

// The order in which credentials are tried.
const (
	next slot = iota
	current
	previous
	slots
)

var names = [slots]string{NextFile, CurrentFile, PreviousFile}

// Plane says where the plane is and what vouches for it.
type Plane struct {
	URL      string
	RootsPEM string // or "system"
	// Versions of the two, 0 before a person's statement was taken.
	URLVersion   int64
	TrustVersion int64
}

// Row is the row that the plane confirmed last. It outlives a restart, so that
// a data path can still be matched while the plane is out (R5).
type Row struct {
	Machine    string    `json:"machine"`
	Generation int64     `json:"generation"`
	At         time.Time `json:"at"`
}

// rowEvery bounds how old the row on disk may be; it is not worth a write a check.
const rowEvery = 10 * time.Minute

// Rotator sends a rotation's digest, presenting c. A refusal with the code
// wire.CodeBehind is told by an error for which Behind reports true.
type Rotator interface {
	Rotate(ctx context.Context, c Credential, req wire.RotateRequest) error
}

// Behind is implemented by a refusal of a superseded credential.
type Behind interface{ Behind() bool }

// Store is a machine's credential. Its methods may be called from several
// goroutines; those that use the disk wait for each other.
type Store struct {
	fs FS
	io sync.Mutex // held while the disk is used, and never while the network is
	// unsynced says that the disk holds what may not outlive a power cut. It is
	// guarded by io.
	unsynced bool

	mu       sync.Mutex // memory only
	held     [slots]*Credential
	damaged  [slots]string
	blocked  error // why what is on the disk is not known for sure
	cursor   slot
	accepted *Credential // presented last with success
	plane    *Plane
	gates    gates
	moves    moves
	planeErr string
	row      *Row
	rowSaved Row
	revoked  bool
	state    string
	problem  string // why the last write did not succeed
}

// Open reads what is on disk. It never fails: what cannot be read is a state
// that Status tells, and the other files still serve.
func Open(d FS) *Store {
	s := &Store{fs: d}
	s.Reload()
	return s
}

// Reload reads the files again, after another process changed them.
func (s *Store) Reload() {
	s.io.Lock()
	defer s.io.Unlock()
	s.reload()
}

// reload adopts what is on disk, and returns what memory holds and the disk has
// lost, if anything. What cannot be read says nothing against what memory
// holds: a process that has run out of file descriptors still has its identity.
func (s *Store) reload() (lost *Credential) {
	var held [slots]*Credential
	var damaged [slots]string
	s.mu.Lock()
	had := s.held
	s.mu.Unlock()
	var blocked error
	for i, name := range names {
		b, err := s.fs.Read(name)
		var errno syscall.Errno
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case errors.As(err, &errno):
			blocked = fmt.Errorf("cannot read %s: %w", name, err)
			held[i] = had[i]
		case err == nil:
			held[i], err = decode(b)
		}
		if err != nil {
			damaged[i] = fmt.Sprintf("%s: %v", name, err)
		}
	}
	// Files of two machines cannot stem from a rotation. The one under the
	// main name counts.
	if c := held[current]; c != nil {
		for _, i := range []slot{next, previous} {
			o := held[i]
			if o != nil && (o.Machine != c.Machine || i == next && o.Generation <= c.Generation || i == previous && o.Generation > c.Generation) {
				damaged[i], held[i] = names[i]+": it does not belong with "+CurrentFile, nil
			}
		}
	}
	// Another process may have been killed between renaming a file and syncing
	// the directory. What is not sure to be there tomorrow is not used today.
	for i := range held {
		s.unsynced = s.unsynced || held[i] != nil && !held[i].is(had[i])
	}
	if s.unsynced {
		if err := s.fs.SyncDir(); err == nil {
			s.unsynced = false
		} else if blocked == nil {
			blocked = fmt.Errorf("cannot sync the directory: %w", err)
		}
	}
	plane, gates, planeErr, unread := s.readPlane()
	var row *Row
	var r Row
	if s.readJSON(rowFile, &r) == nil && wire.IsMachineID(r.Machine) {
		row = &r
	}
	var mark Row
	revoked := s.readJSON(revokedFile, &mark) == nil

	s.mu.Lock()
	defer s.mu.Unlock()
	lost, in := s.lostLocked(held)
	if lost != nil {
		held[in] = lost
	}
	same := s.held[s.cursor].is(held[s.cursor])
	s.held, s.damaged, s.blocked = held, damaged, blocked
	s.planeErr = planeErr
	if !unread { // what cannot be looked at now is as it was
		s.plane = plane
		s.gates.adopt(gates)
	}
	s.moves.staged = true // goOn looks
	machine := s.machineLocked()
	s.revoked = revoked && (machine == "" || mark.Machine == machine)
	if s.row == nil || s.row.Machine != machine {
		s.row = nil
		if row != nil && row.Machine == machine {
			s.row, s.rowSaved = row, *row
		}
	}
	if !same {
		s.cursor = next
		s.state = ""
		s.accepted = nil
	}
	return lost
}

// lostLocked returns a credential that memory holds, that has gone from the
// disk, and in whose place nobody put another one: the staged one, which may
// have been presented already, or the one that the plane accepted last.
func (s *Store) lostLocked(disk [slots]*Credential) (*Credential, slot) {
	if n := s.held[next]; n != nil && disk[next] == nil && s.held[current].is(disk[current]) {
		return n, next
	}
	acc := s.accepted
	if acc == nil || !acc.is(s.held[s.cursor]) || disk[current] != nil {
		return nil, 0
	}
	for _, c := range disk {
		if c != nil && (c.Machine != acc.Machine || c.Generation >= acc.Generation) {
			return nil, 0
		}
	}
	return acc, s.cursor
}

func (s *Store) readJSON(name string, v any) error {
	b, err := s.fs.Read(name)
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

type planeFile struct {
	URL          string `json:"url"`
	RootsPEM     string `json:"roots_pem"`
	URLVersion   int64  `json:"url_version,omitempty"`
	TrustVersion int64  `json:"trust_version,omitempty"`
}

// readPlane reads where the plane is, and the gate's token. unread says that a
// file could not be looked at, as for want of descriptors, and that nothing is
// known of it.
func (s *Store) readPlane() (p *Plane, gate gates, problem string, unread bool) {
	p, err := s.decodePlane(PlaneFile)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, gates{}, "", false
	}
	var errno syscall.Errno
	if err != nil {
		return nil, gates{}, fmt.Sprintf("%s: %v", PlaneFile, err), errors.As(err, &errno)
	}
	if gate, err = s.readGate(); err != nil {
		return p, gate, fmt.Sprintf("%s: %v", GateFile, err), errors.As(err, &errno)
	}
	return p, gate, "", false
}

// Machine is the machine id that the credential names, or "".
func (s *Store) Machine() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.machineLocked()
}

func (s *Store) machineLocked() string {
	for _, i := range []slot{current, next, previous} {
		if c := s.held[i]; c != nil {
			return c.Machine
		}
	}
	return ""
}

// Plane returns where the plane is, or nil, and the gate token to present, or
// nil.
func (s *Store) Plane() (*Plane, *wire.CredentialGate) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.plane, s.gates.present()
}

// Present returns the credential to present now.
func (s *Store) Present() (Credential, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for range slots {
		if c := s.held[s.cursor]; c != nil {
			return *c, true
		}
		s.cursor = (s.cursor + 1) % slots
	}
	return Credential{}, false
}

// Accepted says that the plane accepted c for the row that it names.
func (s *Store) Accepted(c Credential, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.accepted = &c
	s.state = wire.CredentialOK
	s.row = &Row{Machine: c.Machine, Generation: c.Generation, At: at}
}

// Confirmed says that the plane knew the machine by something else than a
// secret, a certificate, and which generation it says is current. Where the
// machine has that one, it is as good as presented with success.
func (s *Store) Confirmed(machine string, generation int64, at time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state = wire.CredentialOK
	s.row = &Row{Machine: machine, Generation: generation, At: at}
	s.accepted = nil
	for _, c := range s.held {
		if c != nil && c.Machine == machine && c.Generation == generation {
			s.accepted = c
		}
	}
}

// Refused says that the plane refused c with a code of the closed vocabulary:
// wire.CodeUnauthorized, wire.CodeBehind or wire.CodeRevoked.
func (s *Store) Refused(c Credential, code string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !c.is(s.held[s.cursor]) {
		return // the files changed meanwhile
	}
	s.accepted = nil // what was accepted before proves nothing any more
	switch code {
	case wire.CodeUnauthorized:
		s.state = wire.CredentialUnauthorized
		s.cursor = (s.cursor + 1) % slots
	case wire.CodeBehind:
		for _, i := range []slot{next, current} { // the newest first
			if o := s.held[i]; o != nil && o.Generation > c.Generation {
				s.cursor = i
				return
			}
		}
		s.state = wire.CredentialBehind
	}
}

// Newest reports whether nothing newer than c is on disk.
func (s *Store) Newest(c Credential) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.held {
		if o != nil && o.Generation > c.Generation {
			return false
		}
	}
	return true
}

// Status is what is known of the credential, from memory.
type Status struct {
	State      string // one of wire's Credential constants
	Machine    string
	Generation int64 // of the one that is presented
	Row        *Row
	Plane      string
	Gate       int64    // version that is presented, 0: none
	Problem    string   // why the last write did not succeed
	Damaged    []string // files that cannot be read, and why
	Revoked    bool
	// Have is the version of each kind of material that a person signs; 0 ones are
	// left out. Refused says why the plane's last statement was not taken.
	Have    map[string]int64
	Refused string
}

// Status tells without touching the disk.
func (s *Store) Status() Status {
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{State: s.state, Machine: s.machineLocked(), Problem: cmp.Or(s.problem, s.gates.problem), Revoked: s.revoked}
	for i := range slots {
		if c := s.held[(s.cursor+i)%slots]; c != nil {
			st.Generation = c.Generation
			break
		}
	}
	for _, d := range s.damaged {
		if d != "" {
			st.Damaged = append(st.Damaged, d)
		}
	}
	if s.planeErr != "" {
		st.Damaged = append(st.Damaged, s.planeErr)
	}
	if s.row != nil {
		r := *s.row
		st.Row = &r
	}
	if s.plane != nil {
		st.Plane = s.plane.URL
		for _, kind := range signedKinds {
			if v := s.plane.Version(kind); v > 0 {
				if st.Have == nil {
					st.Have = map[string]int64{}
				}
				st.Have[kind] = v
			}
		}
	}
	st.Refused = s.moves.problem
	if g := s.gates.present(); g != nil {
		st.Gate = g.Version
	}
	switch {
	case st.Machine == "":
		st.State = wire.CredentialMissing
	case s.revoked:
		st.State = wire.CredentialRevoked
	case st.State == "" && s.row != nil:
		st.State = wire.CredentialOK
	case st.State == "":
		st.State = wire.CredentialUnproven
	}
	return st
}

// saveRow writes the confirmed row now and then. Losing one is harmless.
func (s *Store) saveRow(row *Row) {
	s.mu.Lock()
	saved := s.rowSaved
	s.mu.Unlock()
	if row == nil || saved.Machine == row.Machine && saved.Generation == row.Generation && row.At.Sub(saved.At) < rowEvery {
		return
	}
	b, err := json.Marshal(row)
	if err != nil || Replace(s.fs, rowFile, b) != nil {
		return
	}
	s.mu.Lock()
	s.rowSaved = *row
	s.mu.Unlock()
}

// MarkRevoked records that the plane said, twice, that the machine was
// deleted. The credential stays; nothing but an install clears the mark.
func (s *Store) MarkRevoked(at time.Time) error {
	s.mu.Lock()
	s.revoked = true
	machine := s.machineLocked()
	s.mu.Unlock()
	s.io.Lock()
	defer s.io.Unlock()
	b, err := json.Marshal(Row{Machine: machine, At: at})
	if err == nil {
		err = Replace(s.fs, revokedFile, b)
	}
	return err
}
