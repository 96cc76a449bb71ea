package e2e

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/agentd/fakeplane"
	"fleet.example/fleet/core/programs"
	"fleet.example/fleet/core/wire"
)

// withProbes puts fleet's own probes beside the agent.
func (m *machine) withProbes() {
	m.t.Helper()
	if err := programs.Plugins(filepath.Join(m.data, "v")); err != nil {
		m.t.Fatal(err)
	}
}

// TestClockADayOffIsABlockerAndNothingElse: between the two clocks a day is
// missing, either way; the plane's certificate is of the plane's time.
func TestClockADayOffIsABlockerAndNothingElse(t *testing.T) { // R22, R27, R30
	for name, ahead := range map[string]time.Duration{"behind": 24 * time.Hour, "ahead": -24 * time.Hour} {
		t.Run("machine "+name, func(t *testing.T) {
			t.Parallel()
			p, doc := fakeplane.StartAt(t, ahead)
			m := newMachine(t)
			m.install(doc)
			m.withProbes()
			m.start()
			p.Await(t, "generation 2", func(s seen) bool { return isCheck(s) && s.Generation == 2 })
			skewed := func(s seen) bool {
				if s.Body.Readiness == nil {
					return false
				}
				for _, b := range s.Body.Readiness.Blockers {
					if b.Code == "clock_skew" && b.Severity == wire.SeverityBlock && b.Detail != "" && b.Remedy != "" {
						return true
					}
				}
				return false
			}
			p.Await(t, "the blocker", skewed)
			p.Lock()
			n := p.Count()
			p.Unlock()
			p.Await(t, "more checks", func(seen) bool { return len(p.Seen()) >= n+5 })
			for _, s := range p.Seen()[n:] {
				if s.Status != 200 || s.Generation != 2 {
					t.Errorf("%+v", s)
				}
			}
			s := m.awaitStatus("an ok credential", func(s wire.AgentStatus) bool { return s.Credential == wire.CredentialOK })
			if s.Machine != doc.Machine || s.LastCheck == nil || !s.LastCheck.OK || !m.running() {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestPlaneOfAnotherAgeIsNoReasonToForget: with a clock so far off that the
// plane's certificate is not valid, the agent says so and waits.
func TestPlaneOfAnotherAgeIsNoReasonToForget(t *testing.T) { // R22
	p, doc := fakeplane.StartAt(t, 365*24*time.Hour)
	m := newMachine(t)
	m.install(doc)
	before, err := os.ReadFile(m.data + "/credential")
	if err != nil {
		t.Fatal(err)
	}
	m.start()
	m.awaitStatus("the clock to be named", func(s wire.AgentStatus) bool {
		return s.LastCheck != nil && !s.LastCheck.OK && strings.Contains(s.LastCheck.Error, "clock")
	})
	if after, err := os.ReadFile(m.data + "/credential"); err != nil || string(before) != string(after) || !m.running() || len(p.Seen()) > 0 {
		t.Errorf("%v, running %t, %d requests", err, m.running(), len(p.Seen()))
	}
}
