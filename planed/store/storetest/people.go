package storetest

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// join has a person accept an invitation and returns the session.
func join(t testing.TB, s store.Store, person, role, key string) secret.Text {
	t.Helper()
	inv := secret.New("fi_")
	if err := s.Invite(t.Context(), store.Invitation{Actor: "local:init", Digest: inv.Digest(), Person: person, Role: role, At: Base, ExpiresAt: Base.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	l, sess := login(key, inv, Base)
	if _, err := s.Login(t.Context(), l); err != nil {
		t.Fatal(err)
	}
	return sess
}

func change(c store.PersonChange, name string) store.PersonChange {
	c.By, c.At, c.Name = Owner, Base.Add(time.Minute), name
	return c
}

// personChanges: a lock, a removal and a key's removal end what they must, at
// once and for what is under way, and nothing else. // R8
func personChanges(t *testing.T, f Fixture) {
	s := f.Open(t)
	ctx := t.Context()
	dana, mo := join(t, s, "dana", wire.RoleOwner, "SHA256:d"), join(t, s, "mo", wire.RoleMember, "SHA256:m")
	tok := secret.New("ft_")
	k := store.Token{Name: "ci", Owner: "mo", Scopes: []string{"read"}, CreatedAt: Base, ExpiresAt: Base.Add(time.Hour)}
	if err := s.CreateToken(ctx, k, tok.Digest(), Member); err != nil {
		t.Fatal(err)
	}
	// What mo's session has made may be another's doing.
	made := secret.New("fi_")
	if err := s.Invite(ctx, store.Invitation{Actor: "person:mo", Session: mo.Digest(), Digest: made.Digest(), Person: "eve", Role: wire.RoleMember, At: Base, ExpiresAt: Base.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	box, err := s.Admit(ctx, machine.Admission{By: Member, Installation: secret.New("").Digest(), Credential: secret.New("fm_").Digest(), Name: "box"}, Base)
	if err != nil {
		t.Fatal(err)
	}

	// A second key, and whose keys are whose.
	second := &store.Key{Fingerprint: "SHA256:m2", Key: "ssh-ed25519 AAAA"}
	add := change(store.PersonChange{AddKey: second}, "mo")
	add.By = Other
	if _, err := s.ChangePerson(ctx, add); !errors.Is(err, machine.ErrNotYours) {
		t.Fatal("a member gives a key to another:", err)
	}
	add.By = Member
	for range 2 { // again is the same
		if _, err := s.ChangePerson(ctx, add); err != nil {
			t.Fatal(err)
		}
	}
	add.Name, add.By = "dana", Owner
	if _, err := s.ChangePerson(ctx, add); !errors.Is(err, store.ErrKeyTaken) {
		t.Fatal("one key of two persons:", err)
	}
	l, mo2 := login("SHA256:m2", secret.Text{}, Base)
	if _, err := s.Login(ctx, l); err != nil {
		t.Fatal(err)
	}
	if who, err := s.KeyOwner(ctx, "SHA256:m2"); err != nil || who != "mo" {
		t.Fatal(who, err)
	}
	did, err := s.ChangePerson(ctx, change(store.PersonChange{RemoveKey: "SHA256:m2"}, "mo"))
	if err != nil || did.Sessions != 1 {
		t.Fatal(did, err)
	}
	if _, err := s.Principal(ctx, mo2.Digest(), Base); !errors.Is(err, store.ErrNotFound) {
		t.Fatal("a removed key's session lives:", err)
	}
	if _, err := s.Principal(ctx, mo.Digest(), Base); err != nil {
		t.Fatal("the other key's session is gone:", err)
	}

	// Lock.
	did, err = s.ChangePerson(ctx, change(store.PersonChange{Lock: true}, "mo"))
	if err != nil || did.Sessions != 1 || !slices.Equal(did.Tokens, []string{"ci"}) || did.Invitations != 1 {
		t.Fatal(did, err)
	}
	for _, d := range []secret.Text{mo, tok} {
		if _, err := s.Principal(ctx, d.Digest(), Base); !errors.Is(err, store.ErrNotFound) {
			t.Fatal("a locked person's secret opens:", err)
		}
	}
	l, _ = login("SHA256:m", secret.Text{}, Base)
	if _, err := s.Login(ctx, l); !errors.Is(err, store.ErrRefused) {
		t.Fatal("a locked person logs in:", err)
	}
	l, _ = login("SHA256:e", made, Base)
	if _, err := s.Login(ctx, l); !errors.Is(err, store.ErrRefused) {
		t.Fatal("an invitation of a locked person is good:", err)
	}
	if err := s.Invite(ctx, store.Invitation{Actor: "person:dana", Digest: secret.New("fi_").Digest(), Person: "mo", Role: wire.RoleMember, At: Base, ExpiresAt: Base.Add(time.Hour)}); !errors.Is(err, store.ErrLocked) {
		t.Fatal("a locked person is invited:", err)
	}
	// Requests that were let in before change nothing after.
	late := Member
	late.Session = mo.Digest()
	label := store.Change{By: late, At: Base, Label: &store.LabelChange{Set: map[string]string{"a": "b"}}}
	_, editErr := s.Edit(ctx, box.Row.ID, label)
	_, admitErr := s.Admit(ctx, machine.Admission{By: late, Installation: secret.New("").Digest(), Credential: secret.New("fm_").Digest()}, Base)
	_, changeErr := s.ChangePerson(ctx, store.PersonChange{By: late, Name: "mo", AddKey: second, At: Base})
	for i, err := range []error{editErr, admitErr, changeErr, s.CreateToken(ctx, k, secret.New("ft_").Digest(), late), s.DeleteToken(ctx, "ci", late, Base),
		s.Invite(ctx, store.Invitation{Session: mo.Digest(), Digest: secret.New("fi_").Digest(), Person: "x", Role: wire.RoleMember, At: Base, ExpiresAt: Base.Add(time.Hour)})} {
		if !errors.Is(err, store.ErrSessionEnded) {
			t.Errorf("%d: a locked person's late request: %v", i, err)
		}
	}
	if m, err := s.Machine(ctx, box.Row.ID); err != nil || m.Owner != "mo" || len(m.Labels) > 0 {
		t.Fatal(m, err)
	}

	// The lock outlives a crash, and ends by itself never.
	f.Crash(t, s)
	s = f.Open(t)
	defer func() { s.Close() }()
	l, _ = login("SHA256:m", secret.Text{}, Base)
	if _, err := s.Login(ctx, l); !errors.Is(err, store.ErrRefused) {
		t.Fatal("a lock was lost:", err)
	}
	all, _, err := s.Persons(ctx, Base)
	if err != nil || len(all) != 2 || all[1].Name != "mo" || all[1].LockedBy != "person:dana" || len(all[1].Keys) != 1 || all[1].Sessions != 0 {
		t.Fatal(all, err)
	}
	to := "mo"
	if _, err := s.Edit(ctx, box.Row.ID, store.Change{By: Owner, At: Base, Transfer: &to}); !errors.Is(err, store.ErrLocked) {
		t.Fatal("a machine is given to a locked person:", err)
	}
	if _, err := s.ChangePerson(ctx, change(store.PersonChange{Unlock: true}, "mo")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Principal(ctx, mo.Digest(), Base); !errors.Is(err, store.ErrNotFound) {
		t.Fatal("an unlock brought a session back:", err)
	}
	l, _ = login("SHA256:m", secret.Text{}, Base)
	if _, err := s.Login(ctx, l); err != nil {
		t.Fatal(err)
	}

	// Removal: not while there are machines; and the name means nobody then.
	if _, err := s.ChangePerson(ctx, change(store.PersonChange{Remove: true}, "mo")); !errors.Is(err, store.ErrOwnsMachines) {
		t.Fatal(err)
	}
	to = "nobody"
	if _, err := s.Edit(ctx, box.Row.ID, store.Change{By: Owner, At: Base, Transfer: &to}); !errors.Is(err, store.ErrNoPerson) {
		t.Fatal("a machine is given to nobody:", err)
	}
	to = "dana"
	if _, err := s.Edit(ctx, box.Row.ID, store.Change{By: Other, At: Base, Transfer: &to}); !errors.Is(err, machine.ErrNotYours) {
		t.Fatal("somebody else's machine is given away:", err)
	}
	if r, err := s.Edit(ctx, box.Row.ID, store.Change{By: Member, At: Base, Transfer: &to}); err != nil || r.Owner != "dana" || r.Name != "box" {
		t.Fatal(r, err)
	}
	if _, err := s.ChangePerson(ctx, change(store.PersonChange{Remove: true}, "mo")); err != nil {
		t.Fatal(err)
	}
	l, _ = login("SHA256:m", secret.Text{}, Base)
	if _, err := s.Login(ctx, l); !errors.Is(err, store.ErrRefused) {
		t.Fatal("a removed person logs in:", err)
	}
	for _, c := range []store.PersonChange{{Lock: true}, {Unlock: true}, {Remove: true}, {AddKey: second}, {RemoveKey: "SHA256:m"}} {
		if _, err := s.ChangePerson(ctx, change(c, "mo")); !errors.Is(err, store.ErrNoPerson) {
			t.Errorf("%+v of nobody: %v", c, err)
		}
	}

	// Whoever has not come is uninvited.
	inv := secret.New("fi_")
	if err := s.Invite(ctx, store.Invitation{Actor: "person:dana", Digest: inv.Digest(), Person: "zoe", Role: wire.RoleMember, At: Base, ExpiresAt: Base.Add(time.Hour)}); err != nil {
		t.Fatal(err)
	}
	if _, waiting, err := s.Persons(ctx, Base); err != nil || len(waiting) != 1 || waiting[0].Person != "zoe" {
		t.Fatal(waiting, err)
	}
	if _, err := s.ChangePerson(ctx, change(store.PersonChange{Remove: true}, "zoe")); err != nil {
		t.Fatal(err)
	}
	l, _ = login("SHA256:z", inv, Base)
	if _, err := s.Login(ctx, l); !errors.Is(err, store.ErrRefused) {
		t.Fatal(err)
	}

	// The last owner stays.
	for _, c := range []store.PersonChange{{Lock: true}, {Remove: true}, {RemoveKey: "SHA256:d"}} {
		if _, err := s.ChangePerson(ctx, change(c, "dana")); !errors.Is(err, store.ErrLastOwner) {
			t.Errorf("%+v of the last owner: %v", c, err)
		}
	}
	if _, err := s.Principal(ctx, dana.Digest(), Base); err != nil {
		t.Fatal(err)
	}
	doc, err := s.Audit(ctx, store.AuditFilter{})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, e := range doc.Entries {
		seen[e.Action] = true
	}
	for _, a := range []string{"person.key_add", "person.key_remove", "person.lock", "person.unlock", "person.remove", "person.uninvite", "token.delete", "machine.transfer"} {
		if !seen[a] {
			t.Errorf("%s was not audited", a)
		}
	}
	if problems, err := s.Verify(ctx); err != nil || len(problems) > 0 {
		t.Fatal(problems, err)
	}
}

// someOwnerCanLogIn drives persons at random: whatever is asked in whatever
// order, an owner is left whose key logs in, and nobody who is locked or gone
// has a session.
func someOwnerCanLogIn(t *testing.T, f Fixture) {
	s := f.Open(t)
	defer s.Close()
	ctx := t.Context()
	names := []string{"a", "b", "c", "d"}
	join(t, s, "a", wire.RoleOwner, "SHA256:a1")
	rapid.Check(t, func(t *rapid.T) {
		for range rapid.IntRange(1, 12).Draw(t, "steps") {
			name := rapid.SampledFrom(names).Draw(t, "name")
			key := fmt.Sprintf("SHA256:%s%d", name, rapid.IntRange(1, 2).Draw(t, "key"))
			c := store.PersonChange{By: Owner, At: Base, Name: name}
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				c.Lock = true
			case 1:
				c.Unlock = true
			case 2:
				c.Remove = true
			case 3:
				c.RemoveKey = key
			case 4:
				c.AddKey = &store.Key{Fingerprint: key, Key: "ssh-ed25519 AAAA"}
			default:
				role := rapid.SampledFrom([]string{wire.RoleOwner, wire.RoleMember}).Draw(t, "role")
				inv := secret.New("fi_")
				if err := s.Invite(ctx, store.Invitation{Actor: "person:a", Digest: inv.Digest(), Person: name, Role: role, At: Base, ExpiresAt: Base.Add(time.Hour)}); err != nil {
					continue // locked
				}
				l, _ := login(key, inv, Base)
				if _, err := s.Login(ctx, l); err != nil {
					t.Fatal(err)
				}
				continue
			}
			s.ChangePerson(ctx, c) // refused or not
		}
		all, _, err := s.Persons(ctx, Base)
		if err != nil {
			t.Fatal(err)
		}
		owners := 0
		for _, p := range all {
			if !p.LockedAt.IsZero() && p.Sessions > 0 {
				t.Fatalf("%s is locked and has %d sessions", p.Name, p.Sessions)
			}
			if p.Role != wire.RoleOwner || !p.LockedAt.IsZero() || len(p.Keys) == 0 {
				continue
			}
			l, _ := login(p.Keys[0].Fingerprint, secret.Text{}, Base)
			if who, err := s.Login(ctx, l); err != nil || who.Name != p.Name {
				t.Fatal(who, err)
			}
			owners++
		}
		if owners == 0 {
			t.Fatalf("no owner can log in: %+v", all)
		}
	})
}
