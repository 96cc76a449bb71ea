package cli

import (
	"encoding/json"
	"net/http"

	"fleet.example/fleet/core/wire"
)

func samplePersons() []wire.Person {
	return []wire.Person{
		{Name: "dana", Role: wire.RoleOwner, CreatedAt: *at("2026-01-01T00:00:00Z"), LastLogin: at("2026-01-02T03:00:05Z"), Sessions: 1, Tokens: []string{},
			Keys: []wire.PersonKey{{Fingerprint: "SHA256:abc", Type: "ssh-ed25519", AddedAt: *at("2026-01-01T00:00:00Z"), LastUsed: at("2026-01-02T03:00:05Z")}}},
		{Name: "mo", Role: wire.RoleMember, CreatedAt: *at("2026-01-01T00:00:00Z"), Locked: true, LockedAt: at("2026-01-02T03:00:00Z"), LockedBy: "person:dana", Tokens: []string{"ci"},
			Keys: []wire.PersonKey{
				{Fingerprint: "SHA256:def", Type: "sk-ssh-ed25519@openssh.com", AddedAt: *at("2026-01-01T00:00:00Z"), LastUsed: at("2026-01-01T03:00:05Z")},
				{Fingerprint: "SHA256:ghi", Type: "ssh-rsa\x1b[31m", AddedAt: *at("2026-01-02T00:00:00Z")}}},
	}
}

// persons answers for persons.
func (p *fakePlane) persons(mux *http.ServeMux) {
	mux.HandleFunc("GET "+wire.PathPersons, func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, wire.Persons{Schema: wire.SchemaPersons, Persons: samplePersons(),
			Invitations: []wire.Invitation{{Name: "eve", Role: wire.RoleMember, By: "person:dana", ExpiresAt: *at("2026-01-03T00:00:00Z")}}})
	})
	mux.HandleFunc("GET "+wire.PathPersons+"/{name}", func(w http.ResponseWriter, r *http.Request) {
		v := samplePersons()[1]
		v.Schema, v.Machines = wire.SchemaPerson, ptr(2)
		p.answer(w, v)
	})
	mux.HandleFunc("POST "+wire.PathPersons+"/{name}/lock", func(w http.ResponseWriter, r *http.Request) {
		p.did("lock %s", r.PathValue("name"))
		p.answer(w, wire.PersonChanged{Schema: wire.SchemaPersonChanged, Name: r.PathValue("name"), Change: wire.PersonLocked,
			Sessions: 2, Tokens: []string{"ci"}, Invitations: 1, Machines: 2})
	})
	mux.HandleFunc("POST "+wire.PathWebLinks, func(w http.ResponseWriter, _ *http.Request) {
		p.answer(w, wire.WebLink{Schema: wire.SchemaWebLink, URL: "https://plane" + wire.PathSignInPage + "?link=fl_link", ExpiresAt: *at("2026-01-02T03:06:05Z")})
	})
	mux.HandleFunc("POST "+wire.PathMachines+"/{id}/transfer", func(w http.ResponseWriter, r *http.Request) {
		var req wire.TransferRequest
		json.NewDecoder(r.Body).Decode(&req)
		if i := p.find(w, r.PathValue("id")); i >= 0 {
			p.machines[i].Owner = req.To
			p.answer(w, p.machines[i])
		}
	})
}
