package systemd

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/plugins/internal/world"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
)

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// systemctlFake plays a user manager: it reads ExecStart and the condition of
// the unit that was written, and runs what they say.
const systemctlFake = `
[ "$1" != --version ] || { echo "systemd 252 (252.39-1~deb12u2)"; exit 0; }
[ "$1" = --user ] || { echo "Failed to connect to bus" >&2; exit 1; }
shift
verb=$1; shift
home=$(dirname "$0")/../home
for last; do :; done
unit=$home/.config/systemd/user/${last-}
run=$(dirname "$0")/../state/${last-}
alive() { read -r stat 2>/dev/null <"/proc/$1/stat" && [ "${stat#*) Z}" = "$stat" ]; }
pid() { p=$(cat "$run.pid" 2>/dev/null) && alive "$p" && echo "$p"; }
exists() { [ -e "$run.loaded" ] || { echo "Unit $last not found." >&2; exit 5; }; }
start() {
	pid >/dev/null && return 0
	latch=$(sed -n 's/^ConditionPathExists=!//p' "$unit")
	[ ! -e "$latch" ] || return 0
	eval "set -- $(sed -n 's/^ExecStart=//p' "$unit")"
	"$@" </dev/null >/dev/null 2>&1 &
	echo $! >"$run.pid"
}
stop() {
	p=$(pid) || return 0
	kill -TERM "$p"
	while alive "$p"; do sleep 0.05; done
}
case $verb in
is-system-running) echo running ;;
daemon-reload)
	rm -f "$(dirname "$0")/../state/"*.loaded
	for u in "$home"/.config/systemd/user/*.service; do
		[ ! -e "$u" ] || touch "$(dirname "$0")/../state/$(basename "$u").loaded"
	done ;;
reset-failed) exists ;;
enable) exists; touch "$run.enabled" ;;
disable) exists; rm -f "$run.enabled"; stop ;;
start) exists; start ;;
stop) exists; stop ;;
restart) exists; stop; start ;;
show)
	if [ ! -e "$run.loaded" ]; then echo LoadState=not-found; echo ActiveState=inactive; exit 0; fi
	echo LoadState=loaded
	[ -e "$run.enabled" ] && echo UnitFileState=enabled || echo UnitFileState=disabled
	if p=$(pid); then echo ActiveState=active; echo SubState=running; echo "MainPID=$p"
	else echo ActiveState=inactive; echo SubState=dead; echo MainPID=0; fi ;;
*) echo "unknown verb $verb" >&2; exit 1 ;;
esac
`

func TestConforms(t *testing.T) { // R29
	w := world.New(t, "agent")
	w.Host.F.Init = "systemd"
	w.Bin("systemctl", systemctlFake)
	t.Cleanup(func() { _ = Manager{}.Stop(context.Background(), w.Host, w.Spec()) })
	for _, c := range conformance.Service(within(t, 2*time.Minute), Manager{}, w.Env(Describe("1"))) {
		t.Run(c.Name, func(t *testing.T) { c.Report(t) })
	}
	w.Ran()
}

func example() sdk.Spec {
	return sdk.Spec{
		Name: "fleet-agent", Scope: sdk.ScopeUser, User: "dana",
		Argv:    []string{"/home/dana/.local/share/fleet-agent/0123/current/agentd", "run", "--data", "/home/dana/.local/share/fleet-agent/0123"},
		DataDir: "/home/dana/.local/share/fleet-agent/0123", RuntimeDir: "/run/user/1000/fleet-agent",
		Latch: "/home/dana/.local/share/fleet-agent/0123/latch", StartTimeout: 30 * time.Second, StopTimeout: 20 * time.Second,
	}
}

