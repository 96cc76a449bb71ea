package launchd

import (
	"context"
	"encoding/json"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"howett.net/plist"

	"fleet.example/fleet/plugins/internal/world"
	"fleet.example/fleet/plugins/sdk"
	"fleet.example/fleet/plugins/sdk/conformance"
)

func within(t testing.TB, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}

// launchctlFake plays launchctl on a host where nobody is logged in at the
// screen: there is no gui domain, only user.
const launchctlFake = `
state=$(dirname "$0")/../state
verb=$1; shift
kick=
[ "${1-}" != -k ] || { kick=1; shift; }
target=${1-}
case $target in gui/*) echo "Could not find domain for $target" >&2; exit 125 ;; esac
label=${target##*/}
run=$state/$label
alive() { read -r stat 2>/dev/null <"/proc/$1/stat" && [ "${stat#*) Z}" = "$stat" ]; }
pid() { p=$(cat "$run.pid" 2>/dev/null) && alive "$p" && echo "$p"; }
start() {
	pid >/dev/null && return 0
	plistutil -i "$(cat "$run.loaded")" -f bin -o "$run.bin" && plistutil -i "$run.bin" -f xml -o "$run.xml" || exit 1
	sed -n '/<key>ProgramArguments/,/<\/array>/s/.*<string>\(.*\)<\/string>.*/"\1"/p' "$run.xml" | tr '\n' ' ' >"$run.argv"
	eval "set -- $(cat "$run.argv")"
	"$@" </dev/null >/dev/null 2>&1 &
	echo $! >"$run.pid"
}
stop() {
	p=$(pid) || return 0
	kill -TERM "$p"
	while alive "$p"; do sleep 0.05; done
}
case $verb in
version) echo "Darwin Bootstrapper Version 7.0.0" ;;
enable | disable) ;;
bootstrap)
	label=$(basename "$2" .plist); run=$state/$label
	[ ! -e "$run.loaded" ] || exit 37
	[ -e "$2" ] || exit 5
	echo "$2" >"$run.loaded"; start ;;
bootout) [ -e "$run.loaded" ] || exit 3; stop; rm -f "$run".* ;;
kickstart) [ -e "$run.loaded" ] || exit 113; [ -z "$kick" ] || stop; start ;;
print)
	[ -e "$run.loaded" ] || { echo "Could not find service" >&2; exit 113; }
	echo "$target = {"
	if p=$(pid); then echo "	state = running"; echo "	pid = $p"; else echo "	state = not running"; fi
	echo "	last exit code = (never exited)"; echo "}" ;;
*) exit 64 ;;
esac
`

func TestConforms(t *testing.T) { // R29
	if _, err := exec.LookPath("plistutil"); err != nil {
		t.Skip("there is no plistutil")
	}
	w := world.New(t, "agent")
	w.Host.F.OS, w.Host.F.Init = "darwin", "launchd"
	w.Bin("launchctl", launchctlFake)
	t.Cleanup(func() { _ = Manager{}.Stop(context.Background(), w.Host, w.Spec()) })
	for _, c := range conformance.Service(within(t, 2*time.Minute), Manager{}, w.Env(Describe("1"))) {
		t.Run(c.Name, func(t *testing.T) { c.Report(t) })
	}
	w.Ran()
}

func example() sdk.Spec {
	return sdk.Spec{
		Name: "fleet-agent", Scope: sdk.ScopeUser, User: "dana", Argv: []string{"/Users/dana/a & b/agentd", "run", "--data", "<x>"},
		DataDir: "/Users/dana/d", LogFile: "/Users/dana/d/log", Latch: "/Users/dana/d/latch", StopTimeout: 20 * time.Second,
	}
}

