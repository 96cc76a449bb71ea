package prometheus

import (
	"bytes"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"fleet.example/fleet/contrib/swarm"
)

// promtool finds the program, which comes with Prometheus. FLEET_PROMTOOL=required
// makes its absence a failure.
func promtool(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("promtool")
	if err != nil {
		if os.Getenv("FLEET_PROMTOOL") == "required" {
			t.Fatal(err)
		}
		t.Skip("promtool is not installed (Debian: package prometheus)")
	}
	return path
}

func run(t *testing.T, stdin []byte, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Stdin = bytes.NewReader(stdin)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, out)
	}
}

func TestTheRulesDoWhatTheirTestsSay(t *testing.T) {
	tool := promtool(t)
	run(t, nil, tool, "check", "rules", "--lint=all", "--lint-fatal", "fleet.rules.yml")
	run(t, nil, tool, "test", "rules", "fleet.rules.test.yml")
}

func TestEveryRuleHasATestInWhichItFiresAndOneInWhichItDoesNot(t *testing.T) {
	rules, err := os.ReadFile("fleet.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	tests, err := os.ReadFile("fleet.rules.test.yml")
	if err != nil {
		t.Fatal(err)
	}
	alerts := regexp.MustCompile(`(?m)- alert: (\w+)`).FindAllSubmatch(rules, -1)
	if len(alerts) == 0 {
		t.Fatal("no alerts")
	}
	for _, a := range alerts {
		if !regexp.MustCompile(`alertname: ` + string(a[1]) + `\n\s+exp_alerts:\n\s+- exp_labels`).Match(tests) {
			t.Errorf("%s fires in no test", a[1])
		}
	}
	for _, quiet := range []string{"FleetRetiringGateInUse", "FleetRotationLeftWide", "FleetClocksDiffer", "FleetCertificatesNotRenewed"} {
		if !bytes.Contains(tests, []byte("alertname: "+quiet+"}")) {
			t.Errorf("%s keeps quiet in no test", quiet)
		}
	}
}

// exported is what a plane says at its metrics listener.
func exported(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	planed, err := swarm.Build(t.Context(), dir, "planed")
	if err != nil {
		t.Fatal(err)
	}
	gate := filepath.Join(dir, "gate")
	if out, err := exec.Command(planed, "gate", "new", gate).CombinedOutput(); err != nil {
		t.Fatalf("%s", out)
	}
	p, err := swarm.Prepare(t.Context(), planed, filepath.Join(dir, "plane"), 2, "--gate-token-file", gate)
	if err != nil {
		t.Fatal(err)
	}
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Kill() })
	resp, err := http.Get("http://" + p.Metrics + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%d %v %s", resp.StatusCode, err, b)
	}
	return b
}

func TestTheMetricsAreCleanAndTheRulesNameNoOthers(t *testing.T) {
	metrics := exported(t)
	names := map[string]bool{}
	for _, m := range regexp.MustCompile(`(?m)^# TYPE (fleet_\w+) (\w+)$`).FindAllSubmatch(metrics, -1) {
		names[string(m[1])] = true
		if string(m[2]) == "histogram" {
			for _, part := range []string{"_bucket", "_count", "_sum"} {
				names[string(m[1])+part] = true
			}
		}
	}
	rules, err := os.ReadFile("fleet.rules.yml")
	if err != nil {
		t.Fatal(err)
	}
	var unknown []string
	for _, name := range regexp.MustCompile(`\bfleet_\w+`).FindAllString(string(rules), -1) {
		if !names[name] && !slices.Contains(unknown, name) {
			unknown = append(unknown, name)
		}
	}
	if len(unknown) > 0 {
		t.Errorf("the rules name what no plane exports: %v", unknown)
	}
	for _, never := range regexp.MustCompile(`m_[a-z2-7]{26}|box-\d`).FindAll(metrics, -1) {
		t.Errorf("a metric names a machine: %s", never) // R18
	}
	if tool, err := exec.LookPath("promtool"); err == nil || os.Getenv("FLEET_PROMTOOL") == "required" {
		run(t, metrics, tool, "check", "metrics")
	}
}
