package bolt

import (
	"encoding/json"
	"fmt"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
)

// hexDigest is a digest in a record.
type hexDigest secret.Digest

func (d hexDigest) IsZero() bool                 { return secret.Digest(d).IsZero() }
func (d hexDigest) MarshalText() ([]byte, error) { return []byte(secret.Digest(d).Hex()), nil }
func (d *hexDigest) UnmarshalText(b []byte) error {
	v, err := secret.ParseDigest(string(b))
	*d = hexDigest(v)
	return err
}

// record is a machine's row in the file. It is additive: a field that a later
// version adds is lost when this version writes the record, which is why a
// store of a newer format is refused.
type held struct {
	URL   int64 `json:"url,omitempty"`
	Trust int64 `json:"trust,omitempty"`
}

type record struct {
	Index        uint32            `json:"index"` // of its time of last check
	Owner        string            `json:"owner"`
	Name         string            `json:"name,omitempty"`
	NamedBy      string            `json:"named_by,omitempty"`
	Labels       map[string]string `json:"labels,omitempty"`
	AdmittedAt   time.Time         `json:"admitted_at"`
	Installation hexDigest         `json:"installation,omitzero"`
	Credential   credential        `json:"credential"`
	Told         told              `json:"told,omitzero"`
	Logs         time.Time         `json:"logs,omitzero"`
	Rotate       time.Time         `json:"rotate,omitzero"`
	Clone        bool              `json:"clone_suspected,omitempty"`
	Gate         int64             `json:"gate,omitempty"`
	Held         held              `json:"held,omitzero"`
	DeletedAt    time.Time         `json:"deleted_at,omitzero"`
	DeletedBy    string            `json:"deleted_by,omitempty"`
}

type credential struct {
	Generation int64       `json:"generation"`
	Current    hexDigest   `json:"current"`
	Next       hexDigest   `json:"next,omitzero"`
	Superseded []hexDigest `json:"superseded,omitempty"`
	Proven     bool        `json:"proven,omitempty"`
	IssuedAt   time.Time   `json:"issued_at"`
	StagedAt   time.Time   `json:"staged_at,omitzero"`

	Mtls        bool      `json:"mtls,omitempty"`
	Toward      uint8     `json:"toward,omitempty"` // identity.Rung
	Key         hexDigest `json:"key,omitzero"`
	NextKey     hexDigest `json:"next_key,omitzero"`
	PastKey     hexDigest `json:"past_key,omitzero"`
	CertifiedTo time.Time `json:"certified_to,omitzero"`
}

type told struct {
	Instance       string    `json:"instance,omitempty"`
	Seq            uint64    `json:"seq,omitempty"`
	Body           []byte    `json:"body,omitempty"` // digest of the last body
	Said           string    `json:"said,omitempty"`
	Reason         string    `json:"reason,omitempty"`
	Since          time.Time `json:"since,omitzero"`
	Boot           string    `json:"boot,omitempty"`
	Version        string    `json:"version,omitempty"`
	OS             string    `json:"os,omitempty"`
	Arch           string    `json:"arch,omitempty"`
	Scope          string    `json:"scope,omitempty"`
	ServiceManager string    `json:"service_manager,omitempty"`
	Blockers       []blocker `json:"blockers,omitempty"`
	ProbedAt       time.Time `json:"probed_at,omitzero"`
}

func (t told) IsZero() bool {
	return t.Instance == "" && t.Said == "" && t.Scope == "" && t.ServiceManager == "" && t.ProbedAt.IsZero()
}

type blocker struct {
	Code     string    `json:"code"`
	Severity string    `json:"severity"`
	Detail   string    `json:"detail,omitempty"`
	Remedy   string    `json:"remedy,omitempty"`
	Since    time.Time `json:"since"`
}

