package credential

import (
	"context"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/wire"
)

func signer(t testing.TB) ssh.Signer {
	t.Helper()
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// rootPEM is an authority's certificate, or one of something else.
func rootPEM(t testing.TB, isCA bool) string {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), Subject: pkix.Name{CommonName: "root"}, NotBefore: time.Now(),
		NotAfter: time.Now().Add(time.Hour), IsCA: isCA, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
}

func signed(t testing.TB, by ssh.Signer, namespace string, st wire.Statement) *wire.Material {
	t.Helper()
	st.Schema = wire.SchemaStatement
	st.SignedAt = wire.Time{Time: time.Unix(1, 0).UTC()}
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := artifact.Sign(b, by, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return &wire.Material{Schema: wire.SchemaMaterial, Kind: st.Kind, Version: st.Version, Value: string(b), Signature: string(sig)}
}

func movedTo(version int64, url string, from ...string) wire.Statement {
	return wire.Statement{Kind: wire.MaterialURL, Version: version, Planes: from, URL: url}
}

func trusting(version int64, roots string, planes ...string) wire.Statement {
	return wire.Statement{Kind: wire.MaterialTrust, Version: version, Planes: planes, RootsPEM: roots}
}

// hands is a plane that hands out what it likes.
type hands map[string]*wire.Material // by kind

func (h hands) Material(_ context.Context, _ Credential, kind string, version int64) (*wire.Material, int64, error) {
	m := h[kind]
	switch {
	case m == nil:
		return nil, 0, nil
	case m.Version != version:
		return nil, m.Version, nil
	}
	return m, 0, nil
}

const (
	placeA = "https://plane.example"
	placeB = "https://b.example"
	placeC = "https://c.example:8443"
)

// movable is a machine that takes statements of keys.
func movable(t testing.TB, keys ...ssh.Signer) (*Store, *disk) {
	t.Helper()
	d := newDisk()
	s := Open(d)
	if _, err := s.Install(testDoc(), false); err != nil {
		t.Fatal(err)
	}
	setSigners(d, keys...)
	return s, d
}

func setSigners(d *disk, keys ...ssh.Signer) {
	var all artifact.Signers
	for _, k := range keys {
		all = append(all, k.PublicKey())
	}
	f := &inode{data: string(all.Format()), synced: true}
	d.now[SignersFile], d.durable[SignersFile] = f, f
}

func works(context.Context, Plane, *wire.Material) error { return nil }

func wants(kind string, version int64) map[string]int64 { return map[string]int64{kind: version} }

func TestAMachineMovesBySignedStatementsAlone(t *testing.T) { // R26, R37
	dana := signer(t)
	s, _ := movable(t, dana)
	roots := rootPEM(t, true)
	c, _ := s.Present()
	plane := hands{wire.MaterialURL: signed(t, dana, wire.NamespaceMaterial, movedTo(2, placeB, placeC, placeA)),
		wire.MaterialTrust: signed(t, dana, wire.NamespaceMaterial, trusting(2, roots, placeA, placeB))}
	for _, kind := range []string{wire.MaterialURL, wire.MaterialTrust} {
		moved, err := s.AdvancePlane(t.Context(), plane, c, wants(kind, 2), works)
		if !moved || err != nil {
			t.Fatal(kind, moved, err)
		}
	}
	p, _ := s.Plane()
	if *p != (Plane{placeB, roots, 2, 2}) || s.Status().Have[wire.MaterialTrust] != 2 || s.Previous().URL != placeB || s.Previous().TrustVersion != 0 {
		t.Fatalf("%+v, before %+v", p, s.Previous())
	}
	// What is held already is not asked for again.
	if moved, err := s.AdvancePlane(t.Context(), hands{}, c, map[string]int64{wire.MaterialURL: 2, wire.MaterialTrust: 2}, nil); moved || err != nil {
		t.Fatal(moved, err)
	}
	// The same place under a later version needs no trial.
	plane[wire.MaterialURL] = signed(t, dana, wire.NamespaceMaterial, movedTo(3, placeB, placeB))
	if moved, err := s.AdvancePlane(t.Context(), plane, c, wants(wire.MaterialURL, 3), nil); !moved || err != nil {
		t.Fatal(moved, err)
	}
}

// A statement that is not a person's of this machine's signers, for this plane
// and newer, changes nothing, and is not even tried. // R26, R37
func TestOtherStatementsChangeNothing(t *testing.T) {
	dana, gone := signer(t), signer(t)
	roots := rootPEM(t, true)
	good := movedTo(2, placeB, placeA)
	sign := func(st wire.Statement) *wire.Material { return signed(t, dana, wire.NamespaceMaterial, st) }
	altered := sign(good)
	altered.Value = strings.Replace(altered.Value, "b.example", "c.example", 1)
	renumbered := sign(good)
	renumbered.Version = 7
	recast := sign(good)
	recast.Kind = wire.MaterialTrust
	for name, m := range map[string]*wire.Material{
		"unknown key":          signed(t, gone, wire.NamespaceMaterial, good),
		"login's namespace":    signed(t, dana, wire.NamespaceLogin, good),
		"artifact's":           signed(t, dana, wire.NamespaceArtifact, good),
		"order's":              signed(t, dana, wire.NamespaceOrder, good),
		"another plane's":      sign(movedTo(2, placeB, placeC)),
		"older":                sign(movedTo(0, placeB, placeA)),
		"first":                {Schema: wire.SchemaMaterial, Kind: wire.MaterialURL, Version: 2},
		"plain http":           sign(movedTo(2, "http://b.example", placeA)),
		"path":                 sign(movedTo(2, placeB+"/x", placeA)),
		"person in it":         sign(movedTo(2, "https://dana@b.example", placeA)),
		"other spelling":       sign(movedTo(2, "https://B.example:443", placeA)),
		"no certificate":       sign(trusting(2, "system", placeA)),
		"torn certificate":     sign(trusting(2, strings.Replace(roots, "M", "A", 3), placeA)),
		"no authority's":       sign(trusting(2, rootPEM(t, false), placeA)),
		"a key beside":         sign(trusting(2, roots+"-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", placeA)),
		"altered":              altered,
		"renumbered":           renumbered,
		"recast":               recast,
		"no signature":         {Schema: wire.SchemaMaterial, Kind: wire.MaterialURL, Version: 2, Value: sign(good).Value},
		"garbage as signature": {Schema: wire.SchemaMaterial, Kind: wire.MaterialURL, Version: 2, Value: sign(good).Value, Signature: "x"},
	} {
		t.Run(name, func(t *testing.T) {
			s, d := movable(t, dana)
			before := d.now[PlaneFile].data
			c, _ := s.Present()
			kind := m.Kind
			moved, err := s.AdvancePlane(t.Context(), hands{kind: m}, c, wants(kind, max(m.Version, 1)), func(context.Context, Plane, *wire.Material) error {
				t.Error("it was tried")
				return nil
			})
			if name == "older" { // the plane cannot even name it
				moved, err = s.move(t.Context(), m, works)
			}
			if moved || err == nil || s.Status().Refused == "" || d.now[PlaneFile].data != before || d.now[nextPlaneFile] != nil {
				t.Fatalf("moved %t, error %v, %q, plane.json %s", moved, err, s.Status().Refused, d.now[PlaneFile].data)
			}
		})
	}
	t.Run("removed signer", func(t *testing.T) {
		s, d := movable(t, dana)
		c, _ := s.Present()
		setSigners(d, gone)
		if moved, err := s.AdvancePlane(t.Context(), hands{wire.MaterialURL: sign(good)}, c, wants(wire.MaterialURL, 2), works); moved || !errors.Is(err, artifact.ErrUntrusted) {
			t.Fatal(moved, err)
		}
		setSigners(d)
		if moved, err := s.move(t.Context(), sign(good), works); moved || !errors.Is(err, errNoSigners) {
			t.Fatal(moved, err)
		}
	})
	t.Run("replayed", func(t *testing.T) {
		s, _ := movable(t, dana)
		for _, st := range []wire.Statement{good, movedTo(3, placeA, placeA, placeB)} {
			if moved, err := s.move(t.Context(), sign(st), works); !moved || err != nil {
				t.Fatal(moved, err)
			}
		}
		if moved, err := s.move(t.Context(), sign(good), works); moved || !errors.Is(err, errOlder) {
			t.Fatal(moved, err)
		}
	})
}

// What does not answer at the new place is rolled back, and tried again after
// more and more checks; what the person took back is asked for at the place
// before. // R26
func TestAPlaceThatDoesNotAnswerIsTakenBack(t *testing.T) {
	dana := signer(t)
	s, d := movable(t, dana)
	c, _ := s.Present()
	before := d.now[PlaneFile].data
	plane := hands{wire.MaterialURL: signed(t, dana, wire.NamespaceMaterial, movedTo(2, placeB, placeA))}
	dead := errors.New("connection refused")
	tried := 0
	for range 100 {
		moved, err := s.AdvancePlane(t.Context(), plane, c, wants(wire.MaterialURL, 2), func(context.Context, Plane, *wire.Material) error {
			tried++
			return dead
		})
		if moved || err != nil && !errors.Is(err, dead) || d.now[PlaneFile].data != before || d.now[nextPlaneFile] != nil {
			t.Fatal(moved, err)
		}
	}
	if tried < 4 || tried > 8 {
		t.Fatalf("%d trials in 100 checks", tried)
	}
	if words := s.Status().Refused; !strings.Contains(words, "taken back") {
		t.Fatal(words)
	}
	// Nothing is wanted any more, and nothing said.
	if _, err := s.AdvancePlane(t.Context(), plane, c, nil, works); err != nil || s.Status().Refused != "" {
		t.Fatal(err, s.Status())
	}
	if moved, err := s.AdvancePlane(t.Context(), plane, c, wants(wire.MaterialURL, 2), works); !moved || err != nil {
		t.Fatal(moved, err)
	}
	// The new place is gone, and the one before has news.
	plane[wire.MaterialURL] = signed(t, dana, wire.NamespaceMaterial, movedTo(3, placeA, placeA, placeB))
	if s.Previous().URL != placeA {
		t.Fatalf("%+v", s.Previous())
	}
	if moved, err := s.SeekPlane(t.Context(), plane, works); !moved || err != nil {
		t.Fatal(moved, err)
	}
	if p, _ := s.Plane(); *p != (Plane{placeA, "system", 3, 0}) {
		t.Fatalf("%+v", p)
	}
	if moved, err := s.SeekPlane(t.Context(), plane, works); moved || err != nil {
		t.Fatal(moved, err)
	}
}

// TestPlaneOnDiskAlwaysWorked drives a machine through statements of all kinds,
// a plane that hands out what it likes, places that come and go, a full disk and
// crashes at every step of the disk. At every instant, in every image that a
// power cut may leave, plane.json is whole and is what was installed or what
// followed from a signed statement and answered when it was tried.
func TestPlaneOnDiskAlwaysWorked(t *testing.T) { // R21, R26
	dana, mallory := signer(t), signer(t)
	roots := []string{"system", rootPEM(t, true), rootPEM(t, true)}
	places := []string{placeA, placeB, placeC}
	rapid.Check(t, func(r *rapid.T) {
		s, d := movable(t, dana)
		// answered has what was installed, and what answered when it was tried.
		answered := map[[2]string]bool{}
		p, _ := s.Plane()
		answered[[2]string{p.URL, p.RootsPEM}] = true
		rightful := map[string]bool{} // signed bytes
		said := map[string]map[int64]string{wire.MaterialURL: {}, wire.MaterialTrust: {}}
		alive := map[string]bool{placeA: true, placeB: true, placeC: true}
		vouch := map[string]bool{roots[0]: true, roots[1]: true, roots[2]: true}
		version := int64(1)
		plane := hands{}
		held := *p
		check := func() {
			for i, m := range d.images() {
				f := m[PlaneFile]
				if f == nil {
					r.Fatalf("image %d has no plane.json", i)
				}
				img := &disk{now: m}
				got, err := (&Store{fs: img}).decodePlane(PlaneFile)
				if err != nil || !answered[[2]string{got.URL, got.RootsPEM}] ||
					got.URLVersion > 0 && said[wire.MaterialURL][got.URLVersion] != got.URL ||
					got.TrustVersion > 0 && said[wire.MaterialTrust][got.TrustVersion] != got.RootsPEM {
					r.Fatalf("image %d: %s: %v", i, f.data, err)
				}
				if got.URLVersion < held.URLVersion || got.TrustVersion < held.TrustVersion {
					r.Fatalf("image %d went back from %+v to %+v", i, held, got)
				}
			}
		}
		try := func(_ context.Context, next Plane, m *wire.Material) error {
			if !rightful[m.Value] {
				r.Fatalf("%s was tried", m.Value)
			}
			check()
			if !alive[next.URL] || !vouch[next.RootsPEM] {
				return errors.New("nobody answers")
			}
			answered[[2]string{next.URL, next.RootsPEM}] = true
			return nil
		}
		run := func(f func() error) {
			defer func() {
				if e := recover(); e != nil {
					if _, ok := e.(crashed); !ok {
						panic(e)
					}
					images := d.images()
					m := images[rapid.IntRange(0, len(images)-1).Draw(r, "image")]
					full := d.full
					d = newDisk()
					d.full = full
					for k, v := range m {
						d.now[k], d.durable[k] = v, v
					}
					s = Open(d)
				}
				d.crashIn = 0
				check()
				if now, _ := s.Plane(); now == nil {
					r.Fatal("the machine knows no plane")
				} else {
					held = *now
				}
			}()
			f() // that it did not work is for the next one to mend
		}
		r.Repeat(map[string]func(*rapid.T){
			"statement": func(r *rapid.T) {
				version++
				kind := rapid.SampledFrom(signedKinds).Draw(r, "kind")
				st := movedTo(version, rapid.SampledFrom(places).Draw(r, "to"), places...)
				if kind == wire.MaterialTrust {
					st = trusting(version, rapid.SampledFrom(roots[1:]).Draw(r, "roots"), places...)
				}
				by, namespace := dana, wire.NamespaceMaterial
				switch rapid.IntRange(0, 5).Draw(r, "whose") {
				case 0:
					by = mallory
				case 1:
					namespace = wire.NamespaceLogin
				case 2:
					st.Planes = []string{"https://other.example"}
				default:
				}
				m := signed(t, by, namespace, st)
				if by == dana && namespace == wire.NamespaceMaterial {
					// One that is for another plane may say what this machine has already.
					rightful[m.Value] = len(st.Planes) > 1
					said[kind][version] = st.Value()
				}
				if old := plane[kind]; old == nil || rapid.Bool().Draw(r, "hands out") {
					plane[kind] = m
				}
			},
			"advance": func(r *rapid.T) {
				d.crashIn = rapid.IntRange(0, 40).Draw(r, "crash")
				want := map[string]int64{}
				for k, m := range plane {
					want[k] = m.Version
				}
				c, _ := s.Present()
				run(func() error { _, err := s.AdvancePlane(context.Background(), plane, c, want, try); return err })
			},
			"seek": func(r *rapid.T) {
				d.crashIn = rapid.IntRange(0, 40).Draw(r, "crash")
				run(func() error { _, err := s.SeekPlane(context.Background(), plane, try); return err })
			},
			"place": func(r *rapid.T) {
				u := rapid.SampledFrom(places).Draw(r, "place")
				alive[u] = !alive[u]
				v := rapid.SampledFrom(roots).Draw(r, "vouches")
				vouch[v] = !vouch[v]
			},
			"disk": func(*rapid.T) { d.full = !d.full },
			"restart": func(*rapid.T) {
				run(func() error { s = Open(d); return nil })
			},
		})
	})
}

func FuzzJudge(f *testing.F) {
	dana := signer(f)
	s, _ := movable(f, dana)
	p, _ := s.Plane()
	good := signed(f, dana, wire.NamespaceMaterial, movedTo(2, placeB, placeA))
	f.Add(good.Value, good.Signature, good.Kind, good.Version)
	f.Add("{}", "", "trust", int64(1))
	f.Fuzz(func(t *testing.T, value, signature, kind string, version int64) {
		m := &wire.Material{Kind: kind, Version: version, Value: value, Signature: signature}
		next, err := s.judge(*p, m)
		if err == nil && (value != good.Value || next != (Plane{placeB, "system", 2, 0})) {
			t.Errorf("%q is taken, and leads to %+v", value, next)
		}
		if _, e := wire.ParseStatement([]byte(value)); e == nil && !json.Valid([]byte(value)) {
			t.Errorf("%q is read", value)
		}
	})
}
