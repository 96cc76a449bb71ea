package sshconfig

import (
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"os/user"
	"path"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/rogpeppe/go-internal/txtar"
)

// needSSH skips a test where there is no ssh to compare with.
func needSSH(t testing.TB) {
	t.Helper()
	if _, err := exec.LookPath("ssh"); err != nil {
		t.Skip("no ssh program in PATH: there is nothing to compare with")
	}
}

// configCase is one file in testdata/cases. Its head has lines `key: value`:
// args and arg (the command line after ssh), env, want (a line of the answer,
// where * stands for anything), fail (words of the refusal), kept (whether the
// answer may be cached: yes, no or any). @WORK@, @HOME@ and @USER@ are filled
// in. The files are laid out in a directory that is HOME.
type configCase struct {
	work       string
	args       []string
	env        map[string]string
	want, fail []string
	kept       string
}

func layOut(t *testing.T, file string) *configCase {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	me, err := user.Current()
	if err != nil {
		t.Fatal(err)
	}
	c := &configCase{work: t.TempDir(), env: map[string]string{}}
	fill := strings.NewReplacer("@WORK@", c.work, "@HOME@", me.HomeDir, "@USER@", me.Username)
	a := txtar.Parse(b)
	for line := range strings.Lines(string(a.Comment)) {
		key, value, _ := strings.Cut(strings.TrimRight(line, "\n"), ": ")
		value = fill.Replace(value)
		switch key {
		case "args":
			c.args = append(c.args, strings.Fields(value)...)
		case "arg":
			c.args = append(c.args, value)
		case "env":
			k, v, _ := strings.Cut(value, "=")
			c.env[k] = v
		case "want":
			c.want = append(c.want, value)
		case "fail":
			c.fail = append(c.fail, value)
		case "kept":
			c.kept = value
		default:
			t.Fatalf("%s: unknown line %q", file, line)
		}
	}
	for _, f := range a.Files {
		to := filepath.Join(c.work, f.Name)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, []byte(fill.Replace(string(f.Data))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// enter makes the case's world the process's: ssh gets the same environment.
func (c *configCase) enter(t *testing.T) {
	for _, kv := range os.Environ() {
		k, _, _ := strings.Cut(kv, "=")
		if k != "PATH" && k != "TMPDIR" && !strings.HasPrefix(k, "GO") {
			t.Setenv(k, "") // so that it comes back
			os.Unsetenv(k)
		}
	}
	for k, v := range map[string]string{"HOME": c.work, "LANG": "C.UTF-8", "SHELL": "/bin/sh"} {
		t.Setenv(k, v)
	}
	for k, v := range c.env {
		t.Setenv(k, v)
	}
	t.Chdir(c.work)
}

func (c *configCase) flags(t *testing.T) (dest string, f Flags) {
	t.Helper()
	f.ConfigFile = filepath.Join(c.work, "config")
	for i := 0; i < len(c.args); i++ {
		if !strings.HasPrefix(c.args[i], "-") {
			dest = c.args[i]
			continue
		}
		flag := c.args[i]
		i++
		switch v := c.args[i]; flag {
		case "-l":
			f.User = v
		case "-p":
			f.Port, _ = strconv.Atoi(v)
		case "-i":
			f.Identities = append(f.Identities, v)
		case "-J":
			f.Jump = v
		case "-o":
			f.Options = append(f.Options, v)
		default:
			t.Fatalf("unknown flag %s", flag)
		}
	}
	return dest, f
}

// askSSH is ssh -G itself. It takes no host:port, so the destination is given
// as a URI where it has a port.
func (c *configCase) askSSH(t *testing.T, more ...string) (dump, error) {
	t.Helper()
	args := []string{"-G", "-F", filepath.Join(c.work, "config")}
	dest, f := c.flags(t)
	f.ConfigFile = ""
	if d, err := ParseDestination(dest); err != nil {
		t.Fatal(err)
	} else if !strings.HasPrefix(dest, "ssh://") {
		dest = d.Host
		if f.Port == 0 {
			f.Port = d.Port
		}
		if f.User == "" {
			f.User = d.User
		}
	}
	args = append(append(append(args, more...), f.Args()...), "--", dest)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, "ssh", args...).Output()
	return parseDump(string(out)), err
}

// expandedBySSH has ssh expand a value as it would when it connects: the
// keyword given takes the same tokens and is expanded before ssh -G prints.
func (c *configCase) expandedBySSH(t *testing.T, keyword, value string) string {
	t.Helper()
	if isNone(value) || !strings.ContainsAny(value, "%$~") {
		return value
	}
	quoted := value
	if keyword != "RemoteCommand" {
		quoted = `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace(value) + `"`
	}
	d, err := c.askSSH(t, "-o", keyword+"="+quoted)
	if err != nil {
		return value // ssh would give up when it connects
	}
	return d.one(strings.ToLower(keyword))
}

func TestEveryCaseMeansWhatSSHMeans(t *testing.T) {
	needSSH(t)
	files, err := filepath.Glob("testdata/cases/*.txtar")
	if err != nil || len(files) < 100 {
		t.Fatal(len(files), err)
	}
	for i, f := range files {
		if files[i], err = filepath.Abs(f); err != nil {
			t.Fatal(err)
		}
	}
	cache := testCache(t)
	for _, file := range files {
		t.Run(strings.TrimSuffix(filepath.Base(file), ".txtar"), func(t *testing.T) {
			c := layOut(t, file)
			c.enter(t)
			said, sshErr := c.askSSH(t)
			r := Resolver{Getenv: os.Getenv, Cache: cache}
			dest, flags := c.flags(t)
			got, err := r.Inspect(t.Context(), dest, flags)
			if sshErr != nil || len(c.fail) > 0 {
				if sshErr == nil || err == nil {
					t.Fatalf("ssh: %v; here: %v; the case wants %q", sshErr, err, c.fail)
				}
				for _, w := range c.fail {
					if !strings.Contains(err.Error(), w) {
						t.Errorf("%v: does not say %q", err, w)
					}
				}
				return
			}
			if err != nil {
				t.Fatalf("ssh takes this: %v", err)
			}
			c.compare(t, said, got)
			c.compareKept(t, r, dest, flags, got)
		})
	}
}

func (c *configCase) compare(t *testing.T, said dump, got *Config) {
	t.Helper()
	var want []Line
	for _, l := range said.lines {
		switch l.Keyword {
		case "identityfile", "certificatefile":
			l.Value = c.expandedBySSH(t, "ControlPath", l.Value)
		case "proxycommand":
			// ProxyCommand takes fewer tokens, and a shell follows.
			if !strings.Contains(l.Value, "%u") && !strings.ContainsAny(said.one("hostname"), ";") {
				l.Value = c.expandedBySSH(t, "RemoteCommand", l.Value)
			}
		case "identityagent":
			if v, ok := os.LookupEnv(strings.TrimPrefix(l.Value, "$")); ok {
				l.Value = v
			}
		}
		want = append(want, l)
	}
	if d := cmp.Diff(want, got.Fields()); d != "" {
		t.Errorf("ssh -, here +:\n%s", d)
	}
	b, err := json.Marshal(got.Document())
	if err != nil {
		t.Fatal(err)
	}
	var doc map[string]any
	if err := json.Unmarshal(b, &doc); err != nil {
		t.Fatal(err)
	}
	for _, w := range c.want {
		if !inDocument(doc, w) {
			t.Errorf("the document has no %q: %s", w, b)
		}
	}
}

func inDocument(doc map[string]any, want string) bool {
	keyword, value, _ := strings.Cut(want, " ")
	fits := func(v any) bool {
		s, ok := v.(string)
		if !ok {
			return false
		}
		if head, tail, wild := strings.Cut(value, "*"); wild && !strings.Contains(s, "*") {
			return strings.HasPrefix(s, head) && strings.HasSuffix(s, tail) && len(s) > len(head)+len(tail)
		}
		ok, err := path.Match(strings.ReplaceAll(value, `\`, `\\`), s)
		return s == value || err == nil && ok
	}
	if list, ok := doc[keyword].([]any); ok {
		return slices.ContainsFunc(list, fits)
	}
	return fits(doc[keyword])
}

// compareKept holds that an answer is kept exactly where the case says that it
// may be, and that a kept answer is the same as the first.
func (c *configCase) compareKept(t *testing.T, r Resolver, dest string, flags Flags, first *Config) {
	t.Helper()
	again, err := r.Inspect(t.Context(), dest, flags)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(first.Fields(), again.Fields()); d != "" {
		t.Errorf("asked again:\n%s", d)
	}
	kept := again.Origin() == "from the cache"
	if c.kept != "any" && kept != (c.kept == "yes") {
		t.Errorf("kept: %v, want %s (%s)", kept, c.kept, again.Origin())
	}
}

// testCache is a cache to which files that were just written look settled.
func testCache(t testing.TB) *Cache {
	c := NewCache(t.TempDir())
	c.now = func() time.Time { return time.Now().Add(time.Minute) }
	return c
}
