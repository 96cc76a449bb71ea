package credential

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// giver is a plane that gives one version of the gate token, to one credential.
type giver struct {
	to    secret.Digest
	gives *wire.CredentialGate // nil: there is no gate
	err   error                // of every request
	asked []int64
}

var errNotYou = errors.New("unauthorized")

func (g *giver) Material(_ context.Context, c Credential, kind string, version int64) (*wire.Material, int64, error) {
	g.asked = append(g.asked, version)
	switch {
	case g.err != nil:
		return nil, 0, g.err
	case c.Secret.Digest() != g.to || kind != wire.MaterialGate:
		return nil, 0, errNotYou
	case g.gives == nil:
		return nil, 0, nil
	case g.gives.Version != version:
		return nil, g.gives.Version, nil
	}
	return &wire.Material{Schema: wire.SchemaMaterial, Kind: kind, Version: version, Value: g.gives.Value}, 0, nil
}

func gateOf(version int64) *wire.CredentialGate {
	return &wire.CredentialGate{Version: version, Value: secret.New("fg_").Reveal()}
}

// stuck is a directory that may be full.
type stuck struct {
	Dir
	full bool
}

func (s *stuck) Write(name string, data []byte) error {
	if s.full {
		return errors.New("no space left on device")
	}
	return s.Dir.Write(name, data)
}

// gatedStore is a store that was installed with a gate token.
func gatedStore(t *testing.T, held *wire.CredentialGate) (s *Store, fs *stuck, c Credential, dir string) {
	t.Helper()
	dir = t.TempDir()
	fs = &stuck{Dir: Dir(dir)}
	s = Open(fs)
	doc := testDoc()
	doc.Gate = held
	if _, err := s.Install(doc, false); err != nil {
		t.Fatal(err)
	}
	c, _ = s.Present()
	return s, fs, c, dir
}

// lies is the version in a file, 0 if there is none.
func lies(t *testing.T, dir, name string) int64 {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, name))
	if errors.Is(err, os.ErrNotExist) {
		return 0
	}
	if err != nil {
		t.Fatal(err)
	}
	v, err := wire.ParseGate(string(b))
	if err != nil {
		t.Fatal(err)
	}
	if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%s: %v, %v", name, st.Mode(), err)
	}
	return v.Version
}

func presents(t *testing.T, s *Store, version int64) {
	t.Helper()
	_, g := s.Plane()
	var got int64
	if g != nil {
		got = g.Version
	}
	if got != version || s.Status().Gate != version {
		t.Errorf("version %d is presented, not %d", got, version)
	}
}

// The old token goes only when the new one was accepted, and the new one is on
// disk before it is presented. // R26
func TestATokenIsReplacedOnlyWhenItsSuccessorWorks(t *testing.T) {
	s, fs, c, dir := gatedStore(t, gateOf(1))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(2)}
	if moved, err := s.AdvanceGate(t.Context(), g, c, 0); moved || err != nil || len(g.asked) != 0 {
		t.Fatal(moved, err, g.asked)
	}
	if moved, err := s.AdvanceGate(t.Context(), g, c, 2); !moved || err != nil {
		t.Fatal(moved, err)
	}
	presents(t, s, 2)
	if lies(t, dir, GateFile) != 1 || lies(t, dir, gateNextFile) != 2 {
		t.Fatal("the files are not both there")
	}
	// A restart before the first answer presents it again.
	s = Open(fs)
	presents(t, s, 2)
	s.GateAccepted(1) // an answer to what was presented before says nothing of it
	if _, err := s.AdvanceGate(t.Context(), g, c, 0); err != nil || lies(t, dir, GateFile) != 1 {
		t.Fatal(err)
	}
	s.GateAccepted(2)
	if moved, err := s.AdvanceGate(t.Context(), g, c, 0); moved || err != nil {
		t.Fatal(moved, err)
	}
	if lies(t, dir, GateFile) != 2 || lies(t, dir, gateNextFile) != 0 {
		t.Fatal("the old token is there still")
	}
	presents(t, Open(fs), 2)
}

