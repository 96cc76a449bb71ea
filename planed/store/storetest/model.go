package storetest

import (
	"errors"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// modelBox is what the model knows of one machine.
type modelBox struct {
	box      *Box
	inst     secret.Digest
	secrets  []secret.Text // by generation from 1; the last may be staged
	current  int
	proven   bool
	deleted  bool
	lastSeen time.Time
}

func (m *modelBox) want(gen int) identity.Standing {
	switch {
	case gen > len(m.secrets), gen < m.current-identity.Kept:
		return identity.Unknown
	case m.deleted:
		return identity.Revoked
	case gen == m.current:
		return identity.Current
	case gen == m.current+1:
		return identity.Next
	}
	return identity.Behind
}

// model runs random operations on a store and on a few lists, with crashes and
// reopenings in between, and compares what both say. What was answered is never
// lost; answers may be. // R20, R23
func model(t *testing.T, fresh func(t *testing.T) Fixture) {
	rapid.Check(t, func(rt *rapid.T) {
		f := fresh(t)
		s := f.Open(t)
		defer func() { s.Close() }()
		var boxes []*modelBox
		now := Base
		pick := func(rt *rapid.T) *modelBox {
			if len(boxes) == 0 {
				rt.Skip("no machine")
			}
			return rapid.SampledFrom(boxes).Draw(rt, "machine")
		}
		rt.Repeat(map[string]func(*rapid.T){
			"admit": func(rt *rapid.T) {
				m := &modelBox{inst: secret.New("").Digest(), secrets: []secret.Text{secret.New("fm_")}, current: 1}
				a, err := s.Admit(t.Context(), machine.Admission{By: Owner, Installation: m.inst, Credential: m.secrets[0].Digest()}, now)
				if err != nil || a.Outcome != identity.Made {
					rt.Fatal(a, err)
				}
				m.box = &Box{ID: a.Row.ID, Instance: "a", Body: Running()}
				boxes = append(boxes, m)
			},
			"admit again": func(rt *rapid.T) {
				m := pick(rt)
				if m.deleted {
					return
				}
				next := secret.New("fm_")
				a, err := s.Admit(t.Context(), machine.Admission{By: Owner, Installation: m.inst, Credential: next.Digest()}, now)
				switch {
				case err != nil || a.Row.ID != m.box.ID:
					rt.Fatal(a, err)
				case m.proven && a.Outcome != identity.Living, !m.proven && a.Outcome != identity.Replaced:
					rt.Fatal(a.Outcome)
				case !m.proven:
					m.secrets = []secret.Text{next}
				}
			},
			"check": func(rt *rapid.T) {
				m := pick(rt)
				gen := rapid.IntRange(1, len(m.secrets)).Draw(rt, "generation")
				now = now.Add(time.Second)
				m.box.Body = Running()
				if rapid.Bool().Draw(rt, "blocked") {
					m.box.Body = Running("disk_floor")
				}
				out := m.box.send(t, s, m.secrets[gen-1], now)
				if out.Standing != m.want(gen) {
					rt.Fatalf("generation %d of %d: standing %d, want %d", gen, m.current, out.Standing, m.want(gen))
				}
				switch out.Standing {
				case identity.Next:
					m.current++
					m.proven, m.lastSeen = true, now
				case identity.Current:
					m.proven, m.lastSeen = true, now
				}
			},
			"rotate": func(rt *rapid.T) {
				m := pick(rt)
				next := secret.New("fm_")
				did, err := s.Rotate(t.Context(), store.Rotation{Machine: m.box.ID, Presented: machine.Bearer(m.secrets[m.current-1].Digest()),
					Generation: int64(m.current + 1), Digest: next.Digest(), At: now})
				if err != nil || did.Standing != m.want(m.current) || did.Staged == m.deleted {
					rt.Fatal(did, err)
				}
				if !m.deleted {
					m.proven = true
					m.secrets = append(m.secrets[:m.current:m.current], next)
				}
			},
			"delete": func(rt *rapid.T) {
				m := pick(rt)
				_, err := s.Edit(t.Context(), m.box.ID, store.Change{By: Owner, At: now, Delete: true})
				var gone *store.GoneError
				if m.deleted != errors.As(err, &gone) || !m.deleted && err != nil {
					rt.Fatal(err)
				}
				m.deleted = true
			},
			"reopen": func(rt *rapid.T) {
				if rapid.Bool().Draw(rt, "crash") {
					f.Crash(t, s)
				} else if err := s.Close(); err != nil {
					rt.Fatal(err)
				}
				s = f.Open(t)
				for _, m := range boxes {
					m.box.Instance += "x" // the sequence starts anew with the store's memory
					if len(m.box.Instance) > 30 {
						m.box.Instance = "a"
					}
				}
			},
			"": func(rt *rapid.T) {
				for _, m := range boxes {
					r, err := s.Machine(t.Context(), m.box.ID)
					var gone *store.GoneError
					switch {
					case m.deleted:
						if !errors.As(err, &gone) {
							rt.Fatal(err)
						}
					case err != nil:
						rt.Fatal(err)
					case r.Credential.Generation != int64(m.current) || r.Credential.Proven != m.proven:
						rt.Fatalf("%+v, model %+v", r.Credential, m)
					}
				}
			},
		})
		clean(t, s)
	})
}
