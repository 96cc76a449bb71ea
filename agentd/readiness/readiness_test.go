package readiness

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/wire"
)

// keeper is a Keeper whose probe program is a shell script.
func keeper(t *testing.T, script string) (*Keeper, *int, func(string)) {
	t.Helper()
	program := filepath.Join(t.TempDir(), "probes")
	write := func(s string) {
		if err := os.WriteFile(program+".new", []byte("#!/bin/sh\n"+s+"\n"), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
	}
	write(script)
	changed := 0
	k := &Keeper{Program: program, Data: t.TempDir(), Own: func() []wire.Finding { return nil }, Facts: func() {},
		Changed: func() { changed++ }, Log: hclog.NewNullLogger()}
	k.Init()
	return k, &changed, write
}

const clean = `echo '{"schema":"fleet.findings/v1","probes":[{"name":"host","ok":true,"findings":[]}]}'`
const lingers = `echo '{"schema":"fleet.findings/v1","probes":[{"name":"host","ok":true,"findings":[{"code":"linger_disabled","severity":"block"}]}]}'`

func codes(k *Keeper) (out []string) {
	s := k.Snapshot()
	if s == nil {
		return nil
	}
	out = []string{}
	for _, b := range s.Blockers {
		out = append(out, b.Code)
	}
	return out
}

func TestNotProbedIsNotReady(t *testing.T) { // R15
	for name, script := range map[string]string{
		"fails": "exit 1", "garbage": "echo hello", "another schema": `echo '{"schema":"x"}'`, "too much": "head -c 3000000 /dev/zero",
	} {
		k, _, _ := keeper(t, script)
		k.probe(t.Context())
		if s := k.Snapshot(); s != nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	k, changed, _ := keeper(t, clean)
	k.Recheck()
	if k.Snapshot() != nil || *changed != 0 {
		t.Fatal("readiness before the first run")
	}
	k.probe(t.Context())
	if s := k.Snapshot(); s == nil || len(s.Blockers) != 0 || *changed != 1 {
		t.Fatalf("%+v, %d changes", s, *changed)
	}
}

func TestProbeThatCannotTellKeepsWhatItFound(t *testing.T) { // R30
	k, changed, write := keeper(t, lingers)
	k.probe(t.Context())
	for _, script := range []string{"exit 1", `echo '{"schema":"fleet.findings/v1","probes":[{"name":"host","ok":false,"error":"no"}]}'`, "echo garbage"} {
		write(script)
		k.probe(t.Context())
		if got := codes(k); len(got) != 1 || got[0] != "linger_disabled" || *changed != 1 {
			t.Fatalf("%s: %v, %d changes", script, got, *changed)
		}
	}
	write(clean)
	k.probe(t.Context())
	if got := codes(k); len(got) != 0 || *changed != 2 {
		t.Fatalf("%v, %d changes", got, *changed)
	}
}

func TestABlockerKeepsItsTime(t *testing.T) {
	k, changed, _ := keeper(t, lingers)
	k.probe(t.Context())
	first, probed := k.Blockers()
	k.probe(t.Context())
	again, _ := k.Blockers()
	if !probed || len(again) != 1 || !again[0].Since.Equal(first[0].Since.Time) || *changed != 1 {
		t.Fatal(first, again, *changed)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(`{"schema":"fleet.findings/v1","probes":[{"name":"x","ok":true,"findings":[{"code":"a b"}]}]}`))
	f.Fuzz(func(t *testing.T, in []byte) {
		doc, err := parse(in)
		if err != nil {
			return
		}
		for _, p := range doc.Probes {
			for _, f := range p.Findings {
				if wire.CheckName(f.Code) != nil {
					t.Fatalf("code %q", f.Code)
				}
			}
		}
	})
}
