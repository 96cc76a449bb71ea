package workspace

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/core/wire"
)

type world struct {
	*Manager
	t    *testing.T
	dir  string
	repo string // a bare repository with branches main and other
}

func newWorld(t *testing.T) *world {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("there is no git here")
	}
	dir := t.TempDir()
	home := filepath.Join(dir, "home")
	if err := os.Mkdir(home, 0o700); err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, dir: dir, repo: filepath.Join(dir, "repo.git")}
	w.Manager = &Manager{Dir: filepath.Join(dir, "workspaces"), Account: account.Account{Name: "dana", UID: os.Getuid(), Home: home, Shell: "/bin/sh"},
		Getenv: func(k string) string {
			if k == "PATH" {
				return os.Getenv("PATH")
			}
			return ""
		}, Umask: 0o027, Log: hclog.NewNullLogger()}
	w.sh(`git init -q --bare -b main repo.git && git init -q -b main seed && cd seed && echo one >file && git add file &&
		git commit -q -m one && git push -q ../repo.git main && git checkout -q -b other && echo two >file && git commit -q -a -m two && git push -q ../repo.git other`)
	return w
}

func (w *world) sh(script string) string {
	w.t.Helper()
	c := exec.Command("/bin/sh", "-c", script)
	c.Dir = w.dir
	c.Env = append(os.Environ(), "HOME="+w.dir, "GIT_CONFIG_NOSYSTEM=1", "GIT_AUTHOR_NAME=d", "GIT_AUTHOR_EMAIL=d@x", "GIT_COMMITTER_NAME=d", "GIT_COMMITTER_EMAIL=d@x")
	b, err := c.CombinedOutput()
	if err != nil {
		w.t.Fatalf("%s: %v: %s", script, err, b)
	}
	return strings.TrimSpace(string(b))
}

func (w *world) create(req wire.WorkspaceRequest) *wire.Workspace {
	w.t.Helper()
	got, err := w.Create(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return got
}

func (w *world) enter(name string) error {
	w.t.Helper()
	_, leave, err := w.Enter(w.t.Context(), name, nil)
	if err == nil {
		leave()
	}
	return err
}

func (w *world) remove(name string) (*wire.WorkspaceRemoved, error) {
	return w.Remove(w.t.Context(), name, nil, func() (int, error) { return 0, nil }, func() error { return nil })
}

func code(err error) string {
	var e *Error
	if errors.As(err, &e) {
		return e.Code
	}
	return ""
}

func TestCheckoutsStandWhereTheyShould(t *testing.T) {
	w := newWorld(t)
	got := w.create(wire.WorkspaceRequest{Name: "task", Repos: []wire.WorkspaceRepo{
		{URL: w.repo}, {URL: w.repo, Branch: "other", Dir: "repo-other"}, {URL: w.repo, Branch: "fresh", Dir: "repo-fresh"}}})
	if got.Path != filepath.Join(w.Dir, "task") {
		t.Error(got.Path)
	}
	if s := w.sh("cd " + got.Path + " && cat file repo-other/file repo-fresh/file && git branch --show-current && git -C repo-other branch --show-current && git -C repo-fresh branch --show-current && git status --short && stat -c %a file"); s != "one\ntwo\none\nmain\nother\nfresh\n640" {
		t.Errorf("%q", s)
	}
	if left := w.sh("ls -A workspaces"); left != ".records\ntask" {
		t.Error(left)
	}
}

func TestWorkIsNeverTouched(t *testing.T) {
	w := newWorld(t)
	req := wire.WorkspaceRequest{Name: "task", Repos: []wire.WorkspaceRepo{{URL: w.repo, Branch: "mine"}}}
	path := w.create(req).Path
	w.sh("cd " + path + " && echo local >>file && git commit -qam local && echo untracked >new && echo more >>file && git checkout -q -b elsewhere")
	state := func() string {
		return w.sh("cd " + path + " && git rev-parse HEAD && git branch --show-current && git status --short && cat file new")
	}
	before := state()
	w.create(req)
	if err := w.enter("task"); err != nil {
		t.Error(err)
	}
	if after := state(); after != before {
		t.Errorf("%s\nbecame\n%s", before, after)
	}
}

func TestNothingBeginsInAWorkspaceThatIsNotWhatItShouldBe(t *testing.T) {
	w := newWorld(t)
	req := wire.WorkspaceRequest{Name: "task", Repos: []wire.WorkspaceRepo{{URL: w.repo}}, Prepare: "echo ran >>$FLEET_WORKSPACE_PATH/../ran"}
	path := w.create(req).Path
	for name, c := range map[string]struct{ damage, mend, code, says string }{
		"another origin": {"git -C " + path + " remote set-url origin https://elsewhere.example/x", "git -C " + path + " remote set-url origin " + w.repo, wire.CodeConflict, "elsewhere"},
		"no origin":      {"git -C " + path + " remote rename origin o", "git -C " + path + " remote rename o origin", wire.CodeConflict, "not of"},
		"no checkout":    {"mv " + path + "/.git aside", "mv aside " + path + "/.git", wire.CodeWorkspaceFailed, "is no checkout"},
		"broken":         {"mv " + path + "/.git/HEAD aside", "mv aside " + path + "/.git/HEAD", "", "checkout"},
		"no directory":   {"mv " + path + " aside", "mv aside " + path, wire.CodeWorkspaceFailed, "not there"},
	} {
		w.sh(c.damage)
		err := w.enter("task")
		if err == nil || c.code != "" && code(err) != c.code || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v", name, err)
		}
		w.sh(c.mend)
	}
	if _, err := os.Stat(filepath.Join(w.Dir, "ran")); err == nil {
		t.Error("the prepare script ran")
	}
	if err := w.enter("task"); err != nil {
		t.Error(err)
	}
	if err := w.enter("none"); code(err) != wire.CodeWorkspaceMissing {
		t.Error(err)
	}
}

