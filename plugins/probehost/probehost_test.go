package probehost

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/core/programs"
	"fleet.example/fleet/core/wire"
)

// version is a version directory as an artifact unpacks it, of real programs.
func versionDir(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp("/tmp", "fpv")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	if err := programs.Plugins(d); err != nil {
		t.Fatal(err)
	}
	return d
}

func probe(t testing.TB, dir, data string, args ...string) (wire.Findings, *exec.Cmd, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(dir, "agentd-probes"), append([]string{"--data", data, "--json"}, args...)...)
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		return wire.Findings{}, cmd, fmt.Errorf("%w: %s", err, stderr.String())
	}
	var doc wire.Findings
	if err := json.Unmarshal(out, &doc); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return doc, cmd, nil
}

func TestProbesOfAVersionDirectory(t *testing.T) { // R30, R40
	dir, data := versionDir(t), t.TempDir()
	runtime, err := os.MkdirTemp("/tmp", "fpr")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(runtime)
	put := func(name string, v any) {
		b, err := json.Marshal(v)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(data, name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	offset := -75000.0 // the plane's clock minus the machine's
	put("service.json", wire.ServiceRecord{Schema: wire.SchemaService, Scope: "user", Manager: "launchd", Account: "dana", RuntimeDir: runtime})
	put("facts.json", wire.AgentFacts{Schema: wire.SchemaAgentFacts, ClockOffsetMS: &offset, CredentialError: "disk quota exceeded"})
	doc, _, err := probe(t, dir, data)
	if err != nil {
		t.Fatal(err)
	}
	if doc.Schema != wire.SchemaFindings || len(doc.Probes) != 1 || doc.Probes[0].Name != "host" || !doc.Probes[0].OK {
		t.Fatalf("%+v", doc)
	}
	got := map[string]wire.Finding{}
	for _, f := range doc.Probes[0].Findings {
		got[f.Code] = f
	}
	for code, detail := range map[string]string{
		"login_bound_service": "", "clock_skew": "the clock is 1m15s ahead of the plane's",
		"credential_unwritable": "the last attempt to store a credential failed: disk quota exceeded",
	} {
		f, ok := got[code]
		if !ok || f.Severity != wire.SeverityBlock || f.Remedy == "" || detail != "" && f.Detail != detail {
			t.Errorf("%s: %+v", code, f)
		}
	}
	if left, _ := os.ReadDir(runtime); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}

	t.Run("an altered probe cannot tell", func(t *testing.T) {
		f, err := os.OpenFile(filepath.Join(dir, "fleet-plugins"), os.O_APPEND|os.O_WRONLY, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.Write([]byte{0}); err != nil {
			t.Fatal(err)
		}
		f.Close()
		doc, _, err := probe(t, dir, data)
		if err != nil || len(doc.Probes) != 1 || doc.Probes[0].OK || doc.Probes[0].Error == "" {
			t.Errorf("%+v, %v", doc, err)
		}
	})
	t.Run("torn facts are an error", func(t *testing.T) {
		if err := os.WriteFile(filepath.Join(data, "facts.json"), []byte(`{"schema":`), 0o600); err != nil {
			t.Fatal(err)
		}
		if doc, _, err := probe(t, dir, data); err == nil {
			t.Errorf("%+v", doc)
		}
	})
}

// One run every five minutes may cost 0.25 s of CPU time.
func BenchmarkOneRun(b *testing.B) {
	dir, data := versionDir(b), b.TempDir()
	var spent time.Duration
	for b.Loop() {
		_, cmd, err := probe(b, dir, data)
		if err != nil {
			b.Fatal(err)
		}
		// Its children's time is in its own once it waited for them.
		u := cmd.ProcessState.SysUsage().(*syscall.Rusage)
		spent += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	b.ReportMetric(float64(spent.Milliseconds())/float64(b.N), "cpu-ms/op")
}
