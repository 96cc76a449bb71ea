package clitest

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"
)

// binaries is the directory of the programs under test: fleet and planed as
// they are, and a fleet-host that says how it was called.
var binaries string

const sayingHost = `#!/bin/sh
echo "fleet-host: $*"
exit 42
`

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "clitest-")
	if err != nil {
		panic(err)
	}
	binaries = dir
	cmd := exec.Command("go", "build", "-o", dir+"/", "-ldflags", "-X main.version=1.2.3", "fleet.example/fleet/cmd/fleet", "fleet.example/fleet/cmd/fleet-front", "fleet.example/fleet/cmd/planed")
	if out, err := cmd.CombinedOutput(); err != nil {
		panic(string(out))
	}
	if err := os.WriteFile(bin("fleet-host"), []byte(sayingHost), 0o755); err != nil {
		panic(err)
	}
	code := m.Run()
	os.RemoveAll(dir)
	os.Exit(code)
}

func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 "testdata/script",
		RequireUniqueNames:  true,
		RequireExplicitExec: true,
		Setup: func(e *testscript.Env) error {
			e.Setenv("PATH", binaries+string(os.PathListSeparator)+e.Getenv("PATH"))
			e.Setenv("HOME", filepath.Join(e.WorkDir, "home"))
			e.Setenv("BIN", binaries)
			e.Setenv("TERM", "xterm")
			e.Setenv("TZ", "UTC")
			return os.MkdirAll(filepath.Join(e.WorkDir, "home"), 0o700)
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"plane":   cmdPlane,
			"machine": cmdMachine,
			"person":  cmdPerson,
			"link":    cmdLink,
			"check":   cmdCheck,
			"mode":    cmdMode,
			"lines":   cmdLines,
			"width":   cmdWidth,
		},
	})
}

// within bounds what a script's command may take.
const within = 30 * time.Second

func do(ts *testscript.TestScript, neg bool, f func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), within)
	defer cancel()
	switch err := f(ctx); {
	case neg && err == nil:
		ts.Fatalf("it went well, against expectation")
	case !neg:
		ts.Check(err)
	}
}

// planes are the running scripts' planes: scripts run side by side.
var planes sync.Map // *testscript.TestScript to *plane

func current(ts *testscript.TestScript) *plane {
	p, ok := planes.Load(ts)
	if !ok {
		ts.Fatalf("no plane; the script has to start one first")
	}
	return p.(*plane)
}

// cmdPlane: plane new | stop | start | quick, the last starts one that soon calls
// machines absent. A new one has dana logged in; its URL is
// $PLANE and its data directory $PLANE_DIR.
func cmdPlane(ts *testscript.TestScript, neg bool, args []string) {
	do(ts, neg, func(ctx context.Context) error {
		switch strings.Join(args, " ") {
		case "new":
			p, err := newPlane(ctx, ts.MkAbs("plane"))
			if err != nil {
				return err
			}
			planes.Store(ts, p)
			ts.Defer(func() { p.stop(); planes.Delete(ts) })
			ts.Setenv("PLANE", p.url)
			ts.Setenv("PLANE_DIR", p.dir)
			return p.save(ctx, ts.Getenv)
		case "stop":
			current(ts).stop()
			return nil
		case "start":
			return current(ts).start(ctx, steady)
		case "quick":
			return current(ts).start(ctx, quick)
		}
		ts.Fatalf("usage: plane new|stop|start|quick")
		return nil
	})
}

// cmdMachine: machine NAME [K=V…] admits a machine; its id is then $NAME.
func cmdMachine(ts *testscript.TestScript, neg bool, args []string) {
	labels := map[string]string{}
	for _, kv := range args[1:] {
		k, v, _ := strings.Cut(kv, "=")
		labels[k] = v
	}
	do(ts, neg, func(ctx context.Context) error {
		id, err := current(ts).admit(ctx, args[0], labels)
		ts.Setenv(strings.ReplaceAll(args[0], "-", "_"), id)
		return err
	})
}

// cmdPerson: person NAME ROLE has a person join; the session is in NAME.session.
func cmdPerson(ts *testscript.TestScript, neg bool, args []string) {
	do(ts, neg, func(ctx context.Context) error {
		session, err := current(ts).join(ctx, args[0], args[1])
		if err != nil {
			return err
		}
		return os.WriteFile(ts.MkAbs(args[0]+".session"), []byte(session.Reveal()+"\n"), 0o600)
	})
}

// cmdLink: link NAME HOST.
func cmdLink(ts *testscript.TestScript, neg bool, args []string) {
	do(ts, neg, func(ctx context.Context) error { return current(ts).link(ctx, ts.Getenv, args[0], args[1]) })
}

// cmdCheck: check NAME FILE sends the file as the machine's check.
func cmdCheck(ts *testscript.TestScript, neg bool, args []string) {
	do(ts, neg, func(ctx context.Context) error { return current(ts).check(ctx, args[0], ts.ReadFile(args[1])) })
}

// cmdMode: mode FILE 0600.
func cmdMode(ts *testscript.TestScript, neg bool, args []string) {
	st, err := os.Stat(ts.MkAbs(args[0]))
	ts.Check(err)
	if got := fmt.Sprintf("%04o", st.Mode().Perm()); (got == args[1]) == neg {
		ts.Fatalf("%s has mode %s", args[0], got)
	}
}

// cmdLines: lines FILE N.
func cmdLines(ts *testscript.TestScript, neg bool, args []string) {
	n := strings.Count(ts.ReadFile(args[0]), "\n")
	if want := args[1]; (strconv.Itoa(n) == want) == neg {
		ts.Fatalf("%s has %d lines", args[0], n)
	}
}

// cmdWidth: width FILE N: no line is longer than N characters.
func cmdWidth(ts *testscript.TestScript, neg bool, args []string) {
	limit, err := strconv.Atoi(args[1])
	ts.Check(err)
	for line := range strings.Lines(ts.ReadFile(args[0])) {
		if n := len([]rune(strings.TrimSuffix(line, "\n"))); n > limit {
			ts.Fatalf("%d characters: %s", n, line)
		}
	}
}
