package certificate

import (
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"sync"
	"time"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/core/wire"
)

// A certificate is renewed after about half of its life, each machine and each
// certificate at another moment, so that a fleet which climbed together does
// not renew together.
func renewAt() float64 { return 0.45 + 0.1*rand.Float64() }

type slot int

const (
	next slot = iota
	current
	previous
	slots
)

var names = [slots]string{NextFile, CurrentFile, PreviousFile}

// Store is a machine's keys and certificates. Its methods may be called from
// several goroutines.
type Store struct {
	fs credential.FS
	// machine is whose credential lies beside the files.
	machine func() string
	io      sync.Mutex // held while the disk is used, never while the network is

	mu      sync.Mutex // memory only
	held    [slots]*Held
	damaged [slots]string
	blocked error // why what is on the disk is not known
	tried   *Held // next's, once a connection with it is worth a check
	spoilt  *Held // refused by a handshake: another certificate is wanted first
	problem string
}

// Open reads what is on disk. It never fails: what cannot be read is not used.
func Open(d credential.FS, machine func() string) *Store {
	s := &Store{fs: d, machine: machine}
	s.Reload()
	// A process that died may have used it, and then nothing else is accepted.
	s.tried = s.held[next]
	return s
}

// Reload reads the files again.
func (s *Store) Reload() {
	s.io.Lock()
	defer s.io.Unlock()
	s.reload()
}

func (s *Store) reload() {
	s.mu.Lock()
	had := s.held
	s.mu.Unlock()
	var held [slots]*Held
	var damaged [slots]string
	var blocked error
	for i, name := range names {
		b, err := s.fs.Read(name)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			// What cannot be read says nothing against what memory holds.
			held[i], blocked = had[i], fmt.Errorf("cannot read %s: %w", name, err)
			continue
		}
		h, err := decode(b)
		switch {
		case err != nil:
			damaged[i] = name + ": " + err.Error()
		case had[i].Same(h) && had[i].chain == h.chain:
			held[i] = had[i] // the moment of its renewal stays
		default:
			held[i] = h
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held, s.damaged, s.blocked = held, damaged, blocked
}

// mine is what is held under a name, if it is this machine's.
func (s *Store) mine(i slot) *Held {
	h := s.held[i]
	if h == nil || h.Machine != s.machine() {
		return nil
	}
	return h
}

// Present returns the certificate to present, nil for none: the next key's once
// it has been tried, else the current one's, expired or not.
func (s *Store) Present() *Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.mine(next); h != nil && h.TLS != nil && s.tried.Same(h) {
		return h
	}
	return s.mine(current)
}

// Next returns the key that is on its way, nil for none.
func (s *Store) Next() *Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine(next)
}

// Current returns the key in use, nil off the rung.
func (s *Store) Current() *Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine(current)
}

// Previous returns the key before, for a plane that was restored.
func (s *Store) Previous() *Held {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.mine(previous)
}

// Usable reports whether h is worth presenting, at the plane's time.
func (s *Store) Usable(h *Held, now time.Time) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return h.TLS != nil && h != s.spoilt && now.Before(h.Expires)
}

// Due reports whether another certificate for h is wanted, at the plane's time:
// half of its life is over, or the plane is elsewhere now.
func (s *Store) Due(h *Held, now time.Time, plane string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	life := h.Expires.Sub(h.IssuedAt)
	return h.TLS == nil || h == s.spoilt || h.Plane != plane || !now.Before(h.IssuedAt.Add(time.Duration(float64(life)*h.at)))
}

// Tried says that the next key's certificate opened a connection.
func (s *Store) Tried(h *Held) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tried = h
}

// Refused says that h did not do: the next key's waits to be tried again, the
// current one's wants to be replaced where the handshake refused it.
func (s *Store) Refused(h *Held, handshake bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[next].Same(h) {
		s.tried = nil
	}
	if handshake {
		s.spoilt = h
	}
}

// Stage returns the key that is on its way, and makes one if there is none
// (step 1).
func (s *Store) Stage(answers time.Time) (*Held, error) {
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if h := s.Next(); h != nil {
		return h, s.wrote(nil)
	}
	key, err := newKey()
	if err != nil {
		return nil, err
	}
	h := &Held{Machine: s.machine(), Answers: answers, key: key}
	return h, s.wrote(s.put(next, h))
}

