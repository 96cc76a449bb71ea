package plain

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/plugins/internal/world"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
)

// crontab is a stand-in that keeps one file, with the real one's words.
const crontab = `tab=$(dirname "$0")/../state/crontab
case $1 in
-l) [ -f "$tab" ] || { echo "no crontab for $USER" >&2; exit 1; }; cat "$tab" ;;
-r) rm "$tab" ;;
-) cat >"$tab" ;;
esac
`

func newWorld(t testing.TB, data string) *world.World {
	w := world.New(t, data)
	w.Bin("crontab", crontab)
	t.Cleanup(func() { // what a failed test leaves running
		if _, err := os.Stat(scriptPath(w.Spec())); err == nil {
			_ = Manager{}.Stop(context.Background(), w.Host, w.Spec())
		}
	})
	return w
}

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

func TestConforms(t *testing.T) { // R29, R34
	for _, data := range []string{"plain", `it's "odd" $HOME \ dir;é`} {
		w := newWorld(t, data)
		for _, c := range conformance.Service(within(t, 2*time.Minute), Manager{}, w.Env(Describe("1"))) {
			t.Run(data+"/"+c.Name, func(t *testing.T) { c.Report(t) })
		}
		w.Ran()
	}
}

func start(t *testing.T, w *world.World) sdk.Status {
	t.Helper()
	ctx := within(t, time.Minute)
	r, err := Manager{}.Render(ctx, w.Host.F, w.Spec())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(r.Files); err != nil {
		t.Fatal(err)
	}
	if err := (Manager{}).Start(ctx, w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	return until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateRunning })
}

func until(t *testing.T, w *world.World, ok func(sdk.Status) bool) sdk.Status {
	t.Helper()
	var st sdk.Status
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		var err error
		if st, err = (Manager{}).Status(within(t, 10*time.Second), w.Host, w.Spec()); err != nil {
			t.Fatal(err)
		}
		if ok(st) {
			return st
		}
	}
	t.Fatalf("status stays %+v", st)
	return st
}

func TestKilledAgentComesBack(t *testing.T) { // R29
	w := newWorld(t, "plain")
	st := start(t, w)
	if err := syscall.Kill(st.PID, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	back := until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateRunning && s.PID != st.PID })
	if back.LastExit == nil || *back.LastExit != 137 {
		t.Errorf("last exit %v, want 137", back.LastExit)
	}
}

func TestAgentThatEndsWithZeroStaysDown(t *testing.T) { // design §8: exit 0 means do not respawn
	w := newWorld(t, "plain")
	st := start(t, w)
	if err := syscall.Kill(st.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	down := until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateStopped })
	if down.LastExit == nil || *down.LastExit != 0 {
		t.Errorf("%+v", down)
	}
	if runs, _ := os.ReadFile(filepath.Join(w.Data, "runs")); strings.Count(string(runs), "\n") != 1 {
		t.Errorf("it ran again: %q", runs)
	}
}

func TestOrphanedAgentIsAdoptedNotDoubled(t *testing.T) {
	w := newWorld(t, "plain")
	st := start(t, w)
	b, err := os.ReadFile(filepath.Join(w.Data, "service", "fleet-agent.pid"))
	if err != nil {
		t.Fatal(err)
	}
	super, _ := strconv.Atoi(strings.Fields(string(b))[0])
	if err := syscall.Kill(super, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := (Manager{}).Start(within(t, 20*time.Second), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	if again := until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateRunning }); again.PID != st.PID {
		t.Errorf("process %d became %d", st.PID, again.PID)
	}
	if err := (Manager{}).Stop(within(t, 20*time.Second), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateStopped })
	if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", st.PID)); err == nil && !strings.Contains(string(b), ") Z ") {
		t.Errorf("the orphan survived the stop: %s", b)
	}
}

