package bolt

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/storetest"
)

type fixture struct{ dir, path string }

func (f *fixture) Open(t *testing.T) store.Store {
	t.Helper()
	s, err := Open(f.path, Options{Create: true, Now: func() time.Time { return storetest.Base }})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// Crash copies the file as a killed process leaves it and goes on with the copy.
func (f *fixture) Crash(t *testing.T, s store.Store) {
	t.Helper()
	b, err := os.ReadFile(f.path)
	if err != nil {
		t.Fatal(err)
	}
	s.Close()
	if err := os.WriteFile(f.path, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

func fresh(t *testing.T) storetest.Fixture {
	dir := t.TempDir()
	return &fixture{dir, filepath.Join(dir, "plane.db")}
}

func TestSuite(t *testing.T) { storetest.Run(t, fresh) }

func open(t *testing.T, path string, o Options) *Store {
	t.Helper()
	s, err := Open(path, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func TestANewerStoreIsRefusedInWords(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plane.db")
	open(t, path, Options{Create: true}).Close()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		return tx.Bucket(bucketMeta).Put(metaFormat, binary.BigEndian.AppendUint32(nil, format+1))
	})
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	_, err = Open(path, Options{})
	var newer *store.NewerError
	if !errors.As(err, &newer) || newer.Has != format+1 || !strings.Contains(err.Error(), "newer planed") {
		t.Fatal(err)
	}
}

func TestWhatIsNoStoreIsNotMadeOne(t *testing.T) {
	dir := t.TempDir()
	for name, content := range map[string]string{"empty": "", "garbage": strings.Repeat("x", 20000)} {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := Open(path, Options{}); err == nil {
			t.Errorf("%s was opened", name)
		}
	}
	if _, err := Open(filepath.Join(dir, "missing"), Options{}); !errors.Is(err, os.ErrNotExist) {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "missing")); err == nil {
		t.Error("a missing store was made")
	}
	path := filepath.Join(dir, "locked")
	open(t, path, Options{Create: true})
	if _, err := Open(path, Options{}); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Error(err)
	}
}

func TestAnOfflineOpeningLeavesTheTimeOfTheOutage(t *testing.T) { // R19
	path := filepath.Join(t.TempDir(), "plane.db")
	open(t, path, Options{Create: true}).Close()
	s := open(t, path, Options{})
	alive := s.Epoch().Alive
	s.Close()
	s = open(t, path, Options{Offline: true})
	s.Close()
	s = open(t, path, Options{Offline: true})
	if got := s.Epoch().Alive; got.Before(alive) || got.After(time.Now()) {
		t.Fatal(alive, got)
	}
	first := s.Epoch().Alive
	s.Close()
	if s = open(t, path, Options{Offline: true}); !s.Epoch().Alive.Equal(first) {
		t.Fatal(first, s.Epoch().Alive)
	}
}

func TestTombstonesAreDroppedLongAfterTheyWerePresented(t *testing.T) { // R23
	synctest.Test(t, func(t *testing.T) {
		s, err := Open(filepath.Join(t.TempDir(), "db"), Options{Create: true, FlushEvery: time.Hour, TombstonesFor: 24 * time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		sec := secret.New("fm_")
		a, err := s.Admit(t.Context(), machine.Admission{By: storetest.Owner, Installation: secret.New("").Digest(), Credential: sec.Digest()}, time.Now())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := s.Edit(t.Context(), a.Row.ID, store.Change{By: storetest.Owner, At: time.Now(), Delete: true}); err != nil {
			t.Fatal(err)
		}
		present := func() identity.Standing {
			out, err := s.Check(t.Context(), store.Check{Machine: a.Row.ID, Check: machine.Check{Presented: machine.Bearer(sec.Digest()), At: time.Now()}})
			if err != nil {
				t.Fatal(err)
			}
			return out.Standing
		}
		time.Sleep(23 * time.Hour)
		if st := present(); st != identity.Revoked {
			t.Fatal(st)
		}
		time.Sleep(23 * time.Hour)
		if st := s.Stats(); st.Tombstones != 1 {
			t.Fatal(st)
		}
		time.Sleep(3 * time.Hour)
		if st := s.Stats(); st.Tombstones != 0 {
			t.Fatal(st)
		}
		if st := present(); st != identity.Unknown {
			t.Fatal(st)
		}
	})
}

func TestAPlainCheckTouchesMemoryAlone(t *testing.T) { // R17
	s := open(t, filepath.Join(t.TempDir(), "db"), Options{Create: true, FlushEvery: time.Hour})
	sec := secret.New("fm_")
	a, err := s.Admit(t.Context(), machine.Admission{By: storetest.Owner, Installation: secret.New("").Digest(), Credential: sec.Digest()}, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	decoded := 0
	check := func(seq uint64) {
		t.Helper()
		b := storetest.Running()
		c := store.Check{Machine: a.Row.ID, Check: machine.Check{Presented: machine.Bearer(sec.Digest()), Digest: [16]byte{1}, At: time.Now()}}
		c.Mark.Instance, c.Mark.Seq = "a", seq
		c.Body = func() (*wire.CheckBody, error) { decoded++; return &b, nil }
		if out, err := s.Check(t.Context(), c); err != nil || out.Standing != identity.Current {
			t.Fatal(out, err)
		}
	}
	check(1)
	stats := s.db.Stats()
	before := stats.TxStats.GetWrite()
	// The writer is held: whoever needs it would hang.
	held, release := make(chan struct{}), make(chan struct{})
	go s.do(t.Context(), func(*tx) error { close(held); <-release; return nil })
	<-held
	for n := uint64(2); n < 100; n++ {
		check(n)
	}
	close(release)
	stats = s.db.Stats()
	if writes := stats.TxStats.GetWrite() - before; decoded != 1 || writes != 0 {
		t.Fatalf("%d bodies decoded, %d writes", decoded, writes)
	}
}