func encode(r *machine.Row, index uint32) []byte {
	t, k := &r.Told, &r.Credential.Keys
	rec := record{
		Index: index, Owner: r.Owner, Name: r.Name, NamedBy: string(r.NamedBy), Labels: r.Labels,
		AdmittedAt: r.AdmittedAt.UTC(), Installation: hexDigest(r.Installation),
		Credential: credential{
			Generation: r.Credential.Generation, Current: hexDigest(r.Credential.Current),
			Next: hexDigest(r.Credential.Next), Proven: r.Credential.Proven, IssuedAt: r.IssuedAt.UTC(), StagedAt: r.StagedAt.UTC(),
			Mtls: k.Mtls, Toward: uint8(k.Toward), Key: hexDigest(k.Key), NextKey: hexDigest(k.Next), PastKey: hexDigest(k.Past),
			CertifiedTo: r.CertifiedTo.UTC(),
		},
		Told: told{
			Instance: t.Instance, Seq: t.Seq, Said: t.Said, Reason: t.Reason, Since: t.Since.UTC(),
			Boot: t.Boot, Version: t.Version, OS: t.OS, Arch: t.Arch, Scope: t.Scope,
			ServiceManager: t.ServiceManager, ProbedAt: t.ProbedAt.UTC(),
		},
		Logs: r.Asked.Logs, Rotate: r.Asked.Rotate, Clone: r.CloneSuspected, Gate: r.Gate, Held: held(r.Held),
	}
	if t.Digest != [16]byte{} {
		rec.Told.Body = t.Digest[:]
	}
	for _, d := range r.Credential.Superseded {
		if !d.IsZero() {
			rec.Credential.Superseded = append(rec.Credential.Superseded, hexDigest(d))
		}
	}
	for _, b := range t.Blockers {
		rec.Told.Blockers = append(rec.Told.Blockers, blocker{b.Code, b.Severity, b.Detail, b.Remedy, b.Since.UTC()})
	}
	if r.Deleted != nil {
		rec.DeletedAt, rec.DeletedBy = r.Deleted.At.UTC(), r.Deleted.By
	}
	return mustJSON(rec)
}

func decode(id string, b []byte) (*machine.Row, uint32, error) {
	var rec record
	if err := json.Unmarshal(b, &rec); err != nil {
		return nil, 0, fmt.Errorf("cannot read the record of %s: %s", id, err)
	}
	t := rec.Told
	r := &machine.Row{
		ID: id, Owner: rec.Owner, Name: rec.Name, NamedBy: machine.NamedBy(rec.NamedBy), Labels: rec.Labels,
		AdmittedAt: rec.AdmittedAt, Installation: secret.Digest(rec.Installation),
		Credential: identity.Row{
			Generation: rec.Credential.Generation, Current: secret.Digest(rec.Credential.Current),
			Next: secret.Digest(rec.Credential.Next), Proven: rec.Credential.Proven,
			Keys: identity.Keys{Mtls: rec.Credential.Mtls, Toward: identity.Rung(rec.Credential.Toward), Key: secret.Digest(rec.Credential.Key),
				Next: secret.Digest(rec.Credential.NextKey), Past: secret.Digest(rec.Credential.PastKey)},
		},
		IssuedAt: rec.Credential.IssuedAt, StagedAt: rec.Credential.StagedAt, CertifiedTo: rec.Credential.CertifiedTo,
		Told: machine.Told{
			Instance: t.Instance, Seq: t.Seq, Said: t.Said, Reason: t.Reason, Since: t.Since,
			Boot: t.Boot, Version: t.Version, OS: t.OS, Arch: t.Arch, Scope: t.Scope,
			ServiceManager: t.ServiceManager, ProbedAt: t.ProbedAt,
		},
		Asked: machine.Asked{Logs: rec.Logs, Rotate: rec.Rotate}, CloneSuspected: rec.Clone, Gate: rec.Gate, Held: machine.Held(rec.Held),
	}
	// A version before this one did not say since when; it was after that.
	if r.StagedAt.IsZero() && !r.Credential.Next.IsZero() && rec.DeletedAt.IsZero() {
		r.StagedAt = r.IssuedAt
	}
	copy(r.Told.Digest[:], t.Body)
	for i, d := range rec.Credential.Superseded {
		if i < identity.Kept {
			r.Credential.Superseded[i] = secret.Digest(d)
		}
	}
	for _, b := range t.Blockers {
		r.Told.Blockers = append(r.Told.Blockers, machine.Blocker(b))
	}
	if !rec.DeletedAt.IsZero() {
		r.Deleted = &machine.Deleted{At: rec.DeletedAt, By: rec.DeletedBy}
		r.Credential.Deleted = true
	}
	return r, rec.Index, nil
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // our own structs always marshal
	}
	return b
}
