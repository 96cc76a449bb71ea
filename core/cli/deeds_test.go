package cli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// seal gives an entry the hash that wire.AuditEntry describes.
func seal(e wire.AuditEntry) wire.AuditEntry {
	prev, err := hex.DecodeString(e.Prev)
	if err != nil {
		panic(err)
	}
	sum := sha256.Sum256(append(prev, e.Canonical()...))
	e.Hash = hex.EncodeToString(sum[:])
	return e
}

func TestAuditVerifySeesEveryTampering(t *testing.T) {
	for name, tt := range map[string]struct {
		change func(*fakePlane)
		words  string // "" holds
	}{
		"nothing":   {func(*fakePlane) {}, ""},
		"grown":     {func(p *fakePlane) { p.audit = chain(5) }, ""},
		"altered":   {func(p *fakePlane) { p.audit[1].Actor = "person:eve" }, "entry 2 was altered"},
		"detail":    {func(p *fakePlane) { p.audit[1].Detail["to"] = "x" }, "entry 2 was altered"},
		"removed":   {func(p *fakePlane) { p.audit = slices.Delete(p.audit, 1, 2) }, "entry 3 stands where 2 should"},
		"swapped":   {func(p *fakePlane) { p.audit[0], p.audit[1] = p.audit[1], p.audit[0] }, "entry 2 stands where 1 should"},
		"shortened": {func(p *fakePlane) { p.audit = p.audit[:2] }, "it ends at entry 2, and entry 3 was verified here before"},
		"emptied":   {func(p *fakePlane) { p.audit = nil }, "it ends at entry 0, and entry 3 was verified here before"},
		"forged anew": {func(p *fakePlane) {
			prev := p.audit[0].Prev
			for i := range p.audit {
				p.audit[i].Actor, p.audit[i].Prev = "person:eve", prev
				p.audit[i] = seal(p.audit[i])
				prev = p.audit[i].Hash
			}
		}, "entry 3 is not the one that was verified here before"},
		"another head": {func(p *fakePlane) { p.head = &wire.AuditHead{Seq: 4, Hash: strings.Repeat("ab", 32)} }, "the plane names entry 4 as its head, and sent entries up to 3"},
		"no prev":      {func(p *fakePlane) { p.audit[2].Prev = "zz" }, "entry 3 does not follow the one before it"},
	} {
		t.Run(name, func(t *testing.T) {
			p := newFake(t)
			if _, errOut, exit := p.run("audit", "verify"); exit != 0 {
				t.Fatal(errOut)
			}
			before := p.kept().AuditHead()
			p.mu.Lock()
			tt.change(p)
			p.mu.Unlock()
			_, errOut, exit := p.run("audit", "verify")
			if tt.words == "" {
				if exit != 0 || p.kept().AuditHead().Seq != uint64(len(p.audit)) {
					t.Errorf("exit %d, %+v: %s", exit, p.kept().AuditHead(), errOut)
				}
				return
			}
			if exit != fault.Failure || !strings.Contains(errOut, tt.words) {
				t.Errorf("exit %d: %s", exit, errOut)
			}
			if p.kept().AuditHead() != before {
				t.Error("the head of a chain that does not hold was remembered")
			}
		})
	}
}

func TestAuditVerifyResetTakesARestoredPlanesChain(t *testing.T) {
	p := newFake(t)
	p.run("audit", "verify")
	p.audit = p.audit[:2]
	if _, _, exit := p.run("audit", "verify"); exit != fault.Failure {
		t.Fatal(exit)
	}
	if _, errOut, exit := p.run("audit", "verify", "--reset"); exit != 0 || p.kept().AuditHead().Seq != 2 {
		t.Fatal(exit, errOut)
	}
}

func TestDeleteForgetsTheLink(t *testing.T) {
	p := newFake(t)
	for _, id := range []string{idWeb, idGone} {
		if err := p.kept().SaveLink(t.Context(), state.Link{Machine: id, Name: "x" + id[:3], Host: "h"}); err != nil {
			t.Fatal(err)
		}
	}
	if _, errOut, exit := p.run("delete", idWeb); exit != 0 {
		t.Fatal(errOut)
	}
	// Somebody else deleted this one: the error says so, and the link goes too.
	if _, errOut, exit := p.run("delete", idGone); exit != fault.NotFound || !strings.Contains(errOut, "was deleted at") {
		t.Fatal(exit, errOut)
	}
	if links, err := p.kept().Links(); err != nil || len(links) != 0 {
		t.Error(links, err)
	}
}

