package hostkey

import (
	"crypto/ed25519"
	"crypto/rand"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/state"
)

func newKey(t testing.TB) (ssh.PublicKey, ssh.Signer) {
	t.Helper()
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return s.PublicKey(), s
}

func store(t *testing.T) *Store {
	home := t.TempDir()
	s, err := OpenStore(state.Dirs{Getenv: func(k string) string {
		if k == "HOME" {
			return home
		}
		return ""
	}, UID: os.Getuid()})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestPinsHoldTypeAndKeyPerPlace(t *testing.T) { // R2
	s := store(t)
	a, _ := newKey(t)
	b, _ := newKey(t)
	place, other := Place{Name: "box"}, Place{Name: "box", Chain: "bastion"}
	if err := s.Set(t.Context(), place, a, ByFingerprint); err != nil {
		t.Fatal(err)
	}
	pins, err := s.Pins(place)
	if err != nil {
		t.Fatal(err)
	}
	if ok, err := Check(place, pins, a); !ok || err != nil {
		t.Fatal(ok, err)
	}
	_, err = Check(place, pins, b)
	if f := fault.Of(err); f == nil || f.Exit != fault.HostKey || !strings.Contains(f.Msg, "host key changed: box: expected ssh-ed25519 "+ssh.FingerprintSHA256(a)+" got ssh-ed25519 "+ssh.FingerprintSHA256(b)) {
		t.Fatal(err)
	}
	if pins, err := s.Pins(other); err != nil || len(pins) != 0 {
		t.Fatal("a pin crossed from one chain to another", pins, err)
	}
	if got := Algorithms(pins); !slices.Equal(got, []string{ssh.KeyAlgoED25519}) {
		t.Fatal(got)
	}
	if err := s.Remove(t.Context(), other); fault.Of(err).Exit != fault.NotFound {
		t.Fatal(err)
	}
	if err := s.Remove(t.Context(), place); err != nil {
		t.Fatal(err)
	}
	if ok, err := Check(place, nil, a); ok || err != nil {
		t.Fatal("an unpinned key was taken for pinned", err)
	}
}

func knownFile(t *testing.T, lines ...string) string {
	p := filepath.Join(t.TempDir(), "known_hosts")
	if err := os.WriteFile(p, []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func auth(k ssh.PublicKey) string { return strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k))) }

func TestKnownHostsIsEvidenceAndMalformedLinesAreSkipped(t *testing.T) {
	a, _ := newKey(t)
	b, _ := newKey(t)
	file := knownFile(t, "garbage", "box "+auth(a)[:30], "# comment", "", "*.example,!bad.example "+auth(a), "[box]:2222 "+auth(b), "box,10.1.1.1 "+auth(a))
	for _, c := range []struct {
		name, addr string
		key        ssh.PublicKey
		want       string
	}{
		{"box", "", a, EvidenceKnown}, {"box", "", b, EvidenceOther}, {"[box]:2222", "", b, EvidenceKnown},
		{"x.example", "", a, EvidenceKnown}, {"bad.example", "", a, ""}, {"other", "10.1.1.1", a, EvidenceKnown}, {"BOX", "", a, EvidenceKnown},
	} {
		e, err := Weigh(Known([]string{"/nonexistent", file}, c.name, c.addr), c.name, c.key, time.Now())
		got := ""
		if len(e) > 0 {
			got = e[0].Kind
		}
		if err != nil || got != c.want {
			t.Errorf("%s: %v %v, want %q", c.name, e, err, c.want)
		}
	}
}

func TestHashedKnownHostsAgreeWithSSHKeygen(t *testing.T) {
	a, _ := newKey(t)
	file := knownFile(t, "box "+auth(a), "[box]:2222 "+auth(a))
	if out, err := exec.Command("ssh-keygen", "-H", "-f", file).CombinedOutput(); err != nil {
		t.Skipf("ssh-keygen cannot hash here: %v %s", err, out)
	}
	for name, want := range map[string]int{"box": 1, "[box]:2222": 1, "other": 0} {
		got := slices.DeleteFunc(Known([]string{file}, name, ""), func(l Line) bool { return l.Bare })
		if len(got) != want {
			t.Errorf("%s: %d lines, want %d", name, len(got), want)
		}
	}
}

func TestRevokedRefusesAndAuthorityConfirms(t *testing.T) { // R2
	host, _ := newKey(t)
	ca, caSigner := newKey(t)
	now := time.Now()
	cert := &ssh.Certificate{Key: host, CertType: ssh.HostCert, ValidPrincipals: []string{"box"}, ValidAfter: uint64(now.Add(-time.Hour).Unix()), ValidBefore: uint64(now.Add(time.Hour).Unix())}
	if err := cert.SignCert(rand.Reader, caSigner); err != nil {
		t.Fatal(err)
	}
	lines := Known([]string{knownFile(t, "@cert-authority * "+auth(ca))}, "box", "")
	if e, err := Weigh(lines, "box", cert, now); err != nil || len(e) != 1 || e[0].Kind != EvidenceAuthority {
		t.Fatal(e, err)
	}
	for what, c := range map[string]struct {
		name string
		now  time.Time
	}{"another host": {"other", now}, "expired": {"box", now.Add(2 * time.Hour)}} {
		if e, err := Weigh(lines, c.name, cert, c.now); err != nil || len(e) != 0 {
			t.Errorf("%s: %v %v", what, e, err)
		}
	}
	if o := Offer(nil, lines); o[0] != ssh.CertAlgoED25519v01 {
		t.Error(o)
	}
	for _, line := range []string{"@revoked * " + auth(host), "@revoked * " + auth(ca)} {
		_, err := Weigh(Known([]string{knownFile(t, line)}, "box", ""), "box", cert, now)
		if f := fault.Of(err); f == nil || f.Exit != fault.HostKey {
			t.Errorf("%s: %v", line, err)
		}
	}
}

func TestOfferPrefersWhatIsKnown(t *testing.T) {
	k, _ := newKey(t)
	o := Offer(nil, []Line{{Key: k}})
	if o[0] != ssh.KeyAlgoED25519 || !slices.Contains(o, ssh.KeyAlgoRSASHA512) || slices.Contains(o, ssh.KeyAlgoRSA) {
		t.Error(o)
	}
	if o := Offer([]string{"x"}, nil); !slices.Equal(o, []string{"x"}) {
		t.Error(o)
	}
}

func TestFingerprintForms(t *testing.T) {
	k, _ := newKey(t)
	fp := ssh.FingerprintSHA256(k)
	if CheckFingerprint(fp) != nil || CheckFingerprint(fp+"=") != nil || !SameFingerprint(fp+"=", k) {
		t.Error(fp)
	}
	for _, bad := range []string{"", "MD5:aa", "SHA256:", "SHA256:abc", fp[7:], fp + "x"} {
		if CheckFingerprint(bad) == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func FuzzKnown(f *testing.F) {
	k, _ := newKey(f)
	f.Add([]byte("@cert-authority *.x,!y " + auth(k)))
	f.Add([]byte("|1|JfKTdBh7rNbXkVAQCRp4OQoPfmI=|USECr3SWf1JUPsms5AqfD5QfxkM= " + auth(k)))
	dir := f.TempDir()
	f.Fuzz(func(t *testing.T, b []byte) {
		p := filepath.Join(dir, fmt.Sprint(os.Getpid()))
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		Weigh(Known([]string{p}, "x", "y"), "x", k, time.Now())
	})
}