func render(t testing.TB, s sdk.Spec) sdk.Rendered {
	t.Helper()
	r, err := Manager{}.Render(context.Background(), sdk.Facts{Home: "/home/dana"}, s)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func TestUnitSaysWhatSessionsAndTheLatchNeed(t *testing.T) { // R29, R34, design §7
	for _, scope := range []sdk.Scope{sdk.ScopeUser, sdk.ScopeSystem} {
		s := example()
		s.Scope = scope
		r := render(t, s)
		unit := string(r.Files[0].Content)
		for _, line := range []string{
			"Type=notify", "KillMode=process", "Delegate=yes", "Restart=always", "StartLimitIntervalSec=0",
			"OOMPolicy=continue", "TimeoutStopSec=20", "TimeoutStartSec=30", "ConditionPathExists=!" + s.Latch,
			"ExecStart=" + strings.Join(s.Argv, " "),
		} {
			if !strings.Contains(unit, "\n"+line+"\n") {
				t.Errorf("%s: no line %q in\n%s", scope, line, unit)
			}
		}
		for _, word := range []string{"PrivateTmp", "Environment", "WatchdogSec"} {
			if strings.Contains(unit, word) {
				t.Errorf("%s: %s in\n%s", scope, word, unit)
			}
		}
	}
	s := example()
	s.Scope, s.RuntimeDir = sdk.ScopeSystem, "/run/fleet-agent/dana"
	r := render(t, s)
	if r.Unit != "fleet-agent@dana.service" || r.Files[0].Path != "/etc/systemd/system/fleet-agent@dana.service" || r.Files[0].Owner != "root" {
		t.Errorf("%+v", r)
	}
	for _, line := range []string{"User=dana", "RuntimeDirectory=fleet-agent/dana", "RuntimeDirectoryMode=0700", "RuntimeDirectoryPreserve=yes", "WantedBy=multi-user.target"} {
		if !strings.Contains(string(r.Files[0].Content), "\n"+line+"\n") {
			t.Errorf("no line %q", line)
		}
	}
}

// TestSystemdTakesTheUnit asks systemd itself, which reads the unit, undoes its
// quoting and looks for the program.
func TestSystemdTakesTheUnit(t *testing.T) {
	analyze, err := exec.LookPath("systemd-analyze")
	if err != nil {
		t.Skip("there is no systemd-analyze")
	}
	for _, name := range []string{
		"plain", "with space", "percent%h", "dollar$HOME", "it's", `say"hi"`, `back\slash`, "a=b", "ünïcødé-日本", "semi;colon", "(paren)", "~tilde", "#hash", "{brace}", "`tick`", "&<>", "*?[x]", "-dash", "@at", ":colon", "!bang", "+plus",
	} {
		t.Run(name, func(t *testing.T) {
			w := world.New(t, name)
			s := w.Spec()
			for _, scope := range []sdk.Scope{sdk.ScopeUser, sdk.ScopeSystem} {
				s.Scope, s.User = scope, "root"
				r, err := Manager{}.Render(context.Background(), w.Host.F, s)
				if err != nil {
					t.Fatal(err)
				}
				file := filepath.Join(w.Dir, r.Unit)
				if err := os.WriteFile(file, r.Files[0].Content, 0o644); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(analyze, "--man=no", "--recursive-errors=no", "verify", file)
				if scope == sdk.ScopeUser {
					cmd.Args = slices.Insert(cmd.Args, 1, "--user")
				}
				cmd.Env = append(os.Environ(), "XDG_RUNTIME_DIR="+w.Dir)
				out, err := cmd.CombinedOutput()
				// A program that systemd does not find, or a line that it skips, is
				// named with the unit's file.
				if err != nil || strings.Contains(string(out), r.Unit) {
					t.Errorf("%s: %v: %s\n%s", scope, err, out, r.Files[0].Content)
				}
			}
		})
	}
}

func TestSystemdEnablesAnInstanceFile(t *testing.T) {
	if _, err := exec.LookPath("systemctl"); err != nil {
		t.Skip("there is no systemctl")
	}
	root := t.TempDir()
	s := example()
	s.Scope = sdk.ScopeSystem
	r := render(t, s)
	dir := filepath.Join(root, filepath.Dir(r.Files[0].Path))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, r.Unit), r.Files[0].Content, 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemctl", "--root="+root, "enable", r.Unit).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	to, err := os.Readlink(filepath.Join(dir, "multi-user.target.wants", r.Unit))
	if err != nil || filepath.Base(to) != r.Unit {
		t.Errorf("%s, %v", to, err)
	}
}

func TestStatusFromSystemdsWords(t *testing.T) {
	exit := func(n int) *int { return &n }
	for _, v := range []struct {
		out  string
		want sdk.Status
	}{
		{"LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=42\nUnitFileState=enabled\nStateChangeTimestamp=@1700000000\n",
			sdk.Status{State: sdk.StateRunning, PID: 42, AtBoot: true, Since: time.Unix(1700000000, 0)}},
		{"LoadState=loaded\nActiveState=activating\nSubState=auto-restart\nMainPID=0\nExecMainCode=1\nExecMainStatus=3\n",
			sdk.Status{State: sdk.StateStarting, LastExit: exit(3)}},
		{"LoadState=loaded\nActiveState=failed\nSubState=failed\nExecMainCode=2\nExecMainStatus=9\n",
			sdk.Status{State: sdk.StateFailed, LastExit: exit(137)}},
		{"LoadState=loaded\nActiveState=inactive\nSubState=dead\nConditionResult=no\n", sdk.Status{State: sdk.StateStopped}},
		{"LoadState=not-found\nActiveState=inactive\n", sdk.Status{State: sdk.StateAbsent}},
		{"LoadState=masked\nActiveState=inactive\n", sdk.Status{State: sdk.StateAbsent}},
		{"", sdk.Status{State: sdk.StateUnknown}},
		{"garbage\x00", sdk.Status{State: sdk.StateUnknown}},
	} {
		got := parseStatus(v.out)
		same := got.State == v.want.State && got.PID == v.want.PID && got.AtBoot == v.want.AtBoot && got.Since.Equal(v.want.Since)
		if same = same && fmt.Sprint(got.LastExit == nil) == fmt.Sprint(v.want.LastExit == nil); same && got.LastExit != nil {
			same = *got.LastExit == *v.want.LastExit
		}
		if !same {
			t.Errorf("%q: %+v, want %+v", v.out, got, v.want)
		}
	}
}

