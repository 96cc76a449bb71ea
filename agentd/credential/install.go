package credential

import (
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/url"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// maxDocument bounds the document that an install reads.
const maxDocument = 256 << 10

// ReadDocument reads and checks a fleet.credential/v1 document. Its errors
// never quote what was read.
func ReadDocument(r io.Reader) (*wire.Credential, error) {
	b, err := io.ReadAll(io.LimitReader(r, maxDocument+1))
	if err != nil {
		return nil, fmt.Errorf("cannot read credential: %w", err)
	}
	if len(b) > maxDocument {
		return nil, fault.Usagef("the credential document is longer than %d bytes", maxDocument)
	}
	var doc wire.Credential
	if json.Unmarshal(b, &doc) != nil {
		return nil, fault.Usagef("the credential document is not JSON or is cut short")
	}
	if err := checkDocument(&doc); err != nil {
		return nil, fault.Usagef("cannot take credential: %s", err)
	}
	return &doc, nil
}

func checkDocument(doc *wire.Credential) error {
	s := secret.Of(doc.Secret).Reveal()
	switch {
	case doc.Schema != wire.SchemaCredential:
		return fmt.Errorf("its schema is not %s", wire.SchemaCredential)
	case !wire.IsMachineID(doc.Machine):
		return errors.New("machine is not a machine id")
	case doc.Generation < 1:
		return errors.New("generation is not positive")
	case len(s) < 32 || len(s) > 256 || !plain(s):
		return errors.New("the secret is malformed")
	case doc.Gate != nil && doc.Gate.Check() != nil:
		return errors.New("the gate token is malformed")
	}
	return checkPlane(doc.Plane)
}

// plain reports whether s may stand in an HTTP header as one word.
func plain(s string) bool {
	for i := 0; i < len(s); i++ {
		if s[i] <= ' ' || s[i] > '~' {
			return false
		}
	}
	return true
}

func checkPlane(p wire.CredentialPlane) error {
	u, err := url.Parse(p.URL)
	if err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("the plane's URL is not https://HOST[:PORT]")
	}
	if p.URLVersion < 0 || p.TrustVersion < 0 {
		return errors.New("the plane's versions are not numbers from 0 on")
	}
	if p.RootsPEM != "system" && !x509.NewCertPool().AppendCertsFromPEM([]byte(p.RootsPEM)) {
		return errors.New("the plane's roots hold no certificate")
	}
	return nil
}

// Outcomes of an install.
const (
	Installed = "installed"
	Same      = "same"     // exactly this credential was there, or a later one that grew from it
	Replaced  = "replaced" // one that never worked, or that is dead, gave way
)

// Install puts a credential that a person's install brought in place. It
// never replaces one that works: a later generation of the same machine stays,
// and so does another plane's, unless force says so. Repeating it changes
// nothing.
//
// The files of the plane and the gate come before the credential, so that a
// crash leaves no credential with another's plane: one that gives way is moved
// aside first.
func (s *Store) Install(doc *wire.Credential, force bool) (outcome string, err error) {
	if err := checkDocument(doc); err != nil {
		return "", err
	}
	s.io.Lock()
	defer s.io.Unlock()
	unlock, err := s.fs.Lock()
	if err != nil {
		return "", err
	}
	defer unlock()
	s.reload()
	s.mu.Lock()
	held, damaged, plane, row, revoked, blocked := s.held, s.damaged, s.plane, s.row, s.revoked, s.blocked
	s.mu.Unlock()
	if blocked != nil && !force {
		return "", fault.New(fault.Refused, "credential_unreadable", "whether this machine has a credential that works is not known: %s", blocked).
			WithHint("make the file readable; --replace puts the given one in place all the same")
	}

	c := &Credential{Machine: doc.Machine, Generation: doc.Generation, Secret: secret.Of(doc.Secret)}
	old := newest(held)
	proven := row != nil && !revoked
	outcome = Installed
	if old != nil {
		outcome = Replaced
		switch {
		case old.Machine == c.Machine && holds(held, c):
			outcome = Same
		case force:
		case old.Machine == c.Machine && proven && old.Generation >= c.Generation:
			return "", fault.New(fault.Refused, "credential_lives",
				"this machine has generation %d of its credential, which works", old.Generation).
				WithHint("nothing needs to be installed; --replace puts the given one in place all the same")
		case old.Machine != c.Machine && proven && plane != nil && plane.URL != doc.Plane.URL:
			return "", fault.New(fault.Refused, "credential_lives",
				"this machine has a working credential of %s for another plane, %s", old.Machine, plane.URL).
				WithHint("delete the machine there first, or give --replace")
		}
	}
	defer s.reload()
	if outcome == Replaced {
		if err := s.moveAside(held, damaged); err != nil {
			return "", s.wrote(fmt.Errorf("cannot move old credential aside: %w", err))
		}
	}
	if err := s.writePlane(doc); err != nil {
		return "", s.wrote(fmt.Errorf("cannot write plane and gate: %w", err))
	}
	if outcome != Same {
		if damaged[current] != "" {
			if err := s.fs.Rename(CurrentFile, CurrentFile+".damaged"); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return "", s.wrote(err)
			}
		}
		if err := Replace(s.fs, CurrentFile, encode(c)); err != nil {
			return "", s.wrote(fmt.Errorf("cannot write credential: %w", err))
		}
	}
	if revoked {
		if err := errors.Join(s.fs.Remove(revokedFile), s.fs.SyncDir()); err != nil {
			return "", s.wrote(err)
		}
	}
	s.wrote(nil)
	return outcome, nil
}

func newest(held [slots]*Credential) *Credential {
	var best *Credential
	for _, c := range held {
		if c != nil && (best == nil || c.Generation > best.Generation) {
			best = c
		}
	}
	return best
}

func holds(held [slots]*Credential, c *Credential) bool {
	for _, o := range held {
		if o.is(c) {
			return true
		}
	}
	return false
}

// moveAside keeps the credential that gives way as credential.replaced and
// clears what belonged to it.
func (s *Store) moveAside(held [slots]*Credential, damaged [slots]string) error {
	if held[current] != nil {
		if err := s.fs.Rename(CurrentFile, replacedFile); err != nil {
			return err
		}
	}
	for _, i := range []slot{next, previous} {
		if damaged[i] != "" {
			if err := s.fs.Rename(names[i], names[i]+".damaged"); err != nil {
				return err
			}
		} else if held[i] != nil {
			if held[current] == nil && i == next { // the only one there is
				if err := s.fs.Rename(names[i], replacedFile); err != nil {
					return err
				}
				continue
			}
			if err := s.fs.Remove(names[i]); err != nil {
				return err
			}
		}
	}
	if err := s.fs.Remove(rowFile); err != nil {
		return err
	}
	return s.fs.SyncDir()
}

func (s *Store) writePlane(doc *wire.Credential) error {
	// What was staged was of a time before this.
	if err := s.fs.Remove(nextPlaneFile); err != nil {
		return err
	}
	b, err := encodePlane(Plane(doc.Plane))
	if err != nil {
		return err
	}
	if err := Replace(s.fs, PlaneFile, b); err != nil {
		return err
	}
	if err := s.fs.Remove(previousPlaneFile); err != nil {
		return err
	}
	if doc.Gate == nil {
		return errors.Join(s.fs.Remove(gateNextFile), s.fs.Remove(GateFile))
	}
	if err := Replace(s.fs, GateFile, []byte(doc.Gate.Line())); err != nil {
		return err
	}
	// What was staged was of a time before this.
	return s.fs.Remove(gateNextFile)
}
