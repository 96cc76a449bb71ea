package certificate

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"io/fs"
	"math/big"
	"slices"
	"testing"
	"time"

	"fleet.example/fleet/core/wire"
)

const machine = "m_aaaaaaaaaaaaaaaaaaaaaaaaaa"

// disk is a directory in memory whose process dies, or whose medium is full,
// after some steps.
type disk struct {
	files map[string][]byte
	left  int // steps; below zero: any number
	full  bool
}

var errGone = errors.New("the process is gone")

func (d *disk) step(writes bool) error {
	if d.full && writes {
		return errors.New("no space left")
	}
	if d.left == 0 {
		return errGone
	}
	d.left--
	return nil
}

func (d *disk) Read(name string) ([]byte, error) {
	b, ok := d.files[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return slices.Clone(b), nil
}

func (d *disk) Write(name string, data []byte) error {
	if err := d.step(true); err != nil {
		if errors.Is(err, errGone) {
			d.files[name] = slices.Clone(data[:len(data)/2]) // torn
		}
		return err
	}
	d.files[name] = slices.Clone(data)
	return nil
}

func (d *disk) Rename(from, to string) error {
	if err := d.step(false); err != nil {
		return err
	}
	b, ok := d.files[from]
	if !ok {
		return fs.ErrNotExist
	}
	d.files[to] = b
	delete(d.files, from)
	return nil
}

func (d *disk) Link(from, to string) error { d.files[to] = d.files[from]; return d.step(true) }
func (d *disk) Remove(name string) error   { delete(d.files, name); return nil }
func (d *disk) Sync(string) error          { return d.step(false) }
func (d *disk) SyncDir() error             { return d.step(false) }
func (d *disk) Lock() (func(), error)      { return func() {}, nil }

func (d *disk) open() *Store { return Open(d, func() string { return machine }) }

// authority issues what a plane would.
type authority struct{ key *ecdsa.PrivateKey }

func newAuthority(t testing.TB) authority {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return authority{k}
}

func (a authority) answer(t testing.TB, h *Held, from time.Time, life time.Duration) wire.CertificateAnswer {
	t.Helper()
	text, err := h.Request()
	if err != nil {
		t.Fatal(err)
	}
	block, _ := pem.Decode([]byte(text))
	r, err := x509.ParseCertificateRequest(block.Bytes)
	if err != nil || r.CheckSignature() != nil || len(r.Subject.Names) > 0 {
		t.Fatal("the request is not what a plane takes", err)
	}
	tmpl := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: from, NotAfter: from.Add(life)}
	der, err := x509.CreateCertificate(rand.Reader, tmpl, tmpl, r.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	return wire.CertificateAnswer{Machine: machine, Chain: string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})),
		URL: "https://plane.example:9443", IssuedAt: from, ExpiresAt: from.Add(life)}
}

// plane accepts the keys that it was shown, as a row does.
type plane struct {
	key, next *Held
	past      []*Held
}

func (p *plane) use(h *Held) {
	if h.Same(p.next) {
		if p.key != nil {
			p.past = append(p.past, p.key)
		}
		p.key, p.next = h, nil
	}
}

// TestTheKeyThatThePlaneKnowsIsOnTheDisk, whichever step of a climb, of another
// key, of a renewal and of the way down is the process's last, and whatever
// answer was lost with it. // R21, R27
func TestTheKeyThatThePlaneKnowsIsOnTheDisk(t *testing.T) {
	a, now := newAuthority(t), time.Now().Truncate(time.Second)
	finished := false
	for n := 0; !finished; n++ {
		d, p := &disk{files: map[string][]byte{}, left: n}, &plane{}
		err := func() error {
			s := d.open()
			for round := range 2 {
				h, err := s.Stage(now.Add(time.Duration(round) * time.Minute))
				if err != nil {
					return err
				}
				p.next = h
				if h, err = s.Certified(h, a.answer(t, h, now, time.Hour), "https://plane.example"); err != nil {
					return err
				}
				p.use(h)
				if err := s.Promote(); err != nil {
					return err
				}
				if _, err = s.Certified(h, a.answer(t, h, now.Add(time.Minute), time.Hour), "https://plane.example"); err != nil {
					return err
				}
				if !s.Current().Same(p.key) || s.Next() != nil {
					t.Fatal("after a round the key in use is another")
				}
			}
			return s.Retire()
		}()
		finished = err == nil
		if err != nil && !errors.Is(err, errGone) {
			t.Fatalf("step %d: %v", n, err)
		}
		d.left = -1
		s := d.open()
		if p.key != nil {
			if !s.Current().Same(p.key) && !s.Next().Same(p.key) && !s.Previous().Same(p.key) {
				t.Fatalf("after a crash at step %d the key that the plane knows is gone: %v", n, d.files)
			}
			// The key that was used is looked for first.
			if h := s.Present(); !finished && h != nil && !h.Same(p.key) {
				for _, past := range p.past {
					if h.Same(past) && s.Next().Same(p.key) {
						t.Fatalf("after a crash at step %d a key of before is presented", n)
					}
				}
			}
		}
		if p.next != nil && s.Next() != nil && !s.Next().Same(p.next) {
			t.Fatalf("after a crash at step %d another key is on its way than the one that was sent", n)
		}
		// Whatever is torn there stops nothing.
		if _, err := s.Stage(now); err != nil {
			t.Fatalf("after a crash at step %d: %v", n, err)
		}
	}
}

// TestAKeyOnItsWayIsNeverReplaced: it may be the one that the plane knows. // R20
func TestAKeyOnItsWayIsNeverReplaced(t *testing.T) {
	d := &disk{files: map[string][]byte{}, left: -1}
	s := d.open()
	first, err := s.Stage(time.Now())
	if err != nil {
		t.Fatal(err)
	}
	again, err := d.open().Stage(time.Now().Add(time.Hour))
	if err != nil || !again.Same(first) || !again.Answers.Equal(first.Answers) {
		t.Error(again, err)
	}
}