// Certified writes the certificate for h that the plane answered (step 3). It
// returns what is held now.
func (s *Store) Certified(h *Held, a wire.CertificateAnswer, plane string) (*Held, error) {
	n, err := h.with(a, plane)
	if err != nil {
		return nil, err
	}
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.begin()
	if err != nil {
		return nil, err
	}
	defer unlock()
	for i := range slots {
		s.mu.Lock()
		is := s.held[i].Same(h)
		s.mu.Unlock()
		if is && i == previous {
			// The plane knows this key again.
			if err := s.put(next, n); err != nil {
				return nil, s.wrote(err)
			}
			return n, s.wrote(nil)
		}
		if is {
			return n, s.wrote(s.put(i, n))
		}
	}
	return nil, errors.New("the key is gone from the disk")
}

// Promote makes the next key the current one (step 5).
func (s *Store) Promote() error {
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.begin()
	if err != nil {
		return err
	}
	defer unlock()
	s.mu.Lock()
	h, old := s.held[next], s.held[current]
	s.mu.Unlock()
	if h == nil {
		return s.wrote(nil)
	}
	if old != nil {
		if err := s.fs.Rename(CurrentFile, PreviousFile); err != nil {
			return s.wrote(err)
		}
		s.set(func() { s.held[previous], s.held[current] = old, nil })
	}
	if err := s.fs.Rename(NextFile, CurrentFile); err != nil {
		return s.wrote(err)
	}
	s.set(func() { s.held[current], s.held[next], s.tried = h, nil, nil })
	return s.wrote(s.fs.SyncDir())
}

// Retire puts the current key away, and the one on its way: the plane takes the
// bearer.
func (s *Store) Retire() error { return s.putAway(current) }

// Abandon puts the key on its way away, after the plane said that it will not
// have it.
func (s *Store) Abandon() error { return s.putAway(next) }

func (s *Store) putAway(i slot) error {
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.begin()
	if err != nil {
		return err
	}
	defer unlock()
	return s.wrote(s.retire(i))
}

func (s *Store) retire(i slot) error {
	s.mu.Lock()
	h := s.held[i]
	s.mu.Unlock()
	if h == nil {
		return nil
	}
	if err := s.fs.Rename(names[i], PreviousFile); err != nil {
		return err
	}
	s.set(func() { s.held[previous], s.held[i] = h, nil })
	return s.fs.SyncDir()
}

func (s *Store) set(f func()) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f()
}

// begin locks the files, reads them again, since another process may have
// changed them, and moves aside what is damaged and would be overwritten.
func (s *Store) begin() (unlock func(), err error) {
	if unlock, err = s.fs.Lock(); err != nil {
		return nil, s.wrote(err)
	}
	s.reload()
	s.mu.Lock()
	damaged, blocked := s.damaged, s.blocked
	s.mu.Unlock()
	for i, why := range damaged {
		if why != "" && blocked == nil {
			blocked = s.fs.Rename(names[i], names[i]+".damaged")
		}
	}
	if blocked != nil {
		unlock()
		return nil, s.wrote(blocked)
	}
	return unlock, nil
}

func (s *Store) put(i slot, h *Held) error {
	b, err := encode(h)
	if err != nil {
		return err
	}
	if err := credential.Replace(s.fs, names[i], b); err != nil {
		return fmt.Errorf("cannot write %s: %w", names[i], err)
	}
	s.set(func() { s.held[i], s.damaged[i] = h, "" })
	return nil
}

// wrote records how the last write went.
func (s *Store) wrote(err error) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.problem = ""
	if err != nil {
		s.problem = err.Error()
	}
	return err
}

// Status is what is known, from memory.
type Status struct {
	Rung    string     // wire.KindBearer or wire.KindMTLS
	Expires *time.Time // of the certificate in use
	Problem string     // why the last write did not succeed
	Damaged []string
}

// Status tells without touching the disk.
func (s *Store) Status() Status {
	h := s.Present()
	s.mu.Lock()
	defer s.mu.Unlock()
	st := Status{Rung: wire.KindBearer, Problem: s.problem}
	if h != nil {
		st.Rung = wire.KindMTLS
		if h.TLS != nil {
			st.Expires = &h.Expires
		}
	}
	for _, d := range s.damaged {
		if d != "" {
			st.Damaged = append(st.Damaged, d)
		}
	}
	return st
}
