package bolt

import (
	"bytes"
	"compress/gzip"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/store"
)

// old unpacks a store that a planed of that format wrote.
func old(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name+".gz"))
	if err != nil {
		t.Fatal(err)
	}
	z, err := gzip.NewReader(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	if b, err = io.ReadAll(z); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "plane.db")
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}

func formatOf(t *testing.T, path string) (n int) {
	t.Helper()
	db, err := bbolt.Open(path, 0o600, &bbolt.Options{ReadOnly: true, Timeout: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	db.View(func(tx *bbolt.Tx) error {
		n = int(binary.BigEndian.Uint32(tx.Bucket(bucketMeta).Get(metaFormat)))
		return nil
	})
	return n
}

func TestAStoreOfTheFirstFormatOpensAndGoesOn(t *testing.T) {
	path := old(t, "format-1.db")
	if n := formatOf(t, path); n != 1 {
		t.Fatalf("the testdata has format %d", n)
	}
	now := time.Date(2026, 1, 2, 3, 10, 0, 0, time.UTC)
	s := open(t, path, Options{Now: func() time.Time { return now }})
	ctx := t.Context()
	who, err := s.Principal(ctx, secret.Of("fs_dana").Digest(), now)
	if err != nil || who.Role != wire.RoleOwner {
		t.Fatal(who, err)
	}
	if who, err = s.Principal(ctx, secret.Of("ft_ci").Digest(), now); err != nil || who.Person != "mo" {
		t.Fatal(who, err)
	}
	const id = "m_huovvdtw6erztt6xflpg2fxxua"
	if m, err := s.Machine(ctx, id); err != nil || m.Owner != "mo" || m.Name != "box" {
		t.Fatal(m, err)
	}
	by := machine.By{Actor: "person:dana", Person: "dana", Owner: true, Session: secret.Of("fs_dana").Digest()}
	if did, err := s.ChangePerson(ctx, store.PersonChange{By: by, At: now, Name: "mo", Lock: true}); err != nil || did.Sessions != 1 || len(did.Tokens) != 1 {
		t.Fatal(did, err)
	}
	if problems, err := s.Verify(ctx); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	// A planed that would not heed the lock no longer takes it.
	if n := formatOf(t, path); n != format {
		t.Fatalf("the format is %d", n)
	}
}

func TestABucketThatIsMissingIsMade(t *testing.T) {
	path := filepath.Join(t.TempDir(), "plane.db")
	open(t, path, Options{Create: true}).Close()
	db, err := bbolt.Open(path, 0o600, nil)
	if err != nil {
		t.Fatal(err)
	}
	err = db.Update(func(tx *bbolt.Tx) error { return tx.DeleteBucket(bucketToken) })
	if err := errors.Join(err, db.Close()); err != nil {
		t.Fatal(err)
	}
	s := open(t, path, Options{})
	if _, err := s.Tokens(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A store of before there was a gate goes on, and takes a rotation: its machines
// have presented nothing yet. // R26
func TestAStoreWithoutAGateTakesARotation(t *testing.T) {
	path := old(t, "format-2.db")
	if n := formatOf(t, path); n != 2 {
		t.Fatalf("the testdata has format %d", n)
	}
	now := time.Date(2026, 1, 2, 3, 20, 0, 0, time.UTC)
	s := open(t, path, Options{Now: func() time.Time { return now }})
	ctx := t.Context()
	const id = "m_rght2xwcprzortycik7mfmcnxm"
	if m, err := s.Machine(ctx, id); err != nil || m.Name != "old" || m.Gate != 0 || m.Credential.Next.IsZero() {
		t.Fatal(m, err)
	}
	if p, _, err := s.Persons(ctx, now); err != nil || !slices.ContainsFunc(p, func(p store.PersonInfo) bool { return p.Name == "mo" && !p.LockedAt.IsZero() }) {
		t.Fatal(p, err)
	}
	steer := func(f func(*rotation.State) ([]audit.Event, error)) {
		t.Helper()
		if _, err := s.Steer(ctx, wire.MaterialGate, secret.Digest{}, f); err != nil {
			t.Fatal(err)
		}
	}
	first := rotation.Holding{Version: 1, Digest: secret.Of("fg_first").Digest()}
	steer(func(st *rotation.State) ([]audit.Event, error) { return st.Adopt(first, nil, now) })
	steer(func(st *rotation.State) ([]audit.Event, error) {
		return st.Start(rotation.Begin{By: "person:dana"}, now)
	})
	tally := s.Tally(wire.MaterialGate, func(v int64) bool { return v == 2 }, func(string) bool { return false })
	if tally.Moved != 0 || tally.Behind != tally.All || tally.All < 2 {
		t.Fatalf("%+v", tally)
	}
	if problems, err := s.Verify(ctx); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := formatOf(t, path); n != format {
		t.Fatalf("the format is %d", n)
	}
}