// TestAFullDiskChangesNothing. // R21
func TestAFullDiskChangesNothing(t *testing.T) {
	a, now := newAuthority(t), time.Now()
	d := &disk{files: map[string][]byte{}, left: -1}
	s := d.open()
	h, _ := s.Stage(now)
	if _, err := s.Certified(h, a.answer(t, h, now, time.Hour), "https://plane.example"); err != nil {
		t.Fatal(err)
	}
	if err := s.Promote(); err != nil {
		t.Fatal(err)
	}
	d.full = true
	if _, err := s.Stage(now); err == nil || s.Status().Problem == "" || s.Next() != nil {
		t.Error(err, s.Status())
	}
	if _, err := s.Certified(s.Current(), a.answer(t, h, now.Add(time.Hour), time.Hour), "https://plane.example"); err == nil {
		t.Error("a certificate is used that is not on the disk")
	}
	if c := s.Current(); !c.Same(h) || !c.Expires.Equal(now.Add(time.Hour)) {
		t.Errorf("%+v", c)
	}
	d.full = false
	if _, err := s.Stage(now); err != nil || s.Status().Problem != "" {
		t.Error(err, s.Status())
	}
}

// TestAnAnswerForAnotherKeyIsNotTaken: key and certificate on disk fit together
// whatever a plane answers.
func TestAnAnswerForAnotherKeyIsNotTaken(t *testing.T) {
	a, now := newAuthority(t), time.Now()
	d := &disk{files: map[string][]byte{}, left: -1}
	s := d.open()
	h, _ := s.Stage(now)
	other, err := newKey()
	if err != nil {
		t.Fatal(err)
	}
	good := a.answer(t, h, now, time.Hour)
	for name, bad := range map[string]wire.CertificateAnswer{
		"another key":     a.answer(t, &Held{Machine: machine, key: other}, now, time.Hour),
		"another machine": {Machine: "m_bbbbbbbbbbbbbbbbbbbbbbbbbb", Chain: good.Chain, URL: good.URL, IssuedAt: good.IssuedAt, ExpiresAt: good.ExpiresAt},
		"no chain":        {Machine: machine, URL: good.URL, IssuedAt: good.IssuedAt, ExpiresAt: good.ExpiresAt},
		"no place":        {Machine: machine, Chain: good.Chain, URL: "http://plane.example", IssuedAt: good.IssuedAt, ExpiresAt: good.ExpiresAt},
		"no life":         {Machine: machine, Chain: good.Chain, URL: good.URL, IssuedAt: good.ExpiresAt, ExpiresAt: good.IssuedAt},
	} {
		if _, err := s.Certified(h, bad, "https://plane.example"); err == nil {
			t.Errorf("an answer with %s was taken", name)
		}
	}
	if s.Next().TLS != nil {
		t.Error("something of it was kept")
	}
}

// TestFilesOfAnotherMachineAreNotPresented.
func TestFilesOfAnotherMachineAreNotPresented(t *testing.T) {
	d := &disk{files: map[string][]byte{}, left: -1}
	s := d.open()
	if _, err := s.Stage(time.Now()); err != nil {
		t.Fatal(err)
	}
	other := Open(d, func() string { return "m_bbbbbbbbbbbbbbbbbbbbbbbbbb" })
	if other.Present() != nil || other.Next() != nil {
		t.Error("they are")
	}
}

// TestRenewalIsAboutHalfOfALifeAndNeverTogether. // R27
func TestRenewalIsAboutHalfOfALifeAndNeverTogether(t *testing.T) {
	a, now := newAuthority(t), time.Now().Truncate(time.Second)
	s := (&disk{files: map[string][]byte{}, left: -1}).open()
	h, _ := s.Stage(now)
	moments := map[float64]bool{}
	for range 20 {
		n, err := s.Certified(h, a.answer(t, h, now, 8*time.Hour), "https://plane.example")
		if err != nil {
			t.Fatal(err)
		}
		moments[n.at] = true
		if s.Due(n, now.Add(3*time.Hour+30*time.Minute), "https://plane.example") || !s.Due(n, now.Add(4*time.Hour+30*time.Minute), "https://plane.example") {
			t.Errorf("it is due after %v of its life", n.at)
		}
		if !s.Due(n, now, "https://moved.example") {
			t.Error("a plane that moved is not asked where its listener is")
		}
		if s.Usable(n, now.Add(8*time.Hour)) || !s.Usable(n, now.Add(-48*time.Hour)) {
			t.Error("usable after its end, or not by a clock that is behind")
		}
	}
	if len(moments) < 10 {
		t.Error("all at the same moment")
	}
}

func FuzzAFileIsWholeOrNotUsed(f *testing.F) {
	d := &disk{files: map[string][]byte{}, left: -1}
	s := d.open()
	h, err := s.Stage(time.Unix(1e9, 0))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(d.files[NextFile])
	if _, err := s.Certified(h, newAuthority(f).answer(f, h, time.Unix(1e9, 0), time.Hour), "https://plane.example"); err != nil {
		f.Fatal(err)
	}
	f.Add(d.files[NextFile])
	f.Add([]byte(`{"schema":"fleet.machine-certificate/v1"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		h, err := decode(b)
		if err != nil {
			return
		}
		back, err := encode(h)
		if err != nil {
			t.Fatal(err)
		}
		if again, err := decode(back); err != nil || !again.Same(h) || again.chain != h.chain {
			t.Fatalf("what was read does not read back: %v", err)
		}
	})
}