func TestPropertyListIsWhatLaunchdNeeds(t *testing.T) { // R34, design §7
	for scope, path := range map[sdk.Scope]string{
		sdk.ScopeUser: "/Users/dana/Library/LaunchAgents/example.fleet.fleet-agent.plist", sdk.ScopeSystem: "/Library/LaunchDaemons/example.fleet.fleet-agent.dana.plist",
	} {
		s := example()
		s.Scope = scope
		r, err := Manager{}.Render(context.Background(), sdk.Facts{Home: "/Users/dana"}, s)
		if err != nil {
			t.Fatal(err)
		}
		if r.Files[0].Path != path {
			t.Errorf("path %s", r.Files[0].Path)
		}
		var got map[string]any
		if _, err := plist.Unmarshal(r.Files[0].Content, &got); err != nil {
			t.Fatal(err)
		}
		if got["AbandonProcessGroup"] != true || got["RunAtLoad"] != true || got["Label"] != r.Unit || got["ExitTimeOut"] != uint64(20) {
			t.Errorf("%v", got)
		}
		if k, ok := got["KeepAlive"].(map[string]any); !ok || k["SuccessfulExit"] != false {
			t.Errorf("KeepAlive is %v: exit 0 must not respawn", got["KeepAlive"])
		}
		if (scope == sdk.ScopeSystem) != (got["UserName"] == "dana") {
			t.Errorf("UserName %v in scope %s", got["UserName"], scope)
		}
		if _, ok := got["EnvironmentVariables"]; ok {
			t.Error("it has an environment")
		}
		tool, err := exec.LookPath("plistutil")
		if err != nil {
			continue
		}
		file := filepath.Join(t.TempDir(), "x.plist")
		if err := os.WriteFile(file, r.Files[0].Content, 0o644); err != nil {
			t.Fatal(err)
		}
		// There and back through a program that is not ours.
		out, err := exec.Command(tool, "-i", file, "-f", "bin", "-o", file+".bin").CombinedOutput()
		if err != nil {
			t.Fatalf("plistutil: %v: %s", err, out)
		}
		bin, err := os.ReadFile(file + ".bin")
		if err != nil || !strings.HasPrefix(string(bin), "bplist") {
			t.Fatalf("%v: %q", err, bin)
		}
		var back map[string]any
		if _, err := plist.Unmarshal(bin, &back); err != nil || !reflect.DeepEqual(back, got) {
			t.Errorf("%v: %v, want %v", err, back, got)
		}
	}
}

func TestStatusFromLaunchctlsWords(t *testing.T) {
	for out, want := range map[string]sdk.State{
		"gui/501/x = {\n\tstate = running\n\tpid = 7\n\tendpoint = {\n\t\tstate = idle\n\t}\n}": sdk.StateRunning,
		"x = {\n\tstate = not running\n\tlast exit code = 0\n}":                                 sdk.StateStopped,
		"x = {\n\tstate = not running\n\tlast exit code = 78: EX_CONFIG\n}":                     sdk.StateFailed,
		"x = {\n\tstate = spawn scheduled\n}":                                                   sdk.StateStarting,
		"":                                                                                      sdk.StateUnknown,
		"state = something new":                                                                 sdk.StateUnknown,
	} {
		if got := parsePrint(out); got.State != want {
			t.Errorf("%q: %+v, want %s", out, got, want)
		}
	}
}

// FuzzPropertyListRoundTrips: any spec that is taken says exactly its argv.
func FuzzPropertyListRoundTrips(f *testing.F) {
	for _, s := range []string{"a b", "<&>'\"", "]]>", "é", "", "\ufffe", "\ufffd", "x\ny", "\u0085", "  x  "} {
		f.Add(s, s)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		s := example()
		s.Argv = []string{"/" + a, b, a}
		r, err := Manager{}.Render(context.Background(), sdk.Facts{Home: "/Users/dana"}, s)
		if err != nil {
			return
		}
		var got job
		if _, err := plist.Unmarshal(r.Files[0].Content, &got); err != nil {
			t.Fatalf("%v in\n%s", err, r.Files[0].Content)
		}
		if !slices.Equal(got.ProgramArguments, s.Argv) {
			t.Fatalf("got %q, want %q", got.ProgramArguments, s.Argv)
		}
	})
}

// FuzzStatus: whatever the machine prints, the answer is one that a document can
// carry.
func FuzzStatus(f *testing.F) {
	for _, s := range []string{"x = {\n\tstate = running\n\tpid = 7\n}", "state = not running\nlast exit code = 78: EX_CONFIG", "pid = -1\nlast exit code = -9223372036854775808", "state = \xff"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, out string) {
		st := parsePrint(out)
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
