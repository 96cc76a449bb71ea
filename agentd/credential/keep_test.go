package credential

import (
	"context"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// begun is a machine that was installed and rotated once, on a disk of its own.
func begun(t *testing.T) (*disk, *Store, *server) {
	t.Helper()
	d := newDisk()
	doc := testDoc()
	s := Open(d)
	if _, err := s.Install(doc, false); err != nil {
		t.Fatal(err)
	}
	p := &server{gen: 1, current: secret.Of(doc.Secret).Digest()}
	for range 3 {
		once(t, s, p, nil)
	}
	if p.gen != 2 || s.Status().Generation != 2 {
		t.Fatal(p.gen, s.Status())
	}
	return d, s, p
}

// once is a check that the plane answers, and what follows from it.
func once(t *testing.T, s *Store, p *server, request *time.Time) {
	t.Helper()
	c, ok := s.Present()
	if !ok {
		t.Fatal("nothing to present")
	}
	if code := p.use(c.Secret.Digest()); code != "" {
		s.Refused(c, code)
		return
	}
	s.Accepted(c, time.Now())
	s.Advance(context.Background(), p, request)
}

func onDisk(t *testing.T, d *disk, name string) *Credential {
	t.Helper()
	f := d.now[name]
	if f == nil {
		return nil
	}
	c, err := decode([]byte(f.data))
	if err != nil {
		t.Fatal(name, err)
	}
	return c
}

// Where no lock kept a second agentd away, what the first one staged is the
// next generation of both: were it replaced, the plane would promote a secret
// that is on no disk. // R21
func TestTwoAgentsStageOneSecret(t *testing.T) {
	d, a, p := begun(t)
	b := Open(d)
	asked := time.Unix(1, 0)
	for _, s := range []*Store{a, b} {
		c, _ := s.Present()
		s.Accepted(c, time.Now())
	}
	p.lose = true
	a.Advance(context.Background(), p, &asked)
	p.lose = false
	first := onDisk(t, d, NextFile)
	b.Advance(context.Background(), p, &asked)
	if got := onDisk(t, d, NextFile); first == nil || !got.is(first) || p.next != first.Secret.Digest() {
		t.Fatal("the second agent replaced what the first one staged")
	}
	for range 4 {
		once(t, a, p, &asked)
		once(t, b, p, &asked)
	}
	if p.gen != 3 || !onDisk(t, d, CurrentFile).is(first) {
		t.Fatalf("generation %d", p.gen)
	}
}

// A process that cannot open files for a while keeps its identity. // R21
func TestAFileThatCannotBeReadTakesNothingFromMemory(t *testing.T) {
	d, s, p := begun(t)
	d.Write(GateFile, []byte("3 "+secret.New("fg_").Reveal()+"\n"))
	d.Sync(GateFile)
	s.Reload()
	plane, gate := s.Plane()
	if plane == nil || gate == nil {
		t.Fatal(plane, gate, s.Status().Damaged)
	}
	for _, err := range []error{syscall.EMFILE, syscall.EIO, syscall.EACCES} {
		d.unread = err
		c, _ := s.Present()
		s.Accepted(c, time.Now())
		s.Advance(context.Background(), p, nil)
		s.Reload()
		if got, ok := s.Present(); !ok || !got.is(&c) {
			t.Fatalf("%v: the credential in use is gone", err)
		}
		if p, g := s.Plane(); p == nil || *p != *plane || g == nil || *g != *gate {
			t.Fatalf("%v: where the plane is, or its gate, is gone: %v %v", err, p, g)
		}
		if len(s.Status().Damaged) == 0 {
			t.Errorf("%v: nothing says so", err)
		}
	}
	d.unread = nil
	once(t, s, p, nil)
	if st := s.Status(); len(st.Damaged) != 0 || st.State != wire.CredentialOK {
		t.Fatalf("%+v", st)
	}
}

// What works and has gone from the disk is written back, whether it stood under
// its name or was about to. // R21
func TestTheCredentialInUseIsWrittenBack(t *testing.T) {
	for _, name := range []string{CurrentFile, NextFile} {
		for what, harm := range map[string]func(*disk, string){
			"gone":  func(d *disk, name string) { delete(d.now, name) },
			"empty": func(d *disk, name string) { d.now[name] = &inode{synced: true} },
		} {
			d, s, p := begun(t)
			asked := time.Unix(1, 0)
			if name == NextFile {
				once(t, s, p, &asked) // staged, and the next to be presented
			}
			want := s.Status().Generation
			c, _ := s.Present()
			if code := p.use(c.Secret.Digest()); code != "" {
				t.Fatal(code)
			}
			s.Accepted(c, time.Now())
			harm(d, name)
			d.full = true
			if _, err := s.Advance(context.Background(), p, nil); err == nil || s.Status().Problem == "" {
				t.Fatalf("%s %s: a full disk took it", name, what)
			}
			if got, ok := s.Present(); !ok || !got.is(&c) {
				t.Fatalf("%s %s: the credential in use is gone", name, what)
			}
			d.full = false
			if _, err := s.Advance(context.Background(), p, nil); err != nil || s.Status().Problem != "" {
				t.Fatal(name, what, err, s.Status())
			}
			if got := onDisk(t, d, CurrentFile); !got.is(&c) || got.Generation != want {
				t.Errorf("%s %s: it was not written back", name, what)
			}
			if prev := onDisk(t, d, PreviousFile); prev == nil || prev.Generation != c.Generation-1 {
				t.Errorf("%s %s: the one before is %+v", name, what, prev)
			}
		}
	}
}

// A staged secret that was lost may have been presented, and the request that
// did be on its way: it is staged again, not replaced by another one. // R21
func TestTheStagedSecretIsStagedAgain(t *testing.T) {
	d, s, p := begun(t)
	asked := time.Unix(1, 0)
	p.lose = true
	once(t, s, p, &asked)
	c, _ := s.Present()
	s.Accepted(c, time.Now())
	s.Advance(context.Background(), p, &asked)
	p.lose = false
	first := onDisk(t, d, NextFile)
	d.now[NextFile].data = "torn"
	s.Accepted(c, time.Now())
	if moved, err := s.Advance(context.Background(), p, &asked); !moved || err != nil {
		t.Fatal(moved, err)
	}
	if got := onDisk(t, d, NextFile); first == nil || !got.is(first) || p.next != first.Secret.Digest() {
		t.Fatal("another secret was staged in its place")
	}
}

// Writing back does not undo an install. // R6
func TestAnInstallByAnotherProcessStands(t *testing.T) {
	for name, change := range map[string]func(*wire.Credential){
		"the same machine, anew": func(*wire.Credential) {},
		"another machine":        func(doc *wire.Credential) { doc.Machine = wire.NewMachineID() },
	} {
		d, s, p := begun(t)
		c, _ := s.Present()
		s.Accepted(c, time.Now())
		doc := testDoc()
		doc.Machine = c.Machine
		change(doc)
		if _, err := Open(d).Install(doc, true); err != nil {
			t.Fatal(err)
		}
		s.Advance(context.Background(), p, nil)
		if got := onDisk(t, d, CurrentFile); got.Secret.Digest() != secret.Of(doc.Secret).Digest() {
			t.Errorf("%s: the install was undone", name)
		}
	}
}

// Only a secret that was made after a request answers it. // R16
func TestAnEarlierSecretAnswersNoRequest(t *testing.T) {
	d, s, p := begun(t)
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	c, _ := s.Present()
	s.Accepted(c, time.Now())
	p.lose = true
	s.Advance(context.Background(), p, &first)
	p.lose = false
	staged := onDisk(t, d, NextFile)
	for range 6 {
		once(t, s, p, &second)
	}
	c, _ = s.Present()
	if p.gen != 4 || !c.Answers.Equal(second) || staged.Generation != 3 || !staged.Answers.Equal(first) {
		t.Fatalf("generation %d answers %v; what was staged before was %d for %v", p.gen, c.Answers, staged.Generation, staged.Answers)
	}
	// Over a restart it is known to be answered.
	s = Open(d)
	for range 4 {
		once(t, s, p, &second)
	}
	if p.gen != 4 {
		t.Fatal("an answered request was answered again")
	}
}
