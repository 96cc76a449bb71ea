package hostcli

import (
	"bytes"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// listing is a plane that lists three machines and is asked for nothing else.
// Those but the last have a link.
func listing(t *testing.T) (run func(args ...string) (out, errOut string, exit int), asked *[]string) {
	t.Helper()
	home := t.TempDir()
	getenv := func(k string) string { return map[string]string{"HOME": home}[k] }
	var rows []wire.Machine
	for _, c := range "abc" {
		rows = append(rows, wire.Machine{ID: "m_" + strings.Repeat(string(c), 26), Name: "box-" + string(c), Labels: map[string]string{}})
	}
	asked = new([]string)
	ts := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		*asked = append(*asked, r.Method+" "+r.URL.Path)
		out := wire.Machines{Schema: wire.SchemaMachines, Machines: []wire.Machine{}}
		for _, m := range rows {
			if strings.HasPrefix(m.Name, r.FormValue("match")) {
				out.Machines = append(out.Machines, m)
			}
		}
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(out)
	}))
	t.Cleanup(ts.Close)
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: ts.Certificate().Raw})
	p, err := state.DirsOf(getenv).SaveLogin(t.Context(), ts.URL, string(roots), "SHA256:abc", wire.LoginAnswer{
		Token: "fs_session", Person: "dana", Role: wire.RoleOwner, ExpiresAt: wire.Time{Time: time.Now().Add(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range rows[:2] {
		// A destination that is none: whoever dialled it would be found out.
		if err := p.SaveLink(t.Context(), state.Link{Machine: m.ID, Name: m.Name, Host: "nobody@host.invalid"}); err != nil {
			t.Fatal(err)
		}
	}
	return func(args ...string) (string, string, int) {
		var o, e bytes.Buffer
		exit := Main(append([]string{"fleet-host"}, args...), command.IO{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Getenv: getenv}, Build{Version: "1"})
		return o.String(), e.String(), exit
	}, asked
}

func TestDryRunOfWhatNeedsSSH(t *testing.T) {
	run, asked := listing(t)
	for _, verb := range []string{"update", "rollback", "uninstall"} {
		*asked = nil
		out, errOut, exit := run(verb, "--all", "--dry-run", "--jsonl")
		if exit != fault.Partial || strings.Count(out, `"status":"dry_run"}`) != 2 || !strings.Contains(out, `"name":"box-c","ok":false,"exit":5,"error":{"code":"no_destination"`) ||
			!strings.HasSuffix(out, `{"schema":"fleet.summary/v1","ok":2,"failed":1}`+"\n") || !slices.Equal(*asked, []string{"GET " + wire.PathMachines}) {
			t.Errorf("%s: exit %d, asked %v: %s%s", verb, exit, *asked, out, errOut)
		}
		if out, errOut, exit = run(verb, "box-b", "box-a", "--dry-run"); exit != 0 || strings.Index(out, "box-a") > strings.Index(out, "box-b") || strings.Count(out, "would ") != 2 {
			t.Errorf("%s: exit %d: %s%s", verb, exit, out, errOut)
		}
	}
}

func TestWhatNeedsSSHTakesMachinesAsEverythingDoes(t *testing.T) {
	run, _ := listing(t)
	for _, x := range []struct {
		line  string
		exit  int
		words string
	}{
		{"update", fault.Usage, "MACHINE is missing"},
		{"update box-a -l env=prod", fault.Usage, "not both"},
		{"update --all --yes", fault.Usage, "unknown flag --yes"},
		{"rollback --all --parallel 0", fault.Usage, "--parallel takes a number from 1"},
		{"rollback box --dry-run", fault.Usage, `"box" means 2 machines`},
		{"update box-c", fault.NotFound, "no SSH destination is known for box-c"},
		{"update box-x", fault.NotFound, `no machine "box-x"`},
		{"uninstall --all", fault.Usage, "needs --yes"},
		{"uninstall -l env=prod", fault.Usage, "needs --yes"},
		{"uninstall box-", fault.NotFound, "takes no prefix"},
		{"uninstall box-a box-x", fault.NotFound, `no machine "box-x"`},
	} {
		out, errOut, exit := run(strings.Fields(x.line)...)
		if exit != x.exit || !strings.Contains(errOut, x.words) || out != "" {
			t.Errorf("%s: exit %d, want %d and %q: %s%s", x.line, exit, x.exit, x.words, out, errOut)
		}
	}
}