func TestPrepareRunsBeforeEachSessionWithItsEnvironment(t *testing.T) {
	w := newWorld(t)
	w.create(wire.WorkspaceRequest{Name: "task", Repos: []wire.WorkspaceRepo{{URL: w.repo, Branch: "other"}},
		Prepare: `echo "$FLEET_WORKSPACE|$FLEET_BRANCH|$FLEET_REPO|$SECRET|$(pwd)|$(umask)" >>ran; tr '\0' ' ' </proc/$$/cmdline >words`})
	for range 2 {
		_, leave, err := w.Enter(t.Context(), "task", map[string]string{"SECRET": "s3cret"})
		if err != nil {
			t.Fatal(err)
		}
		leave()
	}
	path := filepath.Join(w.Dir, "task")
	line := "task|other|" + w.repo + "|s3cret|" + path + "|0027"
	if s := w.sh("cat workspaces/task/ran"); s != line+"\n"+line {
		t.Errorf("%q", s)
	}
	if s := w.sh("cat workspaces/task/words"); strings.Contains(s, "s3cret") || !strings.HasPrefix(s, "/bin/sh /") {
		t.Errorf("%q", s)
	}
	if s := w.sh("cd workspaces && rm task/ran && grep -r s3cret . || true; ls -A .records"); s != "task.json" {
		t.Errorf("%q", s)
	}
}

func TestAPrepareScriptThatFailsStartsNothing(t *testing.T) {
	w := newWorld(t)
	w.create(wire.WorkspaceRequest{Name: "bad", Prepare: "yes | head -c 100000; echo the reason >&2; exit 3"})
	err := w.enter("bad")
	if code(err) != wire.CodeWorkspaceFailed || !strings.Contains(err.Error(), "exit status 3") || !strings.HasSuffix(err.Error(), "the reason") || len(err.Error()) > 2*maxTail {
		t.Errorf("%v", err)
	}
	w.create(wire.WorkspaceRequest{Name: "slow", Prepare: "echo waiting; sleep 1000 & sleep 1000", TimeoutS: 3})
	if err := w.enter("slow"); code(err) != wire.CodeWorkspaceFailed || !strings.Contains(err.Error(), "took too long") || !strings.Contains(err.Error(), "waiting") {
		t.Errorf("%v", err)
	}
	// What a script leaves behind is no reason to wait for it, nor to fail.
	w.create(wire.WorkspaceRequest{Name: "behind", Prepare: "sleep 1000 & echo $! >pid"})
	if err := w.enter("behind"); err != nil {
		t.Error(err)
	}
	w.sh("kill $(cat workspaces/behind/pid)")
	ctx, cancel := context.WithCancel(t.Context())
	w.create(wire.WorkspaceRequest{Name: "left", Prepare: "touch begun; sleep 1000"})
	go func() {
		for ctx.Err() == nil {
			if _, err := os.Stat(filepath.Join(w.Dir, "left", "begun")); err == nil {
				cancel()
				return
			}
			time.Sleep(5 * time.Millisecond)
		}
	}()
	if _, _, err := w.Enter(ctx, "left", nil); err == nil {
		t.Error("a client that left had its session begun")
	}
}