func TestDeleteOfManySaysEachAndTheSum(t *testing.T) {
	p := newFake(t)
	if _, _, exit := p.run("delete", "--all"); exit != fault.Usage || len(p.asked) != 0 {
		t.Fatal(exit, p.asked)
	}
	p.refuse[wire.PathMachines+"/"+idNew] = 403
	out, _, exit := p.run("delete", "--all", "--yes", "--jsonl")
	if exit != fault.Partial {
		t.Errorf("exit %d", exit)
	}
	lines := strings.Split(strings.TrimSpace(out), "\n")
	ok, failed := 0, 0
	for _, l := range lines[:len(lines)-1] {
		var r wire.Result
		if err := json.Unmarshal([]byte(l), &r); err != nil {
			t.Fatal(err)
		}
		if r.OK {
			ok++
		} else if failed++; r.Machine != idNew || r.Exit != fault.Refused || r.Error.Code != wire.CodeForbidden {
			t.Errorf("%+v", r)
		}
	}
	var sum wire.Summary
	if err := json.Unmarshal([]byte(lines[len(lines)-1]), &sum); err != nil || sum != (wire.Summary{Schema: wire.SchemaSummary, OK: 2, Failed: 1}) || ok != 2 || failed != 1 {
		t.Errorf("%+v, %d, %d, %v", sum, ok, failed, err)
	}
	if len(p.machines) != 1 {
		t.Error(p.machines)
	}
}

func TestDeletedNothingWhenOneNameIsUnknown(t *testing.T) {
	p := newFake(t)
	if _, _, exit := p.run("delete", "web-1", "nope"); exit != fault.NotFound || len(p.asked) != 0 {
		t.Error(exit, p.asked)
	}
	// The same machine twice is deleted once.
	if _, errOut, exit := p.run("delete", "web-1", idWeb); exit != 0 || len(p.asked) != 1 {
		t.Error(exit, p.asked, errOut)
	}
}

func TestRenameRenamesTheLink(t *testing.T) {
	p := newFake(t)
	p.kept().SaveLink(t.Context(), state.Link{Machine: idWeb, Name: "web-1", Host: "h"})
	if _, errOut, exit := p.run("rename", "web-1", "web-9"); exit != 0 {
		t.Fatal(errOut)
	}
	if links, _ := p.kept().Links(); len(links) != 1 || links[0].Name != "web-9" {
		t.Error(links)
	}
}

// A secret goes to a new private file and nowhere else (R1).
func TestSecretsGoToANewPrivateFile(t *testing.T) {
	for _, args := range [][]string{
		{"token", "add", "ci", "--scope", "read", "--expires", "90d", "--json"},
		{"person", "add", "erin"},
	} {
		p := newFake(t)
		file := filepath.Join(p.home, "secret")
		out, errOut, exit := p.run(append(args, "--out", file)...)
		if exit != 0 || strings.Contains(out+errOut, "thesecret") {
			t.Fatal(exit, out, errOut)
		}
		st, err := os.Stat(file)
		if err != nil || st.Mode().Perm() != 0o600 {
			t.Fatal(st, err)
		}
		if b, _ := os.ReadFile(file); !strings.HasSuffix(string(b), "_thesecret\n") {
			t.Errorf("%q", b)
		}
		if _, _, exit := p.run(append(args, "--out", file)...); exit != fault.Usage || len(p.asked) != 1 {
			t.Errorf("exit %d, asked %v: a file that is there is not replaced, and no secret made for it", exit, p.asked)
		}
		// A file that cannot be written: the token does not stay.
		_, _, exit = p.run(append(args, "--out", filepath.Join(p.home, strings.Repeat("x", 300)))...)
		if exit == 0 || args[0] == "token" && p.asked[len(p.asked)-1] != "token rm ci" {
			t.Errorf("exit %d, asked %v", exit, p.asked)
		}
	}
}

func TestLogoutForgetsTheSessionWhateverThePlaneSays(t *testing.T) {
	p := newFake(t)
	p.Server.Close()
	if _, errOut, exit := p.run("logout"); exit != fault.Unreachable || !strings.Contains(errOut, "logged out here") {
		t.Error(exit, errOut)
	}
	if _, _, exit := p.run("whoami"); exit != fault.NeedPerson {
		t.Error(exit)
	}
	if _, _, exit := p.run("logout"); exit != 0 {
		t.Error(exit)
	}
}