func TestAFullDiskKeepsTheTokenThatWorks(t *testing.T) { // R21, R26
	s, fs, c, dir := gatedStore(t, gateOf(1))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(2)}
	fs.full = true
	if moved, err := s.AdvanceGate(t.Context(), g, c, 2); moved || err == nil {
		t.Fatal(moved, err)
	}
	presents(t, s, 1)
	if st := s.Status(); !strings.Contains(st.Problem, "gate token") {
		t.Fatalf("%+v", st)
	}
	fs.full = false
	if moved, err := s.AdvanceGate(t.Context(), g, c, 2); !moved || err != nil || s.Status().Problem != "" {
		t.Fatal(moved, err, s.Status())
	}
	// Keeping it needs no room.
	fs.full = true
	s.GateAccepted(2)
	if _, err := s.AdvanceGate(t.Context(), g, c, 0); err != nil || lies(t, dir, GateFile) != 2 {
		t.Fatal(err)
	}
}

// An abort takes a version back: it goes, once the one before was accepted. // R26
func TestATokenThatWasTakenBackGoes(t *testing.T) {
	s, _, c, dir := gatedStore(t, gateOf(1))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(2)}
	if _, err := s.AdvanceGate(t.Context(), g, c, 2); err != nil {
		t.Fatal(err)
	}
	if moved, err := s.AdvanceGate(t.Context(), g, c, 1); !moved || err != nil || len(g.asked) != 1 {
		t.Fatal(moved, err, g.asked)
	}
	presents(t, s, 1)
	if s.AdvanceGate(t.Context(), g, c, 0); lies(t, dir, gateNextFile) != 2 {
		t.Fatal("it goes before the other one was accepted")
	}
	s.GateAccepted(1)
	if _, err := s.AdvanceGate(t.Context(), g, c, 0); err != nil || lies(t, dir, gateNextFile) != 0 || lies(t, dir, GateFile) != 1 {
		t.Fatal(err)
	}
	presents(t, s, 1)
}

// Whoever slept through a rotation, or several, finds the token that counts. // R26
func TestASleeperSeeksTheToken(t *testing.T) {
	for name, held := range map[string]*wire.CredentialGate{"an old one": gateOf(1), "none": nil, "a later one than is given": gateOf(9)} {
		t.Run(name, func(t *testing.T) {
			s, _, c, dir := gatedStore(t, held)
			g := &giver{to: c.Secret.Digest(), gives: gateOf(5)}
			if moved, err := s.SeekGate(t.Context(), g); !moved || err != nil {
				t.Fatal(moved, err)
			}
			presents(t, s, 5)
			if !slices.Contains(g.asked, 5) || lies(t, dir, gateNextFile) != 5 {
				t.Errorf("asked for %v", g.asked)
			}
			// It is not the token that is to blame any more.
			if moved, err := s.SeekGate(t.Context(), g); moved || err != nil {
				t.Fatal(moved, err)
			}
		})
	}
	// Another value under the number that is held is taken, too: the file was
	// altered.
	s, _, c, _ := gatedStore(t, gateOf(5))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(5)}
	if moved, err := s.SeekGate(t.Context(), g); !moved || err != nil {
		t.Fatal(moved, err)
	}
	if _, p := s.Plane(); *p != *g.gives {
		t.Error("the altered token is presented still")
	}
}

