package gate

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/golden"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/rotation"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{"gate-file": File{Schema: SchemaFile}})
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func line(version, value string) string { return version + " " + value + "\n" }

var oldValue, newValue = secret.New(prefix).Reveal(), secret.New(prefix).Reveal()

func paths(t *testing.T) (primary, secondary string) {
	dir := t.TempDir()
	return filepath.Join(dir, "gate"), filepath.Join(dir, "gate.secondary")
}

// What cannot be used is refused in words, and never counts as no gate. // R24, R26
func TestFilesFailClosed(t *testing.T) {
	for name, test := range map[string]struct{ primary, secondary, want string }{
		"missing":                  {"", "", "no such file"},
		"empty":                    {"\n", "", "empty"},
		"blank":                    {" \t\r\n", "", "empty"},
		"no version":               {oldValue, "", "one line of a version and a value"},
		"version zero":             {line("0", oldValue), "", "not a positive number"},
		"negative":                 {line("-1", oldValue), "", "not a positive number"},
		"no number":                {line("one", oldValue), "", "not a positive number"},
		"short":                    {line("1", "fg_short"), "", "16 to 256"},
		"long":                     {line("1", strings.Repeat("x", 300)), "", "16 to 256"},
		"two lines":                {line("1", oldValue) + line("2", newValue), "", "one line"},
		"a word too many":          {"1 " + oldValue + " x", "", "one line"},
		"not printable":            {"1 " + oldValue + "\x01", "", "printable"},
		"secondary malformed":      {line("1", oldValue), "2", "one line"},
		"two values of one number": {line("1", oldValue), line("1", newValue), "two values of version 1"},
	} {
		t.Run(name, func(t *testing.T) {
			p, s := paths(t)
			if test.primary != "" {
				write(t, p, test.primary)
			}
			if test.secondary != "" {
				write(t, s, test.secondary)
			}
			_, err := New(p, "").Read()
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Fatalf("the error is %v", err)
			}
			if strings.Contains(err.Error(), oldValue) || strings.Contains(err.Error(), newValue) {
				t.Fatal("the error quotes the value")
			}
		})
	}
}

