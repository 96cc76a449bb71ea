package api

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"encoding/json"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

const aKey = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIOMqqnkVzrm0SdG6UOoqKLsabgH5C9okWi0dh2l9GKJl"

// skKey is a security key without the hardware, as OpenSSH's PROTOCOL.u2f has
// it. flags is what it says of how it was used.
type skKey struct {
	ed    ed25519.PrivateKey
	ec    *ecdsa.PrivateKey
	flags byte
}

const app = "ssh:"

func newSK(t *testing.T, kind string, flags byte) *skKey {
	t.Helper()
	k := &skKey{flags: flags}
	var err error
	if kind == "ed25519" {
		_, k.ed, err = ed25519.GenerateKey(rand.Reader)
	} else {
		k.ec, err = ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	}
	must(t, err)
	return k
}

func (k *skKey) PublicKey() ssh.PublicKey {
	var blob []byte
	if k.ed != nil {
		blob = ssh.Marshal(struct {
			Type string
			Key  []byte
			App  string
		}{ssh.KeyAlgoSKED25519, k.ed.Public().(ed25519.PublicKey), app})
	} else {
		point, err := k.ec.PublicKey.Bytes()
		if err != nil {
			panic(err)
		}
		blob = ssh.Marshal(struct {
			Type, Curve string
			Key         []byte
			App         string
		}{ssh.KeyAlgoSKECDSA256, "nistp256", point, app})
	}
	pub, err := ssh.ParsePublicKey(blob)
	if err != nil {
		panic(err)
	}
	return pub
}

func (k *skKey) Sign(_ io.Reader, data []byte) (*ssh.Signature, error) {
	of, msg := sha256.Sum256([]byte(app)), sha256.Sum256(data)
	rest := binary.BigEndian.AppendUint32([]byte{k.flags}, 7)
	blob := append(append(of[:], rest...), msg[:]...)
	sig := &ssh.Signature{Format: k.PublicKey().Type(), Rest: rest}
	if k.ed != nil {
		sig.Blob = ed25519.Sign(k.ed, blob)
		return sig, nil
	}
	sum := sha256.Sum256(blob)
	r, s, err := ecdsa.Sign(rand.Reader, k.ec, sum[:])
	sig.Blob = ssh.Marshal(struct{ R, S *big.Int }{r, s})
	return sig, err
}

func authorized(k ssh.Signer) string {
	return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k.PublicKey())))
}

// touch signs for a subject.
func (w *world) touch(k ssh.Signer, namespace string, msg func(nonce string) []byte) *wire.Touch {
	w.t.Helper()
	var ch wire.ChallengeAnswer
	must(w.t, json.Unmarshal(w.do("POST", wire.PathChallenge, "", "").Body.Bytes(), &ch))
	sig, err := sshsig.Sign(bytes.NewReader(msg(ch.Nonce)), k, sshsig.HashSHA512, namespace)
	must(w.t, err)
	return &wire.Touch{Nonce: ch.Nonce, PublicKey: authorized(k), Signature: string(sshsig.Armor(sig))}
}

func (w *world) giveKey(person string, k ssh.Signer) {
	w.t.Helper()
	_, err := w.store.ChangePerson(w.t.Context(), store.PersonChange{By: machine.By{Actor: "person:owner", Person: "owner", Owner: true}, At: w.now, Name: person,
		AddKey: &store.Key{Fingerprint: ssh.FingerprintSHA256(k.PublicKey()), Key: authorized(k)}})
	must(w.t, err)
}