func TestASeekWithoutAnAnswerTriesTheOther(t *testing.T) { // R26
	s, _, c, _ := gatedStore(t, gateOf(1))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(2)}
	if moved, _ := s.SeekGate(t.Context(), &giver{err: errors.New("no route")}); moved {
		t.Error("there is no other")
	}
	if _, err := s.AdvanceGate(t.Context(), g, c, 2); err != nil {
		t.Fatal(err)
	}
	for _, want := range []int64{1, 2, 1} {
		if moved, err := s.SeekGate(t.Context(), &giver{err: errors.New("no route")}); !moved || err == nil {
			t.Fatal(moved, err)
		}
		presents(t, s, want)
	}
	// A plane without a gate says that the token is not to blame.
	if moved, err := s.SeekGate(t.Context(), &giver{to: c.Secret.Digest()}); moved || err != nil {
		t.Fatal(moved, err)
	}
	presents(t, s, 1)
}

func TestAPlanesNonsenseIsNoToken(t *testing.T) {
	s, _, c, dir := gatedStore(t, gateOf(1))
	for _, value := range []string{"", "short", "with a blank in it, and long enough", "line\nbreaks-that-would-be-two-headers", strings.Repeat("x", 300)} {
		g := &giver{to: c.Secret.Digest(), gives: &wire.CredentialGate{Version: 2, Value: value}}
		if moved, err := s.AdvanceGate(t.Context(), g, c, 2); moved || err == nil || value != "" && strings.Contains(err.Error(), value) {
			t.Errorf("%q: %v, %v", value, moved, err)
		}
	}
	if presents(t, s, 1); lies(t, dir, gateNextFile) != 0 {
		t.Error("something was staged")
	}
}

func TestATornStagedTokenIsNone(t *testing.T) { // R26
	s, fs, c, dir := gatedStore(t, gateOf(1))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(2)}
	if _, err := s.AdvanceGate(t.Context(), g, c, 2); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(filepath.Join(dir, gateNextFile), 10); err != nil {
		t.Fatal(err)
	}
	s = Open(fs)
	presents(t, s, 1)
	if moved, err := s.AdvanceGate(t.Context(), g, c, 2); !moved || err != nil || lies(t, dir, gateNextFile) != 2 {
		t.Fatal(moved, err)
	}
}

func TestAnInstallEndsWhatWasStaged(t *testing.T) { // R6, R26
	s, _, c, dir := gatedStore(t, gateOf(1))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(2)}
	if _, err := s.AdvanceGate(t.Context(), g, c, 2); err != nil {
		t.Fatal(err)
	}
	doc := testDoc()
	doc.Gate = gateOf(4)
	if _, err := s.Install(doc, true); err != nil {
		t.Fatal(err)
	}
	if presents(t, s, 4); lies(t, dir, gateNextFile) != 0 {
		t.Error("what was staged stays")
	}
	doc = testDoc()
	if _, err := s.Install(doc, true); err != nil {
		t.Fatal(err)
	}
	presents(t, s, 0)
}

// What configuration management puts in place counts once agentd is told to read
// its files again, and what is damaged leaves the machine without a token, which it
// then fetches. // R26
func TestTheTokenIsReadAgain(t *testing.T) {
	s, _, c, dir := gatedStore(t, gateOf(1))
	g := &giver{to: c.Secret.Digest(), gives: gateOf(3)}
	if _, err := s.AdvanceGate(t.Context(), g, c, 3); err != nil {
		t.Fatal(err)
	}
	s.Reload()
	presents(t, s, 3) // what was staged goes on
	s.GateAccepted(3)
	if _, err := s.AdvanceGate(t.Context(), g, c, 0); err != nil {
		t.Fatal(err)
	}
	byHand := gateOf(4)
	if err := os.WriteFile(filepath.Join(dir, GateFile), []byte("\n "+byHand.Line()), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Reload()
	presents(t, s, 4)
	if err := os.WriteFile(filepath.Join(dir, GateFile), []byte("4"), 0o600); err != nil {
		t.Fatal(err)
	}
	s.Reload()
	presents(t, s, 0)
	if st := s.Status(); len(st.Damaged) != 1 {
		t.Errorf("%+v", st)
	}
	if moved, err := s.SeekGate(t.Context(), g); !moved || err != nil {
		t.Fatal(moved, err)
	}
	presents(t, s, 3)
}
