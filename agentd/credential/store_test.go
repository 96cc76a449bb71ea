package credential

import (
	"context"
	"errors"
	"io/fs"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// disk is a directory that can crash and be full. What was not synced may be
// lost: file content is torn, and of the directory's changes since the last
// SyncDir only some prefix survives.
type disk struct {
	now     map[string]*inode
	durable map[string]*inode
	ops     []func(map[string]*inode) // directory changes since the last SyncDir
	full    bool
	unread  error // what every read meets
	crashIn int   // operations until the crash, 0: none
}

type inode struct {
	data   string
	synced bool
}

type crashed struct{}

func newDisk() *disk { return &disk{now: map[string]*inode{}, durable: map[string]*inode{}} }

// step is called before each operation has its effect.
func (d *disk) step() {
	if d.crashIn > 0 {
		if d.crashIn--; d.crashIn == 0 {
			panic(crashed{})
		}
	}
}

func (d *disk) change(op func(map[string]*inode)) {
	op(d.now)
	d.ops = append(d.ops, op)
}

var errFull = errors.New("no space left on device")

func (d *disk) Read(name string) ([]byte, error) {
	f := d.now[name]
	if d.unread != nil {
		return nil, d.unread
	}
	if f == nil {
		return nil, fs.ErrNotExist
	}
	return []byte(f.data), nil
}

func (d *disk) Write(name string, data []byte) error {
	d.step()
	f := &inode{}
	d.change(func(m map[string]*inode) { m[name] = f })
	if d.full {
		f.data = string(data[:len(data)/3])
		return errFull
	}
	d.step()
	f.data = string(data)
	return nil
}

func (d *disk) Sync(name string) error {
	d.step()
	d.now[name].synced = true
	return nil
}

func (d *disk) Rename(from, to string) error {
	d.step()
	f := d.now[from]
	if f == nil {
		return fs.ErrNotExist
	}
	if d.now[to] == f {
		return nil // as POSIX has it
	}
	d.change(func(m map[string]*inode) { m[to] = m[from]; delete(m, from) })
	return nil
}

func (d *disk) Link(from, to string) error {
	d.step()
	if d.now[to] != nil {
		return fs.ErrExist
	}
	d.change(func(m map[string]*inode) { m[to] = m[from] })
	return nil
}

func (d *disk) Remove(name string) error {
	d.step()
	d.change(func(m map[string]*inode) { delete(m, name) })
	return nil
}

func (d *disk) SyncDir() error {
	d.step()
	d.ops = nil
	d.durable = map[string]*inode{}
	for k, v := range d.now {
		d.durable[k] = v
	}
	return nil
}

func (d *disk) Lock() (func(), error) { return func() {}, nil }

// images are what the disk may hold after a power cut now: for each prefix of
// the directory's changes one, with unsynced content torn.
func (d *disk) images() []map[string]*inode {
	var out []map[string]*inode
	for n := range len(d.ops) + 1 {
		m := map[string]*inode{}
		for k, v := range d.durable {
			m[k] = v
		}
		for _, op := range d.ops[:n] {
			op(m)
		}
		for k, v := range m {
			if v == nil {
				delete(m, k)
			} else if !v.synced {
				m[k] = &inode{data: v.data[:len(v.data)/2], synced: true}
			}
		}
		out = append(out, m)
	}
	return out
}

// server is the plane's row.
type server struct {
	gen     int64
	current secret.Digest
	next    secret.Digest
	old     []secret.Digest
	backup  *server
	lose    bool // the answer
}

func (p *server) generation(d secret.Digest) int64 {
	switch {
	case d == p.current:
		return p.gen
	case !p.next.IsZero() && d == p.next:
		return p.gen + 1
	}
	return 0
}

func (p *server) use(d secret.Digest) (code string) {
	switch p.generation(d) {
	case 0:
		for _, o := range p.old {
			if o == d {
				return wire.CodeBehind
			}
		}
		return wire.CodeUnauthorized
	case p.gen + 1:
		b := *p
		b.old = append([]secret.Digest(nil), p.old...)
		b.backup = nil
		p.backup = &b
		p.old = append(p.old, p.current)
		p.current, p.next, p.gen = p.next, secret.Digest{}, p.gen+1
	}
	return ""
}

type refusal string

func (r refusal) Error() string { return string(r) }
func (r refusal) Behind() bool  { return r == wire.CodeBehind }

func (p *server) Rotate(_ context.Context, c Credential, req wire.RotateRequest) error {
	if code := p.use(c.Secret.Digest()); code != "" {
		return refusal(code)
	}
	if req.Generation != p.gen+1 {
		return errors.New("bad request")
	}
	p.next, _ = secret.ParseDigest(req.Digest)
	if p.lose {
		return errors.New("connection reset")
	}
	return nil
}

// accepted reports whether some whole credential on the image is accepted.
func (p *server) accepts(m map[string]*inode) bool {
	for _, name := range names {
		if f := m[name]; f != nil {
			if c, err := decode([]byte(f.data)); err == nil && p.generation(c.Secret.Digest()) > 0 {
				return true
			}
		}
	}
	return false
}

func testDoc() *wire.Credential {
	return &wire.Credential{Schema: wire.SchemaCredential, Machine: wire.NewMachineID(), Generation: 1, Secret: secret.New("fm_").Reveal(),
		Plane: wire.CredentialPlane{URL: "https://plane.example", RootsPEM: "system"}}
}

func TestSomeCredentialOnDiskIsAlwaysAccepted(t *testing.T) { // R20, R21
	rapid.Check(t, func(r *rapid.T) {
		d := newDisk()
		doc := testDoc()
		s := Open(d)
		if _, err := s.Install(doc, false); err != nil {
			r.Fatal(err)
		}
		p := &server{gen: 1, current: secret.Of(doc.Secret).Digest()}
		// crashable runs f and, if the disk crashed in it, restarts from what
		// may be left.
		crashable := func(f func()) {
			defer func() {
				d.crashIn = 0
				if x := recover(); x != nil {
					if _, ok := x.(crashed); !ok {
						panic(x)
					}
					images := d.images()
					m := images[rapid.IntRange(0, len(images)-1).Draw(r, "survives")]
					full := d.full
					d = newDisk()
					d.full = full
					for k, v := range m {
						d.now[k], d.durable[k] = v, v
					}
					s = Open(d)
				}
			}()
			f()
		}
		check := func() {
			c, ok := s.Present()
			if !ok {
				r.Fatal("nothing to present")
			}
			code := p.use(c.Secret.Digest())
			if p.lose {
				return
			}
			if code == "" {
				s.Accepted(c, time.Now())
			} else {
				s.Refused(c, code)
			}
		}
		// The plane asks at a time that is its own.
		asked := time.Unix(0, 0)
		advance := func(rotate bool) {
			if !rotate {
				s.Advance(context.Background(), p, nil)
				return
			}
			if c, ok := s.Present(); ok && c.Answers.Equal(asked) {
				asked = asked.Add(time.Second)
			}
			s.Advance(context.Background(), p, &asked)
		}
		r.Repeat(map[string]func(*rapid.T){
			"check":   func(*rapid.T) { check() },
			"advance": func(r *rapid.T) { rotate := rapid.Bool().Draw(r, "rotate"); crashable(func() { advance(rotate) }) },
			"advance and crash": func(r *rapid.T) {
				d.crashIn = rapid.IntRange(1, 30).Draw(r, "crash")
				crashable(func() { advance(true) })
			},
			"power cut":    func(*rapid.T) { crashable(func() { panic(crashed{}) }) },
			"restart":      func(*rapid.T) { s = Open(d) },
			"reload":       func(*rapid.T) { s.Reload() },
			"answers lost": func(*rapid.T) { p.lose = !p.lose },
			"disk full":    func(*rapid.T) { d.full = !d.full },
			"plane restored from a backup": func(r *rapid.T) {
				// One generation old at most: the machine keeps no more.
				if p.backup != nil && p.backup.gen == p.gen-1 {
					b := *p.backup
					b.lose = p.lose
					if rapid.Bool().Draw(r, "before the rotation") {
						b.next = secret.Digest{}
					}
					p = &b
				}
			},
			"install again": func(r *rapid.T) {
				if d.full {
					return
				}
				d.crashIn = rapid.IntRange(0, 20).Draw(r, "crash")
				crashable(func() { s.Install(doc, false) })
			},
			"": func(r *rapid.T) {
				for i, m := range d.images() {
					if !p.accepts(m) {
						r.Fatalf("after a power cut now (image %d) no credential would be accepted: %v", i, m)
					}
				}
			},
		})
		// When all is well again the machine gets back in by itself and rotates.
		p.lose, d.full = false, false
		s = Open(d)
		for range 12 {
			check()
			advance(false)
		}
		if st := s.Status(); st.State != wire.CredentialOK || st.Problem != "" {
			r.Fatalf("%+v", st)
		}
		before := p.gen
		for range 6 {
			check()
			advance(p.gen == before)
		}
		if p.gen != before+1 {
			r.Fatalf("generation %d, want %d", p.gen, before+1)
		}
	})
}

func TestFullDiskKeepsTheOldOneAndSaysSo(t *testing.T) { // R21
	d := newDisk()
	doc := testDoc()
	s := Open(d)
	if _, err := s.Install(doc, false); err != nil {
		t.Fatal(err)
	}
	p := &server{gen: 1, current: secret.Of(doc.Secret).Digest()}
	d.full = true
	c, _ := s.Present()
	s.Accepted(c, time.Now())
	if _, err := s.Advance(context.Background(), p, nil); err == nil {
		t.Fatal("a rotation on a full disk succeeded")
	}
	if st := s.Status(); st.Problem == "" || st.State != wire.CredentialOK || strings.Contains(st.Problem, c.Secret.Reveal()) {
		t.Fatalf("%+v", st)
	}
	if !p.next.IsZero() {
		t.Fatal("a digest was sent whose secret is not on disk")
	}
	d.full = false
	s.Accepted(c, time.Now())
	if moved, err := s.Advance(context.Background(), p, nil); err != nil || !moved || s.Status().Problem != "" {
		t.Fatal(moved, err, s.Status())
	}
}

func TestPromotionNeedsNoSpace(t *testing.T) { // R21
	d := newDisk()
	doc := testDoc()
	s := Open(d)
	s.Install(doc, false)
	p := &server{gen: 1, current: secret.Of(doc.Secret).Digest()}
	c, _ := s.Present()
	s.Accepted(c, time.Now())
	s.Advance(context.Background(), p, nil)
	d.full = true
	c, _ = s.Present()
	if code := p.use(c.Secret.Digest()); code != "" || c.Generation != 2 {
		t.Fatal(code, c.Generation)
	}
	s.Accepted(c, time.Now())
	if _, err := s.Advance(context.Background(), p, nil); err != nil {
		t.Fatal(err)
	}
	if got, err := decode([]byte(d.now[CurrentFile].data)); err != nil || got.Generation != 2 {
		t.Fatal(got, err)
	}
}

func TestInstallRules(t *testing.T) { // R6
	proven := func(gen int64) (*Store, *wire.Credential) {
		d := newDisk()
		doc := testDoc()
		doc.Generation = gen
		s := Open(d)
		if _, err := s.Install(doc, false); err != nil {
			t.Fatal(err)
		}
		c, _ := s.Present()
		s.Accepted(c, time.Now())
		s.saveRow(s.row)
		return s, doc
	}
	other := func(doc *wire.Credential, change func(*wire.Credential)) *wire.Credential {
		c := *doc
		c.Secret = secret.New("fm_").Reveal()
		change(&c)
		return &c
	}
	for _, x := range []struct {
		name   string
		change func(*wire.Credential)
		want   string // outcome, or "" for a refusal
	}{
		{"an earlier generation", func(c *wire.Credential) { c.Generation = 1 }, ""},
		{"another of the same", func(*wire.Credential) {}, ""},
		{"another plane's", func(c *wire.Credential) { c.Machine, c.Plane.URL = wire.NewMachineID(), "https://other.example" }, ""},
		{"a new row, the same plane", func(c *wire.Credential) { c.Machine, c.Generation = wire.NewMachineID(), 1 }, Replaced},
	} {
		s, doc := proven(3)
		if got, err := s.Install(doc, false); got != Same || err != nil {
			t.Errorf("the same again: %q, %v", got, err)
		}
		got, err := s.Install(other(doc, x.change), false)
		if got != x.want || (err == nil) != (x.want != "") {
			t.Errorf("%s: %q, %v", x.name, got, err)
		}
	}
	// One that never worked gives way.
	s := Open(newDisk())
	first := testDoc()
	s.Install(first, false)
	if got, err := s.Install(other(first, func(*wire.Credential) {}), false); got != Replaced || err != nil {
		t.Fatal(got, err)
	}
	// One that is dead gives way, and the mark goes.
	s, doc := proven(1)
	s.MarkRevoked(time.Now())
	if !s.Status().Revoked {
		t.Fatal("not revoked")
	}
	if got, err := s.Install(other(doc, func(c *wire.Credential) { c.Machine = wire.NewMachineID() }), false); got != Replaced || err != nil || s.Status().Revoked {
		t.Fatal(got, err, s.Status())
	}
}

func FuzzReadDocument(f *testing.F) {
	f.Add(`{"schema":"fleet.credential/v1","machine":"m_aaaaaaaaaaaaaaaaaaaaaaaaaa","generation":1,"secret":"fm_0123456789012345678901234567890123456789012","plane":{"url":"https://p","roots_pem":"system"},"gate":null}`)
	f.Fuzz(func(t *testing.T, in string) {
		doc, err := ReadDocument(strings.NewReader(in))
		if err != nil {
			if strings.Contains(in, "fm_") && strings.Contains(err.Error(), "fm_") {
				t.Fatal("the error quotes the input")
			}
			return
		}
		c := &Credential{Machine: doc.Machine, Generation: doc.Generation, Secret: secret.Of(doc.Secret)}
		if back, err := decode(encode(c)); err != nil || !back.is(c) {
			t.Fatal("an accepted document does not survive the disk", err)
		}
	})
}

func FuzzDecode(f *testing.F) {
	f.Add(encode(&Credential{Machine: wire.NewMachineID(), Generation: 3, Secret: secret.New("fm_")}))
	f.Fuzz(func(t *testing.T, in []byte) {
		if c, err := decode(in); err == nil {
			if back, err := decode(encode(c)); err != nil || !back.is(c) {
				t.Fatal(err)
			}
		}
	})
}