// TestAdmissionsWantATouch: where the plane demands it, a session alone, a key
// without hardware, a key that nobody touched, another's key, a login's
// signature, one for another machine and one used before admit nothing. // R8
func TestAdmissionsWantATouch(t *testing.T) {
	for _, kind := range []string{"ed25519", "ecdsa"} {
		w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
		w.api.RequireTouch = true
		good, untouched, others := newSK(t, kind, 1), newSK(t, kind, 0), newSK(t, kind, 1)
		_, soft, err := ed25519.GenerateKey(rand.Reader)
		must(t, err)
		plain, err := ssh.NewSignerFromKey(soft)
		must(t, err)
		for _, k := range []ssh.Signer{good, untouched, plain} {
			w.giveKey("owner", k)
		}
		w.giveKey("member", others)
		inst, cred := secret.New("").Digest().Hex(), secret.New("fm_").Digest().Hex()
		subject := func(n string) []byte { return wire.AdmitMessage(n, w.api.URL, wire.AdmitSubject(inst, cred)) }
		admit := func(touch *wire.Touch) (int, string) {
			b, err := json.Marshal(wire.AdmitRequest{InstallationDigest: inst, CredentialDigest: cred, Touch: touch})
			must(t, err)
			rec := w.do("POST", wire.PathMachines, w.creds["owner"], string(b))
			return rec.Code, rec.Body.String()
		}
		for name, touch := range map[string]*wire.Touch{
			"none":            nil,
			"no hardware":     w.touch(plain, wire.NamespaceAdmit, subject),
			"nobody touched":  w.touch(untouched, wire.NamespaceAdmit, subject),
			"another's key":   w.touch(others, wire.NamespaceAdmit, subject),
			"an unknown key":  w.touch(newSK(t, kind, 1), wire.NamespaceAdmit, subject),
			"another machine": w.touch(good, wire.NamespaceAdmit, func(n string) []byte { return wire.AdmitMessage(n, w.api.URL, wire.AdmitSubject(cred, inst)) }),
			"another plane": w.touch(good, wire.NamespaceAdmit, func(n string) []byte {
				return wire.AdmitMessage(n, "https://other.example", wire.AdmitSubject(inst, cred))
			}),
			"a login":         w.touch(good, wire.NamespaceLogin, func(n string) []byte { return wire.LoginMessage(n, w.api.URL) }),
			"another purpose": w.touch(good, wire.NamespaceOrder, subject),
			"no nonce of ours": func() *wire.Touch {
				x := w.touch(good, wire.NamespaceAdmit, subject)
				x.Nonce = strings.Repeat("A", len(x.Nonce))
				return x
			}(),
		} {
			if code, body := admit(touch); code != http.StatusForbidden || !strings.Contains(body, wire.CodeTouchRequired) {
				t.Errorf("%s, %s: %d %s", kind, name, code, body)
			}
		}
		touch := w.touch(good, wire.NamespaceAdmit, subject)
		if code, body := admit(touch); code != http.StatusOK {
			t.Fatalf("%s: %d %s", kind, code, body)
		}
		if code, _ := admit(touch); code != http.StatusForbidden {
			t.Errorf("%s: a touch admitted twice: %d", kind, code)
		}
	}
}

func TestAKeyIsRemovedByItsFingerprintWhateverItHolds(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	for range 40 { // base64 has slashes and pluses
		k := newSK(t, "ed25519", 1)
		w.giveKey("member", k)
		path := wire.PathPersons + "/member/keys/" + url.PathEscape(ssh.FingerprintSHA256(k.PublicKey()))
		if rec := w.do("DELETE", path, w.creds["member"], ""); rec.Code != http.StatusOK {
			t.Fatal(path, rec.Code, rec.Body)
		}
	}
}

func TestALockedPersonsNextRequestIsRefused(t *testing.T) { // R8
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	if rec := w.do("GET", wire.PathWhoami, w.creds["member"], ""); rec.Code != http.StatusOK {
		t.Fatal(rec.Code)
	}
	if rec := w.do("POST", wire.PathPersons+"/member/lock", w.creds["owner"], ""); rec.Code != http.StatusOK {
		t.Fatal(rec.Code, rec.Body)
	}
	rec := w.do("GET", wire.PathWhoami, w.creds["member"], "")
	if rec.Code != http.StatusUnauthorized || rec.Body.String() != w.do("GET", wire.PathWhoami, "", "").Body.String() {
		t.Fatal("a locked person is told something else than a stranger:", rec.Code, rec.Body)
	}
	if rec := w.do("POST", wire.PathPersons+"/owner/lock", w.creds["owner"], ""); rec.Code != http.StatusConflict {
		t.Fatal("the last owner was locked:", rec.Code, rec.Body)
	}
}