func TestLinksTravelBetweenOperators(t *testing.T) {
	a := newFake(t)
	link := state.Link{Machine: idWeb, Name: "web-1", Host: "dana@web", SSHArgs: []string{"-p", "2222"}, Last: "ok", At: "2026-01-02T03:04:05Z"}
	if err := a.kept().SaveLink(t.Context(), link); err != nil {
		t.Fatal(err)
	}
	doc, _, exit := a.run("host", "export")
	if exit != 0 {
		t.Fatal(exit)
	}
	b := newFake(t)
	if _, errOut, exit := b.runWith(doc, "host", "import", "-"); exit != fault.Usage || !strings.Contains(errOut, a.URL) {
		t.Error("links of another plane were taken: ", exit, errOut)
	}
	doc = strings.ReplaceAll(doc, a.URL, b.URL)
	if _, errOut, exit := b.runWith(doc, "host", "import"); exit != 0 || !strings.Contains(errOut, "1 links imported") {
		t.Fatal(exit, errOut)
	}
	link.Last, link.At = "", ""
	if links, _ := b.kept().Links(); len(links) != 1 || links[0].Host != link.Host || links[0].Last != "" {
		t.Error(links)
	}
	if _, errOut, _ := b.runWith(doc, "host", "import"); !strings.Contains(errOut, "0 links imported, 1 were there") {
		t.Error(errOut)
	}
	for _, bad := range []string{"", "{}", doc + doc, strings.ReplaceAll(doc, "dana@web", "-oProxyCommand=x"), strings.ReplaceAll(doc, idWeb, "m_x")} {
		if _, _, exit := b.runWith(bad, "host", "import"); exit != fault.Usage {
			t.Errorf("%.60q: exit %d", bad, exit)
		}
	}
	if _, errOut, exit := b.run("host", "unlink", "web"); exit != fault.NotFound {
		t.Error("a prefix unlinked: ", exit, errOut)
	}
	if _, errOut, exit := b.run("host", "unlink", "web-1"); exit != 0 {
		t.Error(exit, errOut)
	}
}

// Waiting asks at a pace, outlives an outage, and ends with its limit.
func TestWaitIsPoliteAndPatient(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked, start := 0, time.Now()
		m := wire.Machine{ID: idWeb, Name: "web", Presence: wire.Absent}
		fetch := func(context.Context) (wire.Machine, error) {
			asked++
			switch d := time.Since(start); {
			case d < time.Minute:
				return m, nil
			case d < 2*time.Minute:
				return m, fault.New(fault.Unreachable, "plane_unreachable", "no plane")
			}
			return wire.Machine{ID: idWeb, Presence: wire.Present}, nil
		}
		got, err := await(t.Context(), m, waitTests["present"], "present", 0, fetch)
		if err != nil || got.Presence != wire.Present || asked > 40 {
			t.Error(got, err, asked)
		}
		start = time.Now()
		_, err = await(t.Context(), m, waitTests["stopped"], "stopped", 30*time.Second, fetch)
		if f := fault.Of(err); f == nil || f.Exit != fault.NotYet || time.Since(start) != 30*time.Second {
			t.Error(err, time.Since(start))
		}
		// Interrupted is not timed out.
		ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, context.Canceled)
		defer cancel()
		if _, err = await(ctx, m, waitTests["stopped"], "stopped", time.Hour, fetch); fault.Of(err).Exit == fault.NotYet {
			t.Error(err)
		}
		gone := func(context.Context) (wire.Machine, error) {
			return m, fault.New(fault.NotFound, wire.CodeDeleted, "deleted")
		}
		if _, err = await(t.Context(), m, waitTests["present"], "present", time.Hour, gone); fault.Of(err).Exit != fault.NotFound {
			t.Error(err)
		}
	})
}

func TestReadyIsOnlyAMachineThatIsThere(t *testing.T) {
	m := sampleMachines()[0]
	if !waitTests["ready"](m) {
		t.Error("ready")
	}
	for _, change := range []func(*wire.Machine){
		func(m *wire.Machine) { m.Presence = wire.Absent },
		func(m *wire.Machine) { m.Lifecycle.State = wire.LifecycleStopped },
		func(m *wire.Machine) { m.Readiness.State = wire.ReadinessUnknown }, // R15
		func(m *wire.Machine) { m.Readiness.State = wire.Blocked },
	} {
		not := m
		if change(&not); waitTests["ready"](not) {
			t.Errorf("%+v", not)
		}
	}
}

// A watch prints what changed and what left, and goes on through an outage.
func TestWatchPrintsWhatChanged(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		steps := 0
		fetch := func(context.Context) (wire.Machines, error) {
			steps++
			list := sampleMachines()
			switch steps {
			case 2: // only time went on
				list[0].LastCheckAgeS = ptr(6.2)
			case 3:
				return wire.Machines{}, fault.New(fault.Unreachable, "plane_unreachable", "no plane")
			case 4:
				list[0].Presence = wire.Absent
				list = list[:2]
			case 5:
				cancel()
				list[0].Presence = wire.Absent
			}
			return wire.Machines{Machines: list}, nil
		}
		var out, errOut strings.Builder
		c := &command.Call{IO: command.IO{Stdout: &out, Stderr: &errOut, Getenv: func(string) string { return "" }}}
		c.Context = flags(t, "jsonl")
		err := watchMachines(ctx, c, fetch)
		if fault.Of(err).Exit != fault.Interrupted || !strings.Contains(errOut.String(), "no plane; asking again") {
			t.Error(err, errOut.String())
		}
		golden(t, "watch-jsonl", out.String())
	})
}
