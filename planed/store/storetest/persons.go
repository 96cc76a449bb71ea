package storetest

import (
	"errors"
	"slices"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

func login(fp string, inv secret.Text, at time.Time) (store.Login, secret.Text) {
	session := secret.New("fs_")
	l := store.Login{Fingerprint: fp, Key: "ssh-ed25519 AAAA", Session: session.Digest(), At: at, ExpiresAt: at.Add(12 * time.Hour)}
	if !inv.Empty() {
		l.Invitation = inv.Digest()
	}
	return l, session
}

func persons(t *testing.T, f Fixture) {
	s := f.Open(t)
	invite := func(person, role string, life time.Duration) secret.Text {
		t.Helper()
		inv := secret.New("fi_")
		if err := s.Invite(t.Context(), store.Invitation{Actor: "local:init", Digest: inv.Digest(), Person: person, Role: role, At: Base, ExpiresAt: Base.Add(life)}); err != nil {
			t.Fatal(err)
		}
		return inv
	}
	try := func(fp string, inv secret.Text, at time.Time) (store.Person, secret.Text, error) {
		l, sec := login(fp, inv, at)
		p, err := s.Login(t.Context(), l)
		return p, sec, err
	}
	if _, _, err := try("SHA256:a", secret.Text{}, Base); !errors.Is(err, store.ErrRefused) {
		t.Fatal(err)
	}
	inv := invite("dana", wire.RoleOwner, time.Hour)
	if _, _, err := try("SHA256:a", inv, Base.Add(2*time.Hour)); !errors.Is(err, store.ErrRefused) {
		t.Fatal("an expired invitation:", err)
	}
	inv = invite("dana", wire.RoleOwner, time.Hour)
	void := inv
	inv = invite("dana", wire.RoleOwner, time.Hour)
	if _, _, err := try("SHA256:a", void, Base); !errors.Is(err, store.ErrRefused) {
		t.Fatal("a replaced invitation:", err)
	}
	p, sess, err := try("SHA256:a", inv, Base)
	if err != nil || p.Name != "dana" || p.Role != wire.RoleOwner {
		t.Fatal(p, err)
	}
	if _, _, err := try("SHA256:b", inv, Base); !errors.Is(err, store.ErrRefused) {
		t.Fatal("a used invitation:", err)
	}
	if _, _, err := try("SHA256:a", inv, Base); err != nil {
		t.Fatal("a lost answer locks out:", err)
	}
	who, err := s.Principal(t.Context(), sess.Digest(), Base)
	if err != nil || who.Kind != "person" || who.Name != "dana" || who.Role != wire.RoleOwner || who.Key != "SHA256:a" {
		t.Fatal(who, err)
	}
	if _, err := s.Principal(t.Context(), sess.Digest(), Base.Add(12*time.Hour)); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	// A member's second key by a recovery raises the role.
	m := invite("mo", wire.RoleMember, time.Hour)
	if _, _, err := try("SHA256:m", m, Base); err != nil {
		t.Fatal(err)
	}
	up := invite("mo", wire.RoleOwner, time.Hour)
	if p, _, err := try("SHA256:m2", up, Base); err != nil || p.Role != wire.RoleOwner {
		t.Fatal(p, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = f.Open(t)
	defer func() { s.Close() }()
	if _, err := s.Principal(t.Context(), sess.Digest(), Base); err != nil {
		t.Fatal(err)
	}
	if err := s.Logout(t.Context(), sess.Digest(), Base); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Principal(t.Context(), sess.Digest(), Base); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
}

func tokens(t *testing.T, f Fixture) {
	s := f.Open(t)
	inv := secret.New("fi_")
	s.Invite(t.Context(), store.Invitation{Actor: "local:init", Digest: inv.Digest(), Person: "mo", Role: wire.RoleMember, At: Base, ExpiresAt: Base.Add(time.Hour)})
	l, _ := login("SHA256:m", inv, Base)
	if _, err := s.Login(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	sec := secret.New("ft_")
	k := store.Token{Name: "ci", Owner: "mo", Scopes: []string{"read"}, CreatedAt: Base, ExpiresAt: Base.Add(time.Hour)}
	if err := s.CreateToken(t.Context(), k, sec.Digest(), machine.By{Actor: "person:mo"}); err != nil {
		t.Fatal(err)
	}
	if err := s.CreateToken(t.Context(), k, secret.New("ft_").Digest(), machine.By{Actor: "person:mo"}); !errors.Is(err, store.ErrExists) {
		t.Fatal(err)
	}
	used := Base.Add(time.Minute)
	p, err := s.Principal(t.Context(), sec.Digest(), used)
	if err != nil || p.Kind != "token" || p.Name != "ci" || p.Person != "mo" || !slices.Equal(p.Scopes, []string{"read"}) {
		t.Fatal(p, err)
	}
	if _, err := s.Principal(t.Context(), sec.Digest(), Base.Add(time.Hour)); !errors.Is(err, store.ErrNotFound) {
		t.Fatal("an expired token:", err)
	}
	s.Close()
	s = f.Open(t)
	defer func() { s.Close() }()
	if all, err := s.Tokens(t.Context()); err != nil || len(all) != 1 || !all[0].LastUsed.Equal(used) {
		t.Fatal(all, err)
	}
	if err := s.DeleteToken(t.Context(), "ci", Other, Base); !errors.Is(err, machine.ErrNotYours) {
		t.Fatal(err)
	}
	if err := s.DeleteToken(t.Context(), "ci", Member, Base); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Principal(t.Context(), sec.Digest(), Base); !errors.Is(err, store.ErrNotFound) {
		t.Fatal(err)
	}
	if err := s.Flush(t.Context()); err != nil { // R25: the use that was coalesced brings nothing back
		t.Fatal(err)
	}
	if all, _ := s.Tokens(t.Context()); len(all) != 0 {
		t.Fatal(all)
	}
}
