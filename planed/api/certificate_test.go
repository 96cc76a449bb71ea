package api

import (
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

var authority = sync.OnceValues(func() (*ca.Server, error) {
	rootKey, err := ca.NewKey()
	if err != nil {
		return nil, err
	}
	key, err := ca.NewKey()
	if err != nil {
		return nil, err
	}
	now := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	root, err := ca.NewRoot(rootKey, now)
	if err != nil {
		return nil, err
	}
	inter, err := ca.NewIntermediate(root, rootKey, key, now)
	return &ca.Server{Root: root, Intermediate: inter, Key: key, URL: "https://plane.example", Now: time.Now, TrustDomain: "plane.example"}, err
})

func anAuthority(t testing.TB) *ca.Server {
	t.Helper()
	a, err := authority()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func aRequest(t testing.TB) string {
	t.Helper()
	key, err := ca.NewKey()
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.CreateCertificateRequest(rand.Reader, &x509.CertificateRequest{}, key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE REQUEST", Bytes: der}))
}

// TestARequestMovesAMachineOnlyToWhereItWasAsked: an agent that does not know of
// rungs rotates, and the request waits on; one that was asked to climb and then
// not to is not let up by what it was given before. // R16, R27
func TestARequestMovesAMachineOnlyToWhereItWasAsked(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	ask := func(kind string) wire.Machine {
		t.Helper()
		body, _ := json.Marshal(wire.AskRequest{Kind: "rotate", CredentialKind: kind})
		rec := w.do("POST", wire.PathMachines+"/"+w.id+"/requests", w.creds["owner"], string(body))
		var m wire.Machine
		if err := json.Unmarshal(rec.Body.Bytes(), &m); err != nil || rec.Code != http.StatusOK {
			t.Fatalf("%d %s", rec.Code, rec.Body)
		}
		return m
	}
	check := func(body string) (int, wire.CheckAnswer) {
		t.Helper()
		rec := w.do("POST", wire.PathCheck, w.creds["machine"], body, wire.HeaderCheck, "instance=a; seq=1")
		var a wire.CheckAnswer
		json.Unmarshal(rec.Body.Bytes(), &a)
		return rec.Code, a
	}
	certify := func() int {
		body, _ := json.Marshal(wire.CertificateRequest{CSR: aRequest(t)})
		return w.do("POST", wire.PathCertificate, w.creds["machine"], string(body)).Code
	}
	check(`{"lifecycle":{"state":"running"}}`)
	if code := certify(); code != http.StatusUnauthorized {
		t.Errorf("nobody asked for it, and a key gets %d", code)
	}
	up := ask(wire.KindMTLS)
	if up.Requests.RotateKind == nil || *up.Requests.RotateKind != wire.KindMTLS {
		t.Errorf("%+v", up.Requests)
	}
	if again := ask(wire.KindMTLS); !again.Requests.Rotate.Equal(up.Requests.Rotate.Time) {
		t.Error("a second request did not join the first")
	}
	if again := ask(""); !again.Requests.Rotate.Equal(up.Requests.Rotate.Time) {
		t.Error("a rotation did not join the move")
	}
	_, a := check(`{"lifecycle":{"state":"running"},"name":"b"}`)
	if a.Requests.RotateKind != wire.KindMTLS || a.Requests.Rotate == nil {
		t.Fatalf("%+v", a.Requests)
	}
	echo, _ := json.Marshal(wire.CheckBody{Lifecycle: wire.Lifecycle{State: "running"}, Echo: wire.Requests{Rotate: a.Requests.Rotate}})
	if _, a = check(string(echo)); a.Requests.Rotate == nil {
		t.Error("a bearer's check answered the request to climb")
	}
	if code := certify(); code != http.StatusOK {
		t.Fatal(code)
	}
	down := ask(wire.KindBearer)
	if !down.Requests.Rotate.After(up.Requests.Rotate.Time) || *down.Requests.RotateKind != wire.KindBearer {
		t.Errorf("%+v", down.Requests)
	}
	row, err := w.store.Machine(t.Context(), w.id)
	if err != nil || !row.Credential.Keys.Next.IsZero() || row.Credential.Keys.Mtls {
		t.Errorf("%+v %v", row.Credential.Keys, err)
	}
	if code := certify(); code != http.StatusUnauthorized {
		t.Error(code)
	}
	for kind, want := range map[string]int{"mtls2": 400, "MTLS": 400} {
		if rec := w.do("POST", wire.PathMachines+"/"+w.id+"/requests", w.creds["owner"], `{"kind":"rotate","credential_kind":"`+kind+`"}`); rec.Code != want {
			t.Errorf("%s: %d", kind, rec.Code)
		}
	}
	if rec := w.do("POST", wire.PathMachines+"/"+w.id+"/requests", w.creds["owner"], `{"kind":"logs","credential_kind":"mtls"}`); rec.Code != http.StatusBadRequest {
		t.Error(rec.Code)
	}
}

// TestExpiriesAreAHistogramWithoutIDs.
func TestExpiriesAreAHistogramWithoutIDs(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	by := machine.By{Actor: "person:owner", Person: "owner", Owner: true}
	if _, err := w.store.Edit(t.Context(), w.id, store.Change{By: by, At: w.now, Ask: &machine.Wish{Kind: "rotate", Rung: identity.MutualTLS}}); err != nil {
		t.Fatal(err)
	}
	key := [32]byte{1}
	if did, err := w.store.Certify(t.Context(), store.Certification{Machine: w.id, Certification: machine.Certification{Bearer: w.key.Digest(), Key: key, Until: w.now.Add(90 * time.Minute), At: w.now}}); err != nil || did.Standing != identity.Current {
		t.Fatal(did, err)
	}
	if did, err := w.store.Check(t.Context(), store.Check{Machine: w.id, Check: machine.Check{Presented: machine.Proof{Digest: key, Key: true}, At: w.now,
		Mark: wire.CheckMark{Instance: "a", Seq: 1}}, Body: func() (*wire.CheckBody, error) { return &wire.CheckBody{}, nil }}); err != nil || did.Standing != identity.Next {
		t.Fatal(did, err)
	}
	rec := w.metrics()
	for _, line := range []string{
		`fleet_machine_certificate_remaining_seconds_bucket{le="3600"} 0`,
		`fleet_machine_certificate_remaining_seconds_bucket{le="7200"} 1`,
		`fleet_machine_certificate_remaining_seconds_sum 5400`,
		`fleet_machine_certificate_remaining_seconds_count 1`,
	} {
		if !strings.Contains(rec, line+"\n") {
			t.Errorf("%s is missing", line)
		}
	}
	if strings.Contains(rec, w.id) {
		t.Error("a machine is named")
	}
}
