package workspace

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"fleet.example/fleet/core/wire"
)

// checkRepo refuses what is no repository that a workspace may have.
func checkRepo(p wire.WorkspaceRepo) error {
	err := p.Check()
	switch {
	case errors.Is(err, wire.ErrRepoPassword):
		return refuse(wire.CodeBadRequest, "%s", err).withHint("a credential helper, or a key, keeps it out of them")
	case err != nil:
		return refuse(wire.CodeBadRequest, "%s", err)
	}
	return nil
}

// materialize makes the checkouts that are missing, and looks at the origin of
// those that are there. The caller holds the workspace.
func (m *Manager) materialize(ctx context.Context, r *record, env map[string]string) error {
	if len(r.Repos) == 0 {
		return nil
	}
	g, err := m.git(r, env)
	if err != nil {
		return err
	}
	for i, p := range r.Repos {
		if err := g.checkout(ctx, p, filepath.Join(r.Path, p.Dir)); err != nil {
			return err
		}
		if i > 0 {
			hide(r.Path, p.Dir)
		}
	}
	return nil
}

// git runs git for one workspace.
type git struct {
	program string
	env     []string
	umask   int
	r       *record
}

func (m *Manager) git(r *record, env map[string]string) (*git, error) {
	all := m.environ(r, env)
	program, err := lookPath("git", all)
	if err != nil {
		return nil, refuse(wire.CodeToolMissing, "git is not installed on the machine: %v", err).withHint("fleet installs no tools; install git there")
	}
	all = append(all, "GIT_TERMINAL_PROMPT=0")
	if variable(all, "GIT_SSH_COMMAND") == "" && variable(all, "GIT_SSH") == "" {
		all = append(all, "GIT_SSH_COMMAND=ssh -oBatchMode=yes") // nobody is there to answer
	}
	return &git{program, all, m.Umask, r}, nil
}

func (g *git) run(ctx context.Context, dir string, args ...string) (out, tail string, err error) {
	return run(ctx, command{argv: append([]string{g.program}, args...), env: g.env, dir: dir, umask: g.umask, timeout: checkoutTimeout, answers: true})
}

// checkout sees to one checkout.
func (g *git) checkout(ctx context.Context, p wire.WorkspaceRepo, at string) error {
	switch _, err := os.Lstat(filepath.Join(at, ".git")); {
	case err == nil:
		return g.sameOrigin(ctx, p, at)
	case !errors.Is(err, fs.ErrNotExist):
		return refuse(wire.CodeWorkspaceFailed, "cannot look at the checkout: %v", err)
	}
	if entries, err := os.ReadDir(at); err == nil && len(entries) > 0 {
		return refuse(wire.CodeWorkspaceFailed, "%s holds files and is no checkout of %s", at, p.URL)
	}
	return g.clone(ctx, p, at)
}

func (g *git) sameOrigin(ctx context.Context, p wire.WorkspaceRepo, at string) error {
	origin, tail, err := g.run(ctx, at, "config", "--get", "remote.origin.url")
	origin = strings.TrimSuffix(origin, "\n")
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil && tail != "":
		return refuse(wire.CodeWorkspaceFailed, "%s is no checkout that git can use: %s", at, strings.TrimSpace(tail))
	case err != nil || origin != p.URL:
		return refuse(wire.CodeConflict, "%s is a checkout of %q, and not of %s", at, origin, p.URL)
	}
	return nil
}

// clone makes a checkout beside its place, and renames it there once it is
// whole.
func (g *git) clone(ctx context.Context, p wire.WorkspaceRepo, at string) (err error) {
	beside := filepath.Dir(g.r.Path)
	sweep(beside, g.r.Name)
	tmp, err := os.MkdirTemp(beside, clonePrefix(g.r.Name))
	if err != nil {
		return refuse(wire.CodeWorkspaceFailed, "cannot make a checkout: %v", err)
	}
	defer func() { err = errors.Join(err, removeAll(tmp)) }()
	failed := func(err error, tail string) error {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return refuse(wire.CodeWorkspaceFailed, "cannot clone %s: %v%s", p.URL, err, quoted(tail))
	}
	whole := filepath.Join(tmp, "checkout")
	if _, tail, err := g.run(ctx, tmp, "clone", "--quiet", "--", p.URL, whole); err != nil {
		return failed(err, tail)
	}
	if p.Branch != "" {
		if tail, err := g.branch(ctx, p.Branch, whole); err != nil {
			return failed(err, tail)
		}
	}
	if at == g.r.Path {
		if err := os.Chmod(whole, 0o700); err != nil { // as the directory that it replaces
			return failed(err, "")
		}
	}
	// os.Rename does not take the place of a directory, not even of an empty one.
	if err := syscall.Rename(whole, at); err != nil {
		return refuse(wire.CodeWorkspaceFailed, "cannot put the checkout of %s in its place: %v", p.URL, err)
	}
	return nil
}

// branch has a fresh clone on the branch: the repository's, or a new one.
func (g *git) branch(ctx context.Context, name, at string) (tail string, err error) {
	if head, _, err := g.run(ctx, at, "symbolic-ref", "--short", "HEAD"); err == nil && strings.TrimSpace(head) == name {
		return "", nil
	}
	args := []string{"checkout", "--quiet", "-b", name}
	if _, _, err := g.run(ctx, at, "rev-parse", "--verify", "--quiet", "refs/remotes/origin/"+name); err == nil {
		args = append(args, "--track", "refs/remotes/origin/"+name)
	}
	_, tail, err = g.run(ctx, at, args...)
	return tail, err
}

func clonePrefix(name string) string { return "." + name + ".clone-" }

// abandoned is how old a clone must be to be nobody's.
const abandoned = checkoutTimeout + time.Hour

// sweep removes what a crash left of clones.
func sweep(dir, name string) {
	left, err := filepath.Glob(filepath.Join(dir, clonePrefix(name)+"*"))
	if err != nil {
		return
	}
	for _, p := range left {
		if st, err := os.Lstat(p); err == nil && time.Since(st.ModTime()) > abandoned {
			removeAll(p)
		}
	}
}

// hide keeps a further checkout out of what git calls untracked in the first
// one. That it cannot be is no reason to fail: it is for the eye alone.
func hide(root, dir string) {
	path := filepath.Join(root, ".git", "info", "exclude")
	line := "/" + dir + "/"
	b, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return
	}
	for have := range strings.Lines(string(b)) {
		if strings.TrimSpace(have) == line {
			return
		}
	}
	if len(b) > 0 && b[len(b)-1] != '\n' {
		line = "\n" + line
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_APPEND|os.O_CREATE, 0o666)
	if err != nil {
		return
	}
	defer f.Close()
	fmt.Fprintln(f, line)
}