func TestCreateIsWholeOrNothing(t *testing.T) {
	w := newWorld(t)
	for name, req := range map[string]wire.WorkspaceRequest{
		"no repository": {Name: "task", Repos: []wire.WorkspaceRepo{{URL: w.dir + "/none.git"}}},
		"second fails":  {Name: "task", Repos: []wire.WorkspaceRepo{{URL: w.repo}, {URL: w.dir + "/none.git", Dir: "none"}}},
		"bad branch":    {Name: "task", Repos: []wire.WorkspaceRepo{{URL: w.repo, Branch: "other/"}}},
	} {
		if _, err := w.Create(t.Context(), req); err == nil {
			t.Errorf("%s: it was made", name)
		}
		if left := w.sh("ls -A workspaces workspaces/.records 2>/dev/null || true"); left != "" && left != "workspaces:\n.records\n\nworkspaces/.records:" {
			t.Errorf("%s: left %v", name, left)
		}
	}
	// What stands in the place is nobody's to take over, and stays.
	w.sh("mkdir -p elsewhere/task && echo mine >elsewhere/task/file")
	if _, err := w.Create(t.Context(), wire.WorkspaceRequest{Name: "task", Root: w.dir + "/elsewhere"}); code(err) != wire.CodeExists {
		t.Error(err)
	}
	if s := w.sh("cat elsewhere/task/file"); s != "mine" {
		t.Error(s)
	}
	first := wire.WorkspaceRequest{Name: "task", Root: w.dir + "/roots/a"}
	w.create(first)
	w.create(first)
	first.Prepare = "true"
	if _, err := w.Create(t.Context(), first); code(err) != wire.CodeExists {
		t.Errorf("other words: %v", err)
	}
	// Without git, what needs it is refused in words before anything runs.
	w.Getenv = func(k string) string {
		if k == "PATH" {
			return w.dir
		}
		return ""
	}
	if _, err := w.Create(t.Context(), wire.WorkspaceRequest{Name: "toolless", Repos: []wire.WorkspaceRepo{{URL: w.repo}}, Prepare: "touch " + w.dir + "/ran"}); code(err) != wire.CodeToolMissing || !strings.Contains(err.Error(), "git") {
		t.Error(err)
	}
}

