package cli

import (
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode"
	"unicode/utf8"

	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// What people read and pipelines parse is a promise: it changes only together
// with a golden file.
func TestDocumentsAndTables(t *testing.T) {
	for name, line := range map[string]string{
		"version": "version", "version-json": "version --json",
		"whoami-json": "whoami --json",
		"ls":          "ls", "ls-json": "ls --json", "ls-jsonl": "ls --jsonl", "ls-none": "ls --presence absent -l env=prod --json",
		"ls-selector": "ls -l env=prod", "ls-usage": "ls --presence gone", "ls-watch-json": "ls --watch --json --presence present",
		"show": "show web-1", "show-blocked": "show web-w", "show-never": "show " + idNew, "show-json": "show --json web-1",
		"show-deleted": "show " + idGone, "show-deleted-json": "show " + idGone + " --json",
		"show-ambiguous": "show web", "show-missing": "show nope", "show-missing-json": "show nope --json",
		"wait": "wait web-1 --for ready", "wait-json": "wait web-1 --for present --json", "wait-usage": "wait web-1 --for never",
		"wait-timeout": "wait web-1 --for stopped --timeout 10ms", "wait-timeout-json": "wait web-1 --for absent --timeout 10ms --json",
		"delete": "delete web-1", "delete-prefix": "delete web-", "delete-all": "delete --all", "delete-dry-run": "delete --all --dry-run",
		"delete-both": "delete web-1 --all", "delete-deleted": "delete " + idGone, "delete-json": "delete web-1 --json",
		"delete-many": "delete --all --yes", "delete-many-json": "delete -l env=prod --yes --json", "delete-many-jsonl": "delete --all --yes --jsonl --parallel 1",
		"label-many": "label --all tier=gold", "label-many-jsonl": "label -l env=prod tier=gold --jsonl", "label-many-usage": "label --all",
		"wait-many": "wait --all --for ready --timeout 10ms", "wait-many-json": "wait -l env=prod --for ready --json",
		"exec-many-unlinked": "exec -l env=prod -- true", "exec-many-unlinked-jsonl": "exec --all --jsonl --parallel 1 -- true",
		"exec-many-input": "exec --all -i -- cat", "exec-many-terminal": "exec --all -t -- top", "exec-many-json": "exec --all --json -- true",
		"exec-missing": "exec -- true", "stop-dry-run": "stop --all --dry-run", "shell-many": "shell --all", "show-many": "show -l env=prod",
		"rotate": "rotate web-1", "rotate-json": "rotate web-1 --json", "rotate-wait": "rotate web-1 --wait", "rotate-wait-json": "rotate web-1 --wait --json",
		"rotate-many": "rotate --all", "rotate-many-json": "rotate web-1 " + idNew + " --json", "rotate-wait-many": "rotate --all --wait --timeout 300ms",
		"rotate-wait-many-json": "rotate --all --wait --timeout 300ms --json", "rotate-young": "rotate web-1 --older-than 30d", "rotate-old-jsonl": "rotate -l env=prod --older-than 12h --jsonl",
		"rotate-timeout": "rotate web-w --wait --timeout 10ms", "rotate-timeout-json": "rotate web-w --wait --timeout 10ms --json",
		"rotate-usage": "rotate web-1 --timeout 1m", "rotate-gate-usage": "rotate gate --all", "rotate-url": "rotate url", "rotate-url-http": "rotate url --to http://plane.example", "rotate-ca": "rotate ca", "rotate-url-both": "rotate url --to https://b.example --abort", "rotate-none": "rotate", "rotate-deleted": "rotate " + idGone, "rotate-dry-run": "rotate --all --dry-run",
		"help-rotate": "help rotate", "help-rotate-gate": "help rotate gate", "help-rotate-url": "help rotate url", "help-rotate-ca": "help rotate ca", "help-drill-rotate": "help drill rotate",
		"rotate-gate-status": "rotate gate --status", "rotate-gate-status-json": "rotate gate --json --status", "rotate-gate-timeout": "rotate gate --timeout 10ms",
		"rotate-gate-timeout-json": "rotate gate --timeout 10ms --json", "rotate-gate-leave": "rotate gate --leave web-1,/v1/enroll", "rotate-gate-leave-more": "rotate gate --resume --leave web-1 /v1/enroll --jsonl",
		"rotate-gate-leave-prefix": "rotate gate --leave web-", "rotate-gate-abort": "rotate gate --abort", "rotate-gate-arguments": "rotate gate web-1", "rotate-gate-both": "rotate gate --abort --resume",
		"drill-rotate": "drill rotate", "drill-rotate-json": "drill rotate --json",
		"rename-many": "rename --all x", "kill-many": "kill --all s_x", "attach-many": "attach -l env=prod s_x",
		"help-exec": "help exec", "help-label": "help label", "help-wait": "help wait",
		"rename": "rename web-1 web-9", "rename-json": "rename web-1 web-9 --json", "rename-usage": "rename web-1 a/b",
		"label": "label web-1 tier- env=test", "label-json": "label web-1 a=b --json", "label-usage": "label web-1 tier",
		"audit": "audit", "audit-json": "audit --json", "audit-jsonl": "audit --jsonl", "audit-machine": "audit --machine web-1",
		"audit-none": "audit --machine " + idNew, "audit-verify": "audit verify", "audit-verify-json": "audit verify --json",
		"audit-verify-usage": "audit verify --since 1d", "token-ls-json": "token ls --json",
		"token-add-stdout": "token add ci --scope read,logs --expires 90d --out -", "token-add-no-out": "token add ci --scope read --expires 1d",
		"token-add-no-scope": "token add ci --expires 1d --out -", "token-add-no-end": "token add ci --scope read --out -",
		"person-add-stdout": "person add erin --out -", "help-person": "help person", "web": "web", "web-json": "web --json", "help-web": "help web", "help-transfer": "help transfer",
		"person-ls": "person ls --json", "person-show": "person show mo --json", "person-show-text": "person show mo", "person-lock": "person lock mo", "person-lock-json": "person lock mo --json",
		"person-rm-usage": "person rm", "person-key-rm-usage": "person key rm mo web", "transfer": "transfer web-1 --to mo", "transfer-usage": "transfer web-1",
		"person-add-role": "person add erin --role king --out -",
		"host-ls-none":    "host ls", "host-ls-none-json": "host ls --json", "host-unlink-missing": "host unlink web-1",
		"help-exit-codes": "help exit-codes", "help-selectors": "help selectors", "help-environment": "help environment",
		"help-delete": "help delete", "help-mux": "help mux", "help-ssh-config": "help ssh-config", "unknown": "nope", "unknown-nested": "token nope", "logout": "logout",
	} {
		t.Run(name, func(t *testing.T) {
			p := newFake(t)
			out, errOut, exit := p.run(strings.Fields(line)...)
			for what, s := range map[string]string{"stdout": out, "stderr": errOut} {
				if strings.Contains(s, "thesecret") && !(what == "stdout" && strings.HasSuffix(line, "--out -")) {
					t.Errorf("a secret on %s: %s", what, s) // R1
				}
				if i := strings.IndexFunc(s, func(r rune) bool { return r != '\n' && unicode.IsControl(r) }); i >= 0 {
					t.Errorf("%s carries a control character at %d: %q", what, i, s)
				}
			}
			_, pinned, ok := strings.Cut(errOut, "--ca-pin sha256:")
			if ok {
				errOut = strings.Replace(errOut, pinned[:64], "PIN", 1)
			}
			got := fmt.Sprintf("$ fleet %s\n%s", line, out)
			if errOut != "" {
				got += "--- stderr\n" + errOut
			}
			if exit != 0 {
				got += fmt.Sprintf("--- exit %d\n", exit)
			}
			golden(t, name, strings.ReplaceAll(got, p.URL, "https://plane"))
		})
	}
}

// Ages stand still here, and colour is on.
func TestTablesWithAges(t *testing.T) {
	now := at("2026-01-02T03:04:05Z").Time
	links := []state.Link{
		{Machine: idWeb, Name: "web-1", Host: "web-1.example.org", Last: "ok", At: "2026-01-02T03:04:01Z"},
		{Machine: idWeb2, Name: "web-2", Host: "dana@a-very-long-host-name.with.many.labels.example.org:2222", Last: "host_key_changed", At: "2025-12-31T03:04:01Z"},
		{Machine: idNew, Name: "new", Host: "new"},
	}
	tokens := newFake(t).tokens
	shared := &wire.Mux{Running: true, Connections: []wire.MuxConnection{
		{Host: "web-1", Destination: "dana@web-1.example.org:22", State: wire.MuxConnected, Since: *at("2026-01-02T03:00:05Z"), Clients: 2},
		{Host: "far", Destination: "dana@10.0.0.1:2222", State: wire.MuxDown, Since: *at("2026-01-02T03:04:01Z"),
			Error: "cannot reach dana@10.0.0.1:2222: dial tcp 10.0.0.1:2222: connect: connection refused"},
		{Host: "box", Destination: "dana@box:22", State: wire.MuxReconnecting, Since: *at("2026-01-02T03:04:04Z")}}}
	for name, g := range map[string]func() *grid{
		"grid-links": func() *grid { return linkGrid(links, now) }, "grid-persons": func() *grid { return personGrid(samplePersons(), now) }, "grid-keys": func() *grid { return keyGrid(samplePersons()[1].Keys, now) },
		"grid-tokens":   func() *grid { return tokenGrid(tokens, now) },
		"grid-machines": func() *grid { return machineGrid(sampleMachines()) }, "grid-mux": func() *grid { return muxGrid(shared, now) }, "grid-audit": func() *grid { return auditGrid(chain(2)) },
	} {
		var plainText, coloured, wide strings.Builder
		for _, s := range []screen{{&plainText, 80, false}, {&coloured, 80, true}, {&wide, 200, false}} {
			if err := g().write(s); err != nil {
				t.Fatal(err)
			}
		}
		for _, l := range strings.Split(plainText.String(), "\n") {
			if n := utf8.RuneCountInString(l); n > 80 || strings.HasSuffix(l, " ") {
				t.Errorf("%s: a line of %d characters: %q", name, n, l)
			}
		}
		golden(t, name, plainText.String()+"\n"+strings.ReplaceAll(coloured.String(), "\x1b", "ESC")+"\n"+wide.String())
	}
}

func TestColourOnlyOnATerminal(t *testing.T) {
	p := newFake(t)
	if out, _, _ := p.run("ls"); strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
}

func TestAgesHaveOneUnit(t *testing.T) {
	for d, want := range map[time.Duration]string{-time.Second: "0s", 0: "0s", 4*time.Second + 900*time.Millisecond: "4s",
		3 * time.Minute: "3m", 5 * time.Hour: "5h", 49 * time.Hour: "2d", 24 * 400 * time.Hour: "400d"} {
		if got := age(d); got != want {
			t.Errorf("%v: %s, want %s", d, got, want)
		}
	}
}

func FuzzCleanAndFit(f *testing.F) {
	f.Add("plain", 3)
	f.Add("\x1b[2J\x9b31m\u202e\u200b\xff", 4)
	f.Fuzz(func(t *testing.T, s string, n int) {
		if n < 1 || n > 1000 {
			return
		}
		got := fit(s, n)
		if utf8.RuneCountInString(got) > n || !utf8.ValidString(got) {
			t.Errorf("%q", got)
		}
		for _, r := range got {
			if unicode.IsControl(r) || unicode.Is(unicode.Cf, r) {
				t.Errorf("%q", got)
			}
		}
	})
}

func FuzzParseLinks(f *testing.F) {
	f.Add([]byte(`{"schema":"fleet.links/v1","plane":"https://plane","links":[{"machine":"` + idWeb + `","host":"web"}]}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		doc, err := parseLinks(b)
		if err != nil {
			return
		}
		for _, l := range doc.Links {
			if !wire.IsMachineID(l.Machine) || l.Host == "" || l.Host[0] == '-' {
				t.Errorf("%+v", l)
			}
		}
	})
}
