package cli

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"fleet.example/fleet/core/fault"
)

func TestAFileOfVariables(t *testing.T) {
	env := map[string]string{"A": "before", "Z": "z"}
	if err := parseEnv(strings.NewReader("# a comment\n\nA=1\r\n B =a=b \nC="), "f", env); err != nil {
		t.Fatal(err)
	}
	if want := map[string]string{"A": "1", "B": "a=b ", "C": "", "Z": "z"}; !maps.Equal(env, want) {
		t.Errorf("%q", env)
	}
	for _, text := range []string{"A=1\nsecret", "A=1\n=secret"} {
		err := parseEnv(strings.NewReader(text), "f", env)
		if err == nil || err.Error() != "f: line 2 is not K=V" || fault.Of(err).Exit != fault.Usage {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A file of which only the beginning would be taken gives no command another
// environment than the one that was written.
func TestTooManyVariablesAreRefusedByTheFilesName(t *testing.T) {
	p := newFake(t)
	file := filepath.Join(t.TempDir(), "vars")
	line := "KEY=" + strings.Repeat("x", 59) + "\n"
	for _, v := range []struct {
		text    string
		refused bool
	}{{strings.Repeat(line, 1<<14), false}, {strings.Repeat(line, 1<<14) + "\n", true}, {"A=" + strings.Repeat("x", 1<<20), true}} {
		if err := os.WriteFile(file, []byte(v.text), 0o600); err != nil {
			t.Fatal(err)
		}
		err := parseEnv(strings.NewReader(v.text), file, map[string]string{})
		if (err != nil) != v.refused {
			t.Errorf("%d bytes: %v", len(v.text), err)
		}
		if !v.refused {
			continue
		}
		if out, errOut, exit := p.run("exec", "web-1", "--env-file", file, "--", "true"); exit != 2 && exit != 255 || !strings.Contains(errOut, file+": more than 1048576 bytes") {
			t.Error(out, errOut, exit)
		}
	}
}

// FuzzEnv: what is taken says the same when it is written out again, and what is
// refused is not quoted.
func FuzzEnv(f *testing.F) {
	for _, s := range []string{"", "A=1", "A=1\r\n#x\nB=", " A = b=c \n", "x", "=", "A=\xff\x00", "A=1\r\r\n", "\ufeffA=1"} {
		f.Add(s)
	}
	refusal := regexp.MustCompile(`^file: line \d+ is not K=V$`)
	f.Fuzz(func(t *testing.T, text string) {
		env := map[string]string{}
		if err := parseEnv(strings.NewReader(text), "file", env); err != nil {
			if !refusal.MatchString(err.Error()) {
				t.Fatal(err)
			}
			return
		}
		var b strings.Builder
		for k, v := range env {
			fmt.Fprintf(&b, "%s=%s\r\n", k, v)
		}
		again := map[string]string{}
		if err := parseEnv(strings.NewReader(b.String()), "file", again); err != nil || !maps.Equal(env, again) {
			t.Fatalf("%q became %q: %v", env, again, err)
		}
	})
}