func TestOnlyRemovalRemoves(t *testing.T) {
	w := newWorld(t)
	w.create(wire.WorkspaceRequest{Name: "task", Repos: []wire.WorkspaceRepo{{URL: w.repo}}, Cleanup: "echo $FLEET_WORKSPACE >>" + w.dir + "/cleaned; echo cannot; exit 4"})
	w.sh("cd workspaces/task && mkdir -p closed/deep && touch closed/deep/file && chmod 0 closed/deep && chmod 500 closed")
	_, leave, err := w.Enter(t.Context(), "task", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.remove("task"); code(err) != wire.CodeWorkspaceBusy {
		t.Errorf("removed under a session on its way: %v", err)
	}
	leave()
	leave()
	if _, err := w.Remove(t.Context(), "task", nil, func() (int, error) { return 1, nil }, nil); code(err) != wire.CodeWorkspaceBusy {
		t.Errorf("removed under a session: %v", err)
	}
	// Ended in the middle, it goes on where it was, without a second cleanup.
	stopped := errors.New("stopped")
	if _, err := w.Remove(t.Context(), "task", nil, func() (int, error) { return 0, nil }, func() error { return stopped }); !errors.Is(err, stopped) {
		t.Error(err)
	}
	if err := w.enter("task"); code(err) != wire.CodeConflict && code(err) != wire.CodeWorkspaceFailed {
		t.Errorf("entered while it is removed: %v", err)
	}
	done, err := w.remove("task")
	if err != nil {
		t.Fatal(err)
	}
	if s := w.sh("cat cleaned; ls -A workspaces workspaces/.records"); s != "task\nworkspaces:\n.records\n\nworkspaces/.records:" {
		t.Errorf("%q", s)
	}
	if done.Name != "task" {
		t.Errorf("%+v", done)
	}
	if _, err := w.remove("task"); code(err) != wire.CodeWorkspaceMissing {
		t.Error(err)
	}
	w.create(wire.WorkspaceRequest{Name: "loud", Cleanup: "echo cannot; exit 4"})
	if done, err := w.remove("loud"); err != nil || done.Cleanup != "exit status 4" || done.Tail != "cannot\n" {
		t.Errorf("%+v, %v", done, err)
	}
	w.create(wire.WorkspaceRequest{Name: "stuck", Cleanup: "sleep 1000", TimeoutS: 0.2})
	if done, err := w.remove("stuck"); err != nil || !strings.Contains(done.Cleanup, "too long") {
		t.Errorf("%+v, %v", done, err)
	}
}

func TestOneSessionAtATimePrepares(t *testing.T) {
	w := newWorld(t)
	w.create(wire.WorkspaceRequest{Name: "task", Prepare: "mkdir alone && rmdir alone && echo x >>ran"})
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if err := w.enter("task"); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if s := w.sh("wc -l <workspaces/task/ran"); s != "6" {
		t.Error(s)
	}
	if len(w.held) != 0 {
		t.Errorf("%v", w.held)
	}
}

func TestWordsThatGitOrThePathWouldTakeForOthersAreRefused(t *testing.T) {
	w := newWorld(t)
	repo := func(url, branch, dir string) wire.WorkspaceRequest {
		return wire.WorkspaceRequest{Name: "x", Repos: []wire.WorkspaceRepo{{URL: w.repo}, {URL: url, Branch: branch, Dir: dir}}}
	}
	for name, req := range map[string]wire.WorkspaceRequest{
		"option":        repo("--upload-pack=touch x", "", "d"),
		"ext":           repo("ext::sh -c 'touch x'", "", "d"),
		"password":      repo("https://dana:s3cret@git.example/x", "", "d"),
		"branch option": repo(w.repo, "--orphan", "d"),
		"branch space":  repo(w.repo, "a b", "d"),
		"branch range":  repo(w.repo, "a..b", "d"),
		"up":            repo(w.repo, "", ".."),
		"below":         repo(w.repo, "", "a/b"),
		"git":           repo(w.repo, "", ".git"),
		"no place":      repo(w.repo, "", ""),
		"name":          {Name: "../x"},
		"dot":           {Name: ".records"},
		"empty":         {},
		"root":          {Name: "x", Root: "relative"},
		"bind":          {Name: "x", Binds: []string{"relative"}},
		"shell":         {Name: "x", Shell: "sh"},
		"zero":          {Name: "x", Root: "/a\x00b"},
		"time":          {Name: "x", TimeoutS: -1},
		"first's place": {Name: "x", Repos: []wire.WorkspaceRepo{{URL: w.repo, Dir: "d"}}},
		"twice":         {Name: "x", Repos: []wire.WorkspaceRepo{{URL: w.repo}, {URL: w.repo, Dir: "d"}, {URL: w.repo, Dir: "d"}}},
	} {
		_, err := w.Create(t.Context(), req)
		if code(err) != wire.CodeBadRequest || strings.Contains(err.Error(), "s3cret") {
			t.Errorf("%s: %v", name, err)
		}
	}
	if s := w.sh("ls -A; ls -A workspaces 2>/dev/null || true"); strings.Contains(s, "x") {
		t.Error(s)
	}
}

func FuzzRecord(f *testing.F) {
	f.Add([]byte(`{"name":"task","path":"/w/task","repos":[{"url":"u"}]}`))
	f.Add([]byte(`{"name":"other","path":"w"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m := &Manager{Dir: t.TempDir(), Log: hclog.NewNullLogger()}
		if err := os.MkdirAll(filepath.Join(m.Dir, recordsDir), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(m.recordPath("task"), b, 0o600); err != nil {
			t.Fatal(err)
		}
		if r, err := m.load("task"); err == nil && (r.Name != "task" || !filepath.IsAbs(r.Path)) {
			t.Errorf("%+v", r)
		}
		if _, err := m.List(); err != nil {
			t.Error(err)
		}
	})
}
