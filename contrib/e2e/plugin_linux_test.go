package e2e

import (
	"encoding/json"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/plugins/catalog"
)

// vendor builds a program of the vendor's and gives it a plugin's names.
func (w *world) vendor(program string, names ...string) {
	w.t.Helper()
	built := filepath.Join(w.dir, program+".bin")
	if out, err := exec.Command("go", "build", "-o", built, "../vendorplugin/"+program).CombinedOutput(); err != nil {
		w.t.Fatalf("%v: %s", err, out)
	}
	for _, n := range names {
		if err := os.Link(built, filepath.Join(w.dir, n)); err != nil {
			w.t.Fatal(err)
		}
	}
}

// traces are what a tryout may leave on a machine: files, units, lines of a
// crontab and processes.
func (w *world) traces(h *lab.Host) string {
	return w.sh(h, "root", `{ find /home /root /etc/systemd /var/lib/fleet* /var/spool/cron /run/user /run/fleet* /tmp -name '*.journal' -prune -o -print 2>/dev/null |
grep -v -e '/run/user/[0-9]*/systemd/' -e /systemd-private; crontab -u dana -l 2>/dev/null
systemctl --no-legend --plain list-units --all '*fleet-try*'; ps -A -o args= | grep '[f]leet-try'; } | sort; true`)
}

func TestPluginsOnRealMachines(t *testing.T) { // R40, R41, design §8
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	at := append([]string{"--host", "dana@" + h.Addr(), "-i", w.lab.KeyPath()}, "--json")

	// The host key is confirmed as anywhere else (R2).
	w.fails(6, "host key", append([]string{"plugin", "test", "fleet-probe-host"}, at...)...)
	w.fails(6, "expected SHA256:AAAA", append([]string{"plugin", "test", "fleet-probe-host", "--fingerprint", "SHA256:" + strings.Repeat("A", 43)}, at...)...)
	w.fails(2, "--host", "plugin", "test", "fleet-probe-host", "--scope", "user")

	try := func(exit int, plugin string, more ...string) map[string]catalog.TestCheckDoc {
		t.Helper()
		r := w.run("fleet", append(append([]string{"plugin", "test", plugin}, at...), more...)...)
		var doc catalog.TestDoc
		if err := json.Unmarshal([]byte(r.out), &doc); err != nil || r.exit != exit || doc.OK != (exit == 0) {
			t.Errorf("%s: want exit %d: %s", plugin, exit, r)
		}
		checks := map[string]catalog.TestCheckDoc{}
		for _, c := range doc.Checks {
			checks[c.Name] = c
			if exit == 0 && c.Status == "failed" {
				t.Errorf("%s: %+v", plugin, c)
			}
		}
		return checks
	}
	try(0, "fleet-probe-host", "--fingerprint", w.fingerprint(h))
	before := w.traces(h)
	w.vendor("fleet-probe-acme", "fleet-probe-acme")
	want := map[string]string{"service": "it leaves nothing behind", "transport": "it carries SSH to the machine", "probe": "findings are complete and can be acted on"}
	for _, plugin := range []string{
		"fleet-service-systemd", "fleet-service-plain", w.dir + "/fleet-probe-acme", "fleet-transport-direct",
		"fleet-transport-proxyjump", "fleet-transport-proxycommand",
	} {
		checks := try(0, plugin)
		kind, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(plugin), "fleet-"), "-")
		way := map[string]string{"fleet-transport-proxyjump": "over jump hosts: ", "fleet-transport-proxycommand": "over a program: "}[plugin]
		if c := checks[way+want[kind]]; c.Status != "ok" {
			t.Errorf("%s: %+v", plugin, c)
		}
		if kind == "service" && checks["the latch holds it"].Status != "ok" {
			t.Errorf("%s: the life of a service was not tried: %+v", plugin, checks)
		}
		if after := w.traces(h); after != before {
			t.Errorf("%s left something:\n%s", plugin, difference(before, after))
		}
	}

	bad := map[string][]string{
		"fleet-service-bad-none":        nil, // which shows that it is the others' ways that are wrong
		"fleet-service-bad-rude":        {"before a host key is confirmed only described commands run", "render refuses what would be another file"},
		"fleet-service-bad-litter":      {"it leaves nothing behind"},
		"fleet-probe-bad-call-unlisted": {"findings are complete and can be acted on"},
		"fleet-probe-bad-crash":         {"it starts in time"},
	}
	w.vendor("bad", slices.Collect(maps.Keys(bad))...)
	for plugin, names := range bad {
		checks := try(min(len(names), 1), w.dir+"/"+plugin)
		for _, name := range names {
			if c := checks[name]; c.Status != "failed" || c.Detail == "" {
				t.Errorf("%s: %q: %+v", plugin, name, c)
			}
		}
		if after := w.traces(h); after != before {
			t.Errorf("%s left something:\n%s", plugin, difference(before, after))
		}
	}
}

// difference is what diff says of two texts.
func difference(a, b string) string {
	dir, err := os.MkdirTemp("", "diff")
	if err != nil {
		return b
	}
	defer os.RemoveAll(dir)
	for name, s := range map[string]string{"a": a, "b": b} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(s), 0o600); err != nil {
			return b
		}
	}
	out, _ := exec.Command("diff", filepath.Join(dir, "a"), filepath.Join(dir, "b")).Output()
	return string(out)
}