func TestFilesOfOthersAreRefused(t *testing.T) {
	p, _ := paths(t)
	write(t, p, line("1", oldValue))
	if err := os.Chmod(p, 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := New(p, "").Read(); err == nil || !strings.Contains(err.Error(), "0644") {
		t.Fatalf("the error is %v", err)
	}
	if err := os.Rename(p, p+".real"); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(p+".real", 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(p+".real", p); err != nil {
		t.Fatal(err)
	}
	if _, err := New(p, "").Read(); err == nil {
		t.Fatal("a symbolic link is taken")
	}
}

// A secondary that is empty or has the primary's value is none, and what stands
// around a value is trimmed. // R26
func TestASecondaryMayBeNone(t *testing.T) {
	for name, content := range map[string]string{"missing": "-", "empty": "", "blank": " \n", "equal": line("1", oldValue), "equal under another number": line("2", oldValue)} {
		t.Run(name, func(t *testing.T) {
			p, s := paths(t)
			write(t, p, "\n 1\t"+oldValue+" \r\n")
			if content != "-" {
				write(t, s, content)
			}
			f, err := New(p, s).Read()
			if err != nil {
				t.Fatal(err)
			}
			primary, secondary := f.Holdings()
			if secondary != nil || primary.Version != 1 || primary.Digest != secret.Of(oldValue).Digest() {
				t.Fatalf("%+v, %+v", primary, secondary)
			}
		})
	}
}

func holding(version int64, value string) rotation.Holding {
	return rotation.Holding{Version: version, Digest: secret.Of(value).Digest()}
}

// loaded is a gate over both values.
func loaded(t *testing.T) (*Gate, string, string) {
	t.Helper()
	p, s := paths(t)
	write(t, p, line("1", oldValue))
	write(t, s, line("2", newValue))
	g := New(p, s)
	f, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	g.Hold(f)
	return g, p, s
}

// rolling is a state in the middle of a rotation from 1 to 2.
func rolling(t *testing.T) rotation.State {
	t.Helper()
	now := time.Now()
	s := rotation.State{Kind: "gate"}
	if _, err := s.Adopt(holding(1, oldValue), nil, now); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(rotation.Begin{By: "person:dana"}, now); err != nil {
		t.Fatal(err)
	}
	if err := s.Made(holding(2, newValue)); err != nil {
		t.Fatal(err)
	}
	s.Advance(rotation.Facts{Ready: true}, now)
	return s
}

func TestOnlyWhatTheStateAcceptsGetsThrough(t *testing.T) { // R26
	g, _, _ := loaded(t)
	judge := func(value string, version int64, retiring bool) {
		t.Helper()
		use, ok := g.Judge(value)
		if ok != (version != 0) || use.Version != version || use.Retiring != retiring {
			t.Errorf("judged as %+v, %v", use, ok)
		}
	}
	judge(oldValue, 0, false) // nothing was applied yet
	s := rolling(t)
	g.Apply(s)
	judge(oldValue, 1, true)
	judge(newValue, 2, false)
	for _, wrong := range []string{"", " ", oldValue + "x", oldValue[:len(oldValue)-1], "1 " + oldValue, "fg_"} {
		judge(wrong, 0, false)
	}
	if _, ok := g.Want(2); ok {
		t.Error("something is wanted of one who has it")
	}
	if v, ok := g.Want(1); !ok || v != 2 {
		t.Errorf("version %d is wanted", v)
	}
	s.Run.Step = "narrow"
	g.Apply(s)
	judge(oldValue, 0, false)
	judge(newValue, 2, false)
}

// A file that an earlier deployment puts back, with a value that the state does
// not know under that number, lets nobody in.
func TestANumberNeverMeansTwoValues(t *testing.T) {
	g, p, _ := loaded(t)
	s := rolling(t)
	write(t, p, line("1", secret.New(prefix).Reveal()))
	f, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	primary, secondary := f.Holdings()
	var retired *rotation.RetiredError
	if _, err := s.Adopt(primary, secondary, time.Now()); !errors.As(err, &retired) || !retired.Other {
		t.Fatalf("adopted: %v", err)
	}
	g.Hold(f)
	if got := g.Apply(s); len(got) != 1 || got[0] != 2 {
		t.Fatalf("accepted: %v", got)
	}
}

func TestMakeIsSafeToRepeat(t *testing.T) { // R26
	p, s := paths(t)
	write(t, p, line("1", oldValue))
	g := New(p, "")
	f, err := g.Read()
	if err != nil {
		t.Fatal(err)
	}
	g.Hold(f)
	first, err := g.Make(2)
	if err != nil {
		t.Fatal(err)
	}
	// A crash came before anybody knew: another process finds the same value.
	other := New(p, s)
	again, err := other.Make(2)
	if err != nil || again != first {
		t.Fatalf("%+v after %+v: %v", again, first, err)
	}
	if st, err := os.Stat(s); err != nil || st.Mode().Perm() != 0o600 {
		t.Fatalf("%v, %v", st, err)
	}
}

func TestEraseLeavesOneVersion(t *testing.T) { // R26
	for _, keep := range []int64{1, 2} {
		g, p, s := loaded(t)
		torn := filepath.Join(filepath.Dir(s), "."+filepath.Base(s)+".fleet-tmp-1") // a crash left it
		write(t, torn, line("2", newValue))
		defer func() {
			if _, err := os.Stat(torn); !os.IsNotExist(err) {
				t.Errorf("a torn copy is there still: %v", err)
			}
		}()
		for range 2 { // a crash may have it done again
			if err := g.Erase(keep); err != nil {
				t.Fatal(err)
			}
		}
		tok, err := read(p)
		if err != nil || tok.version != keep || !g.Only(keep) {
			t.Fatalf("%+v, %v", tok, err)
		}
		if _, err := os.Stat(s); !os.IsNotExist(err) {
			t.Fatalf("the secondary is there: %v", err)
		}
	}
}

// A proof needs the good value to pass, or every outage would be one. // R26
func TestAProofHasAControl(t *testing.T) {
	g, _, _ := loaded(t)
	g.Apply(rolling(t))
	for name, test := range map[string]struct {
		refuses map[string]bool
		err     error
		good    bool
	}{
		"refused":          {map[string]bool{oldValue: true}, nil, true},
		"both refused":     {map[string]bool{oldValue: true, newValue: true}, nil, false},
		"none refused":     {nil, nil, false},
		"nothing answered": {nil, errors.New("no answer"), false},
	} {
		m := Material{Gate: g, Present: func(_ context.Context, v string) (bool, error) { return test.refuses[v], test.err }}
		if err := m.Prove(t.Context(), 1); (err == nil) != test.good {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestRefusalsAreCountedInStretches(t *testing.T) { // R22
	var r Refusals
	at := time.Unix(1000, 0)
	if n, since := r.Now(at, time.Minute); n != 0 || !since.IsZero() {
		t.Fatal(n, since)
	}
	for i := range 3 {
		r.Add(at.Add(time.Duration(i)*time.Second), time.Minute)
	}
	if n, since := r.Now(at.Add(time.Minute), time.Minute); n != 3 || !since.Equal(at) {
		t.Fatal(n, since)
	}
	if n, _ := r.Now(at.Add(time.Hour), time.Minute); n != 0 {
		t.Fatal("a stretch never ends")
	}
	r.Add(at.Add(time.Hour), time.Minute)
	if n, since := r.Now(at.Add(time.Hour), time.Minute); n != 1 || !since.Equal(at.Add(time.Hour)) {
		t.Fatal(n, since)
	}
}

func FuzzFile(f *testing.F) {
	f.Add("1 " + oldValue)
	f.Add("")
	f.Add("1 2 3")
	f.Fuzz(func(t *testing.T, content string) {
		p := filepath.Join(t.TempDir(), "gate")
		if err := os.WriteFile(p, []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
		tok, err := read(p)
		if err != nil {
			return
		}
		if tok.version < 1 || tok.value.Empty() {
			t.Fatalf("%q is taken as %+v", content, tok)
		}
		again := filepath.Join(t.TempDir(), "gate")
		if err := os.WriteFile(again, tok.line(), 0o600); err != nil {
			t.Fatal(err)
		}
		if back, err := read(again); err != nil || back.holding() != tok.holding() {
			t.Fatalf("%q does not come back: %v", content, err)
		}
	})
}

func BenchmarkJudge(b *testing.B) {
	g := New("a", "b")
	g.Hold(Files{primary: &token{1, secret.Of(oldValue)}, secondary: &token{2, secret.Of(newValue)}})
	g.Apply(rotation.State{Version: 2, Digest: secret.Of(newValue).Digest(), Second: 1, SecondDigest: secret.Of(oldValue).Digest()})
	b.ReportAllocs()
	for b.Loop() {
		if _, ok := g.Judge(oldValue); !ok {
			b.Fatal("refused")
		}
	}
}