func TestReusedProcessNumberIsNotTakenForTheAgent(t *testing.T) { // faults: a reused PID was taken for the old process
	w := newWorld(t, "plain")
	start(t, w)
	if err := (Manager{}).Stop(within(t, 20*time.Second), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	other := exec.Command("sleep", "60")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = other.Process.Kill(); _ = other.Wait() }()
	// Its number stands in the files, with another's start.
	line := strconv.Itoa(other.Process.Pid) + " 00000000-0000-0000-0000-000000000000:12345\n"
	for _, n := range []string{"pid", "child"} {
		if err := os.WriteFile(filepath.Join(w.Data, "service", "fleet-agent."+n), []byte(line), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if st := until(t, w, func(sdk.Status) bool { return true }); st.State == sdk.StateRunning || st.PID != 0 {
		t.Errorf("%+v", st)
	}
	if err := (Manager{}).Stop(within(t, 20*time.Second), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	if err := other.Process.Signal(syscall.Signal(0)); err != nil {
		t.Error("stop ended a process that is not the agent")
	}
	if st := start(t, w); st.PID == other.Process.Pid {
		t.Error("start took it for the agent")
	}
}

func TestManyStartsAtOnceStartOne(t *testing.T) {
	w := newWorld(t, "plain")
	ctx := within(t, time.Minute)
	r, err := Manager{}.Render(ctx, w.Host.F, w.Spec())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(r.Files); err != nil {
		t.Fatal(err)
	}
	errs := make(chan error, 10)
	for range cap(errs) {
		go func() { errs <- Manager{}.Start(ctx, w.Host, w.Spec()) }()
	}
	for range cap(errs) {
		if err := <-errs; err != nil {
			t.Error(err)
		}
	}
	until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateRunning })
	if runs, _ := os.ReadFile(filepath.Join(w.Data, "runs")); strings.Count(string(runs), "\n") != 1 {
		t.Errorf("it ran %d times", strings.Count(string(runs), "\n"))
	}
}

func TestStopEndsOnlyTheMainProcess(t *testing.T) { // R34
	w := newWorld(t, "plain")
	w.Program(filepath.Join(w.Data, "agentd"), "trap 'exit 0' TERM\nsetsid sleep 300 </dev/null >/dev/null 2>&1 &\necho $! >\"$(dirname \"$0\")/session\"\nwhile :; do sleep 0.1; done\n")
	start(t, w)
	b, err := os.ReadFile(filepath.Join(w.Data, "session"))
	if err != nil {
		t.Fatal(err)
	}
	session, _ := strconv.Atoi(strings.TrimSpace(string(b)))
	defer syscall.Kill(session, syscall.SIGKILL)
	if err := (Manager{}).Stop(within(t, 20*time.Second), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	if err := syscall.Kill(session, 0); err != nil {
		t.Error("the session's process ended with the agent")
	}
}

func TestStopEndsAnAgentThatIgnoresIt(t *testing.T) {
	w := newWorld(t, "plain")
	w.Program(filepath.Join(w.Data, "agentd"), "trap '' TERM\nwhile :; do sleep 0.1; done\n")
	start(t, w)
	began := time.Now()
	if err := (Manager{}).Stop(within(t, 30*time.Second), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	if took := time.Since(began); took < 4*time.Second || took > 20*time.Second {
		t.Errorf("it took %v, the time-out is 5 s", took)
	}
}

func TestCrontabKeepsOtherLinesToTheByte(t *testing.T) {
	const others = "# my own\nMAILTO=me\n\n*/5 * * * * echo 100\\% done\n@reboot /bin/other # fleet:beef\n"
	w := newWorld(t, "plain")
	tab := filepath.Join(w.Dir, "state", "crontab")
	if err := os.WriteFile(tab, []byte(others), 0o600); err != nil {
		t.Fatal(err)
	}
	ctx, s := within(t, time.Minute), w.Spec()
	for range 2 {
		if err := (Manager{}).Enable(ctx, w.Host, s); err != nil {
			t.Fatal(err)
		}
	}
	line, err := cronLine(s)
	if err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(tab); string(b) != others+line+"\n" {
		t.Errorf("%q", b)
	}
	if err := (Manager{}).Disable(ctx, w.Host, s); err != nil {
		t.Fatal(err)
	}
	if b, _ := os.ReadFile(tab); string(b) != others {
		t.Errorf("%q", b)
	}
}

func TestCrontabThatCannotBeReadIsNeverWritten(t *testing.T) {
	w := newWorld(t, "plain")
	wrote := filepath.Join(w.Dir, "state", "wrote")
	w.Bin("crontab", "[ \"$1\" = -l ] || touch "+wrote+"\necho 'half a line'\necho 'disk error' >&2\nexit 1\n")
	ctx := within(t, time.Minute)
	if err := (Manager{}).Enable(ctx, w.Host, w.Spec()); !errors.Is(err, sdk.ErrUnsupported) || !strings.Contains(err.Error(), "disk error") {
		t.Error(err)
	}
	if _, err := os.Stat(wrote); err == nil {
		t.Error("it was written")
	}
}

// crontabs that cannot be written, with the words of those that people have.
var unwritable = map[string]string{
	"no spool":      "echo 'crontabs: No such file or directory' >&2\nexit 1\n",
	"no permission": "[ \"$1\" = - ] || { cat \"$tab\"; exit; }\necho '/var/spool/cron/: mkstemp: Permission denied' >&2\nexit 1\n",
	"full disk":     "[ \"$1\" = - ] || { cat \"$tab\"; exit; }\necho 'crontab: crontabs/tmp.x: No space left on device' >&2\nexit 1\n",
	"not allowed":   "echo 'You (dana) are not allowed to use this program (crontab)' >&2\nexit 1\n",
	"silent":        "[ \"$1\" = - ] || cat \"$tab\"\n",
	"absent":        "",
	// It loses what it was given, and is well again the second time.
	"torn": "[ \"$1\" = - ] || { cat \"$tab\"; exit; }\n" +
		"[ -e \"$tab.tore\" ] || { head -c 9 >\"$tab\"; touch \"$tab.tore\"; echo 'No space left on device' >&2; exit 1; }\ncat >\"$tab\"\n",
}

func TestCrontabThatCannotBeWrittenIsNoReasonNotToRun(t *testing.T) { // R30
	const others = "# my own\nMAILTO=me\n*/5 * * * * echo 100\\% done\n"
	for name, body := range unwritable {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, "plain")
			w.Bin("crontab", "tab=$(dirname \"$0\")/../state/crontab\n"+body)
			if body == "" {
				if err := os.Remove(filepath.Join(w.Dir, "bin", "crontab")); err != nil {
					t.Fatal(err)
				}
				w.Host.Path = filepath.Join(w.Dir, "bin") + ":" + withoutCrontab(t)
			}
			tab := filepath.Join(w.Dir, "state", "crontab")
			if err := os.WriteFile(tab, []byte(others), 0o600); err != nil {
				t.Fatal(err)
			}
			ctx, s := within(t, time.Minute), w.Spec()
			err := Manager{}.Enable(ctx, w.Host, s)
			if !errors.Is(err, sdk.ErrUnsupported) || strings.Contains(err.Error(), "\n") {
				t.Errorf("enable: %v", err)
			}
			t.Log(err)
			if b, _ := os.ReadFile(tab); string(b) != others {
				t.Errorf("the crontab became %q", b)
			}
			if st := start(t, w); st.AtBoot {
				t.Error("status promises a start at boot")
			}
			if err := (Manager{}).Disable(ctx, w.Host, s); err != nil {
				t.Errorf("disable: %v", err)
			}
			if b, _ := os.ReadFile(tab); string(b) != others {
				t.Errorf("the crontab became %q", b)
			}
		})
	}
}