func TestVersions(t *testing.T) {
	for out, want := range map[string]int{
		"systemd 252 (252.39-1~deb12u2)\n+PAM": 252, "systemd 257~rc2": 257, "systemd v260-1": 0, "": 0, "systemd": 0, "busybox 1": 0,
	} {
		if got := version(out); got != want {
			t.Errorf("%q: %d, want %d", out, got, want)
		}
	}
}

// unquote undoes systemd's quoting of a command line as systemd.service(5) and
// systemd.syntax(7) describe it.
func unquote(line string) (words []string, err error) {
	for i := 0; i < len(line); {
		if line[i] == ' ' {
			i++
			continue
		}
		var b strings.Builder
		quoted := line[i] == '"'
		if quoted {
			i++
		}
		for {
			if i == len(line) {
				if quoted {
					return nil, fmt.Errorf("unbalanced quote")
				}
				break
			}
			c := line[i]
			if quoted && c == '"' {
				i++
				break
			}
			if !quoted && c == ' ' {
				break
			}
			switch {
			case c == '\\':
				i++
				if i == len(line) || line[i] != '\\' && line[i] != '"' {
					return nil, fmt.Errorf("escape at %d", i)
				}
				b.WriteByte(line[i])
			case !quoted && (c == '"' || c == '\'' || c == ';'):
				return nil, fmt.Errorf("bare %q", c)
			case c == '%':
				i++
				if i == len(line) || line[i] != '%' {
					return nil, fmt.Errorf("specifier at %d", i)
				}
				b.WriteByte('%')
			case c == '$' && len(words) > 0:
				i++
				if i == len(line) || line[i] != '$' {
					return nil, fmt.Errorf("variable at %d", i)
				}
				b.WriteByte('$')
			default:
				b.WriteByte(c)
			}
			i++
		}
		words = append(words, b.String())
	}
	return words, nil
}

// FuzzUnitRoundTrips: any spec that is taken says exactly its argv and latch.
func FuzzUnitRoundTrips(f *testing.F) {
	for _, s := range []string{"a b", `'"$HOME`, "%h", "é", "", `\`, "x\ny", "\u2028", " ", "a\\", "="} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, dir, arg string) {
		s := example()
		s.Argv = []string{"/x/" + dir, arg, dir}
		s.Latch = "/x/" + dir + "/latch"
		r, err := Manager{}.Render(context.Background(), sdk.Facts{Home: "/home/dana"}, s)
		if err != nil {
			return
		}
		unit := string(r.Files[0].Content)
		if got := strings.Count(unit, "\n"); got != strings.Count(string(render(t, example()).Files[0].Content), "\n") {
			t.Fatalf("another number of lines:\n%s", unit)
		}
		_, rest, _ := strings.Cut(unit, "\nExecStart=")
		line, _, _ := strings.Cut(rest, "\n")
		words, err := unquote(line)
		if err != nil {
			t.Fatalf("%s: %v", line, err)
		}
		if words[0] == "/bin/sh" && s.Argv[0] != "/bin/sh" {
			if strings.Join(words[1:3], " ") != `-c exec "$0" "$@"` {
				t.Fatalf("%q", words)
			}
			words = words[3:]
		} else if strings.ContainsAny(words[0], `'"\$`) {
			t.Fatalf("systemd rejects %q", words[0])
		}
		if !slices.Equal(words, s.Argv) {
			t.Fatalf("got %q, want %q from %s", words, s.Argv, line)
		}
		_, rest, _ = strings.Cut(unit, "\nConditionPathExists=!")
		latch, _, _ := strings.Cut(rest, "\n")
		if strings.ReplaceAll(latch, "%%", "%") != s.Latch || latch != strings.TrimSpace(latch) || strings.HasSuffix(latch, `\`) {
			t.Fatalf("latch %q, want %q", latch, s.Latch)
		}
	})
}

// FuzzStatus: whatever the machine prints, the answer is one that a document can
// carry.
func FuzzStatus(f *testing.F) {
	for _, s := range []string{"LoadState=loaded\nActiveState=active\nSubState=running\nMainPID=42\nUnitFileState=enabled\nStateChangeTimestamp=@1700000000\n", "LoadState=masked\n", "MainPID=-1\nStateChangeTimestamp=@9223372036854775807\nExecMainStatus=99999999999\nExecMainCode=2\n", "a\xff=b\nActiveState=failed"} {
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
