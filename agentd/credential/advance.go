package credential

import (
	"context"
	"errors"
	"fmt"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Advance does what the last success makes possible: it promotes a next that
// was accepted, and starts or repeats a rotation. request is the plane's, or
// nil; a generation answers it if it was made for it. The first generation,
// whose secret travelled, is always rotated away (R1). moved reports that
// another credential is to be presented now.
func (s *Store) Advance(ctx context.Context, r Rotator, request *time.Time) (moved bool, err error) {
	s.mu.Lock()
	acc := s.accepted
	s.mu.Unlock()
	if acc == nil {
		return false, nil
	}
	target, err := s.prepare(acc, request)
	if err != nil || target == nil {
		return false, err
	}
	// The files may be changed by an install during the request; the cursor
	// moves only if the target still stands.
	err = r.Rotate(ctx, *acc, wire.RotateRequest{Generation: target.Generation, Digest: target.Secret.Digest().Hex()})
	var b Behind
	if err != nil && !(errors.As(err, &b) && b.Behind()) {
		return false, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range slots {
		if s.held[i].is(target) {
			s.cursor = i
			s.accepted = nil // Advance has nothing more to do until the next success
			return true, nil
		}
	}
	return false, nil
}

// prepare is Advance's part on disk. It returns the credential to rotate to.
func (s *Store) prepare(acc *Credential, request *time.Time) (target *Credential, err error) {
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.fs.Lock()
	if err != nil {
		return nil, s.wrote(err)
	}
	defer unlock()
	// Another process may have changed what lies there: an install, or another
	// agentd where no lock could be had. What is staged there is the next
	// generation, and never gives way to one of ours.
	lost := s.reload()
	s.mu.Lock()
	held, damaged, row, blocked := s.held, s.damaged, s.row, s.blocked
	stale := s.accepted == nil
	s.mu.Unlock()
	switch {
	case stale:
		return nil, nil
	case blocked != nil: // what is not known is not moved
		return nil, s.wrote(blocked)
	}
	if lost != nil {
		if err := s.stage(lost, damaged[next] != ""); err != nil {
			return nil, s.wrote(fmt.Errorf("cannot write back a credential that is gone from the disk: %w", err))
		}
		held, damaged[next] = s.unslot(lost), ""
	}
	if acc.is(held[next]) {
		if err := s.promote(held, damaged); err != nil {
			return nil, s.wrote(fmt.Errorf("cannot promote credential: %w", err))
		}
		s.mu.Lock()
		held, damaged = s.held, s.damaged
		s.mu.Unlock()
	}
	s.saveRow(row)
	for _, c := range held {
		if c != nil && c.Generation == acc.Generation+1 {
			return c, nil
		}
	}
	newest := true
	for _, c := range held {
		newest = newest && (c == nil || c.Generation <= acc.Generation)
	}
	unanswered := request != nil && !request.Equal(acc.Answers)
	if !newest || !unanswered && acc.Generation > 1 {
		return nil, s.wrote(nil)
	}
	c := &Credential{Machine: acc.Machine, Generation: acc.Generation + 1, Secret: secret.New("fm_")}
	if request != nil {
		c.Answers = *request
	}
	if err := s.stage(c, damaged[next] != ""); err != nil {
		return nil, s.wrote(fmt.Errorf("cannot write next credential: %w", err))
	}
	s.wrote(nil)
	return c, nil
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

// stage puts c under credential.next (step 1).
func (s *Store) stage(c *Credential, damaged bool) error {
	if damaged {
		if err := s.fs.Rename(NextFile, NextFile+".damaged"); err != nil {
			return err
		}
	}
	if err := Replace(s.fs, NextFile, encode(c)); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.held[next], s.damaged[next] = c, ""
	if s.cursor == next {
		s.cursor = current // what works stays in use until the plane has heard
	}
	return nil
}

// unslot leaves c, which was written back, under next alone.
func (s *Store) unslot(c *Credential) [slots]*Credential {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.held[current].is(c) {
		s.held[current] = nil
		s.cursor = next
	}
	return s.held
}

// promote makes next current and current previous (step 4).
func (s *Store) promote(held [slots]*Credential, damaged [slots]string) error {
	switch {
	case damaged[current] != "":
		if err := s.fs.Rename(CurrentFile, CurrentFile+".damaged"); err != nil {
			return err
		}
	case held[current] != nil:
		if damaged[previous] != "" {
			if err := s.fs.Rename(PreviousFile, PreviousFile+".damaged"); err != nil {
				return err
			}
		}
		if err := s.keepPrevious(held[current]); err != nil {
			return err
		}
	}
	if err := s.fs.Rename(NextFile, CurrentFile); err != nil {
		return err
	}
	if err := s.fs.SyncDir(); err != nil {
		return err
	}
	b, err := s.fs.Read(CurrentFile)
	if err != nil {
		return err
	}
	if c, err := decode(b); err != nil || !c.is(held[next]) {
		return errors.New("what was promoted does not read back")
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if held[current] != nil {
		s.held[previous] = held[current]
		s.damaged[previous] = ""
	}
	s.held[current], s.held[next] = held[next], nil
	s.damaged[current] = ""
	if s.cursor == next {
		s.cursor = current
	}
	return nil
}

// keepPrevious makes credential.previous hold what credential holds. A link
// needs no space; where there are none, a copy serves.
func (s *Store) keepPrevious(c *Credential) error {
	tmp := PreviousFile + ".tmp"
	if err := s.fs.Remove(tmp); err != nil {
		return err
	}
	if err := s.fs.Link(CurrentFile, tmp); err != nil {
		return Replace(s.fs, PreviousFile, encode(c))
	}
	if err := s.fs.Rename(tmp, PreviousFile); err != nil {
		return err
	}
	// Renaming one link of a file over another does nothing and leaves both.
	if err := s.fs.Remove(tmp); err != nil {
		return err
	}
	return s.fs.SyncDir()
}