// withoutCrontab is a PATH with the system's programs and no crontab.
func withoutCrontab(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	for _, from := range []string{"/usr/bin", "/bin"} {
		all, err := os.ReadDir(from)
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range all {
			if e.Name() != "crontab" {
				_ = os.Symlink(filepath.Join(from, e.Name()), filepath.Join(dir, e.Name()))
			}
		}
	}
	return dir
}

func TestLineThatCannotBeTakenAwayIsSaid(t *testing.T) {
	w := newWorld(t, "plain")
	ctx, s := within(t, time.Minute), w.Spec()
	if err := (Manager{}).Enable(ctx, w.Host, s); err != nil {
		t.Fatal(err)
	}
	start(t, w)
	w.Bin("crontab", "[ \"$1\" != -l ] || exec cat \"$(dirname \"$0\")/../state/crontab\"\necho 'read-only file system' >&2\nexit 1\n")
	if err := (Manager{}).Disable(ctx, w.Host, s); err == nil || !strings.Contains(err.Error(), "read-only file system") {
		t.Error(err)
	}
	if st := until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateStopped }); !st.AtBoot {
		t.Error("status says that the line is gone")
	}
}

func TestCronLineStartsTheService(t *testing.T) {
	w := newWorld(t, "plain it's")
	start(t, w)
	if err := (Manager{}).Stop(within(t, 20*time.Second), w.Host, w.Spec()); err != nil {
		t.Fatal(err)
	}
	line, err := cronLine(w.Spec())
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("/bin/sh", "-c", strings.TrimPrefix(line, "@reboot "))
	cmd.Env = []string{"HOME=/", "PATH=/usr/bin:/bin"}
	if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
		t.Fatalf("%v: %s", err, out)
	}
	until(t, w, func(s sdk.Status) bool { return s.State == sdk.StateRunning })
}

