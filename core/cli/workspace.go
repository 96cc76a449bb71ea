package cli

import (
	"context"
	"fmt"
	"io"
	"os"
	"path"
	"slices"
	"strings"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// maxScript bounds a script's file, in bytes.
const maxScript = 1 << 20

func workspaceCommand(reach Reach) *command.Command {
	envFile := &ufcli.StringFlag{Name: "env-file", Usage: "give scripts and git the variables in `FILE`, - for standard input; they are not kept"}
	return &command.Command{Name: "workspace", Group: groupReach, Summary: "directories with checkouts and scripts, to work in",
		Help: "A command begins in one with exec -w, once every checkout is there, comes from where it should, and the " +
			"prepare script has succeeded; otherwise nothing is started. What is in a checkout is never reset.",
		Sub: []*command.Command{
			{Name: "create", Args: "MACHINE NAME", Summary: "make a workspace and its checkouts", Min: 2, Max: 2,
				Help: `The first repository is the workspace itself, each further one a directory in it by the repository's
name, or NAME-BRANCH where one repository stands more than once. A branch that the repository does not have
is begun there. Made again with the same words, it is the same workspace, and what is missing in it is made.

Scripts run in the workspace with FLEET_WORKSPACE, FLEET_WORKSPACE_PATH, FLEET_REPO and FLEET_BRANCH: the
prepare script before each command, so that it may run many times; the cleanup script when the workspace is
removed. fleet installs no tools: what scripts need, and git, must be on the machine.`,
				Flags: append(command.JSONFlags(false),
					&ufcli.StringSliceFlag{Name: "repo", Usage: "check out `URL[#BRANCH]`; may be given more than once"},
					&ufcli.StringFlag{Name: "branch", Usage: "the `BRANCH` of repositories that name none"},
					&ufcli.StringFlag{Name: "prepare", Usage: "script `FILE` to run before each command, - for standard input"},
					&ufcli.StringFlag{Name: "cleanup", Usage: "script `FILE` to run when it is removed"},
					&ufcli.StringSliceFlag{Name: "bind", Usage: "`DIR` of the machine that belongs to it; may be given more than once"},
					&ufcli.StringFlag{Name: "root", Usage: "make it below `DIR` of the machine"},
					&ufcli.StringFlag{Name: "shell", Usage: "run the scripts by the program at `PATH`, in place of the account's shell"},
					command.DurationFlag("timeout", "end a script after `D` (default 10m)", 0), envFile),
				Run: func(ctx context.Context, c *command.Call) error {
					req, err := workspaceRequest(c)
					if err != nil {
						return err
					}
					return with(ctx, c, reach, func(_ *fanout.One, _ Target, a *agentclient.Client) error {
						w, err := a.CreateWorkspace(ctx, *req)
						if err != nil {
							return err
						}
						if c.WantsJSON() {
							return c.Print(w)
						}
						_, err = fmt.Fprintln(c.Stdout, command.Clean(w.Path))
						return err
					})
				}},
			{Name: "ls", Args: "MACHINE", Summary: "list a machine's workspaces", Min: 1, Max: 1, Flags: command.JSONFlags(true),
				Run: func(ctx context.Context, c *command.Call) error {
					return with(ctx, c, reach, func(_ *fanout.One, _ Target, a *agentclient.Client) error { return listWorkspaces(ctx, c, a) })
				}},
			{Name: "show", Args: "MACHINE NAME", Summary: "show what a workspace is made of", Min: 2, Max: 2, Flags: command.JSONFlags(false),
				Run: func(ctx context.Context, c *command.Call) error {
					if err := wire.CheckWorkspaceName(c.Arg(1)); err != nil {
						return fault.Usagef("%s", err)
					}
					return with(ctx, c, reach, func(_ *fanout.One, _ Target, a *agentclient.Client) error {
						w, err := a.Workspace(ctx, c.Arg(1))
						if err != nil {
							return err
						}
						if c.WantsJSON() {
							return c.Print(w)
						}
						return showWorkspace(c, w)
					})
				}},
			{Name: "rm", Args: "MACHINE NAME", Summary: "run the cleanup script and remove a workspace with all that is in it", Min: 2, Max: 2,
				Help:  "It is refused while a session runs in it. What is kept of ended ones goes too. A cleanup script that fails is told and stops nothing.",
				Flags: append(command.JSONFlags(false), envFile),
				Run: func(ctx context.Context, c *command.Call) error {
					if err := wire.CheckWorkspaceName(c.Arg(1)); err != nil {
						return fault.Usagef("%s", err)
					}
					env, err := envOf(c)
					if err != nil {
						return err
					}
					return with(ctx, c, reach, func(_ *fanout.One, _ Target, a *agentclient.Client) error {
						done, err := a.RemoveWorkspace(ctx, c.Arg(1), wire.WorkspaceRemoval{Env: env})
						if err != nil {
							return err
						}
						if done.Cleanup != "" && !c.WantsJSON() {
							c.Notef("fleet: the cleanup script failed: %s%s", done.Cleanup, indented(done.Tail))
						}
						if c.WantsJSON() {
							return c.Print(done)
						}
						return nil
					})
				}},
		}}
}

// indented is the end of a script's output, below what is said of it.
func indented(tail string) string {
	if tail = strings.TrimSpace(tail); tail == "" {
		return ""
	}
	return "\n  " + strings.ReplaceAll(tail, "\n", "\n  ")
}

func envOf(c *command.Call) (map[string]string, error) {
	env := map[string]string{}
	if f := c.String("env-file"); f != "" {
		return env, readEnv(c, f, env)
	}
	return env, nil
}

func workspaceRequest(c *command.Call) (*wire.WorkspaceRequest, error) {
	if err := wire.CheckWorkspaceName(c.Arg(1)); err != nil {
		return nil, fault.Usagef("%s", err)
	}
	for _, flag := range []string{"root", "shell", "prepare", "cleanup", "env-file"} {
		if c.IsSet(flag) && c.String(flag) == "" {
			return nil, fault.Usagef("--%s is empty", flag)
		}
	}
	if slices.Contains(c.StringSlice("bind"), "") {
		return nil, fault.Usagef("--bind is empty")
	}
	if c.String("prepare") == "-" && c.String("env-file") == "-" {
		return nil, fault.Usagef("--prepare - and --env-file - both want standard input")
	}
	req := &wire.WorkspaceRequest{Name: c.Arg(1), Root: c.String("root"), Binds: c.StringSlice("bind"), Shell: c.String("shell"), TimeoutS: c.Span("timeout").Seconds()}
	var err error
	if req.Env, err = envOf(c); err != nil {
		return nil, err
	}
	if req.Prepare, err = script(c, "prepare"); err != nil {
		return nil, err
	}
	if req.Cleanup, err = script(c, "cleanup"); err != nil {
		return nil, err
	}
	req.Repos, err = workspaceRepos(c.StringSlice("repo"), c.String("branch"))
	return req, err
}

// script reads the file that a flag names.
func script(c *command.Call, flag string) (string, error) {
	name := c.String(flag)
	if name == "" {
		return "", nil
	}
	r := c.Stdin
	if name != "-" || flag != "prepare" {
		f, err := os.Open(name)
		if err != nil {
			return "", fmt.Errorf("cannot read the %s script: %w", flag, err)
		}
		defer f.Close()
		r = f
	}
	b, err := io.ReadAll(io.LimitReader(r, maxScript+1))
	switch {
	case err != nil:
		return "", fmt.Errorf("cannot read the %s script: %w", flag, err)
	case len(b) > maxScript:
		return "", fault.Usagef("%s: a script has at most %d bytes", name, maxScript)
	case len(b) == 0:
		return "", fault.Usagef("%s: the script is empty", name)
	}
	return string(b), nil
}

// workspaceRepos are the repositories that URL[#BRANCH] words mean, each further
// one with its place.
func workspaceRepos(words []string, branch string) ([]wire.WorkspaceRepo, error) {
	if branch != "" && len(words) == 0 {
		return nil, fault.Usagef("--branch goes with --repo")
	}
	var repos []wire.WorkspaceRepo
	times := map[string]int{}
	for _, w := range words {
		u, b, _ := strings.Cut(w, "#")
		if b == "" {
			b = branch
		}
		if u == "" {
			return nil, fault.Usagef("--repo takes URL[#BRANCH]")
		}
		if err := (wire.WorkspaceRepo{URL: u, Branch: b}).Check(); err != nil {
			return nil, fault.Usagef("--repo: %s", err)
		}
		repos = append(repos, wire.WorkspaceRepo{URL: u, Branch: b})
		times[repoName(u)]++
	}
	taken := map[string]bool{}
	for i := range repos {
		if i == 0 {
			continue
		}
		r := &repos[i]
		r.Dir = repoName(r.URL)
		if times[r.Dir] > 1 && r.Branch != "" {
			r.Dir += "-" + strings.ReplaceAll(r.Branch, "/", "-")
		}
		if r.Dir == "" || taken[r.Dir] {
			return nil, fault.Usagef("two of the repositories would be at %q", r.Dir).WithHint("give each its own #BRANCH")
		}
		taken[r.Dir] = true
	}
	return repos, nil
}

// repoName is what git calls the directory of a clone.
func repoName(url string) string {
	url = strings.TrimRight(url, "/")
	url = strings.TrimSuffix(url, "/.git")
	if i := strings.LastIndexByte(url, ':'); i > strings.LastIndexByte(url, '/') {
		url = url[i+1:]
	}
	return strings.TrimSuffix(path.Base(url), ".git")
}

func listWorkspaces(ctx context.Context, c *command.Call, a *agentclient.Client) error {
	list, err := a.Workspaces(ctx)
	if err != nil {
		return err
	}
	switch {
	case c.Bool("json"):
		return c.Print(list)
	case c.Bool("jsonl"):
		for _, w := range list.Workspaces {
			w.Schema = wire.SchemaWorkspace
			if err := c.Print(w); err != nil {
				return err
			}
		}
		return nil
	case len(list.Workspaces) == 0:
		c.Notef("no workspaces")
		return nil
	}
	g := &grid{head: []string{"WORKSPACE", "SESSIONS", "REPOSITORY", "BRANCH", "PATH"}, flex: []int{2, 4}}
	for _, w := range list.Workspaces {
		repo, branch := "-", "-"
		if len(w.Repos) > 0 {
			repo = w.Repos[0].URL
			if len(w.Repos) > 1 {
				repo += fmt.Sprintf(" +%d", len(w.Repos)-1)
			}
			if b := w.Repos[0].Branch; b != "" {
				branch = b
			}
		}
		g.add(words(w.Name, fmt.Sprint(w.Sessions), repo, branch, w.Path)...)
	}
	return g.write(screenOf(c))
}

func showWorkspace(c *command.Call, w *wire.Workspace) error {
	yes := map[bool]string{true: "yes", false: "no"}
	rows := [][2]string{{"workspace", w.Name}, {"path", w.Path}}
	for _, r := range w.Repos {
		text := r.URL
		if r.Branch != "" {
			text += " #" + r.Branch
		}
		if r.Dir != "" {
			text += " at " + r.Dir
		}
		rows = append(rows, [2]string{"repository", text})
	}
	for _, b := range w.Binds {
		rows = append(rows, [2]string{"bound", b})
	}
	rows = append(rows, [2]string{"shell", w.Shell}, [2]string{"prepare", yes[w.Prepare]}, [2]string{"cleanup", yes[w.Cleanup]},
		[2]string{"sessions", fmt.Sprint(w.Sessions)}, [2]string{"created", w.CreatedAt.Local().Format("2006-01-02 15:04:05")})
	if w.Removing {
		rows = append(rows, [2]string{"removing", "begun, and not over: fleet workspace rm ends it"})
	}
	for _, r := range rows {
		if _, err := fmt.Fprintf(c.Stdout, "%-12s %s\n", r[0], command.Clean(r[1])); err != nil {
			return err
		}
	}
	return nil
}