func TestScriptIsPortable(t *testing.T) {
	w := newWorld(t, "plain")
	r, err := Manager{}.Render(within(t, time.Second), w.Host.F, w.Spec())
	if err != nil {
		t.Fatal(err)
	}
	if err := w.Write(r.Files); err != nil {
		t.Fatal(err)
	}
	for _, sh := range [][]string{{"dash"}, {"bash", "--posix"}, {"busybox", "sh"}, {"mksh"}} {
		if p, err := exec.LookPath(sh[0]); err == nil {
			if out, err := exec.Command(p, append(sh[1:], "-n", r.Files[0].Path)...).CombinedOutput(); err != nil {
				t.Errorf("%v: %s", sh, out)
			}
		}
	}
	if p, err := exec.LookPath("shellcheck"); err == nil {
		if out, err := exec.Command(p, "-s", "sh", r.Files[0].Path).CombinedOutput(); err != nil {
			t.Errorf("shellcheck: %s", out)
		}
	}
}

// FuzzArgvRoundTrips: any spec that is taken starts exactly its argv.
func FuzzArgvRoundTrips(f *testing.F) {
	for _, s := range []string{"a b", `'"$HOME`, "`id`", "%", "é", "-n", "", "\\", "*", "a\nb"} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, dir, arg string) {
		s := sdk.Spec{
			Name: "x", Scope: sdk.ScopeUser, User: "u", Argv: []string{"/bin/printf", `%s\0`, dir, arg},
			DataDir: "/d/" + dir, LogFile: "/d/l" + dir, Latch: "/d/t" + arg, StopTimeout: time.Second,
		}
		r, err := Manager{}.Render(context.Background(), sdk.Facts{}, s)
		if err != nil {
			return
		}
		// The head of the script, and a call of what it defines.
		head, _, _ := strings.Cut(string(r.Files[0].Content), "# What follows")
		out, err := exec.Command("/bin/sh", "-c", head+"printf '%s\\0' \"$state\" \"$log\" \"$latch\"\nagent").Output()
		if err != nil {
			t.Fatal(err)
		}
		want := []string{filepath.Join(s.DataDir, "service/x"), s.LogFile, s.Latch, dir, arg, ""}
		if got := strings.Split(string(out), "\x00"); strings.Join(got, "\x00") != strings.Join(want, "\x00") {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// FuzzStatus: whatever the machine prints, the answer is one that a document can
// carry.
func FuzzStatus(f *testing.F) {
	for _, s := range []string{"running 42 0\n", "failed 0 -", "stopped -7 99999999999", "a b c", "\xff \x00 1 2"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, out string) {
		st := parseStatus(out)
		switch st.State {
		case sdk.StateUnknown, sdk.StateRunning, sdk.StateStarting, sdk.StateStopped, sdk.StateFailed, sdk.StateAbsent:
		default:
			t.Errorf("state %q", st.State)
		}
		if st.PID < 0 || st.PID > math.MaxInt32 || st.LastExit != nil && int(int32(*st.LastExit)) != *st.LastExit {
			t.Errorf("%+v", st)
		}
		if _, err := json.Marshal(st); err != nil {
			t.Error(err)
		}
	})
}
