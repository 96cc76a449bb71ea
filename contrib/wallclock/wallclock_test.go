package wallclock_test

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"fleet.example/fleet/contrib/swarm"
	"fleet.example/fleet/contrib/wallclock"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/programs"
	"fleet.example/fleet/core/wire"
)

var bin string

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, &bin, func(dir string) error {
		if err := wallclock.Build(context.Background(), dir, "agentd", "agentd-shim", "planed"); err != nil {
			return err
		}
		return programs.Plugins(dir)
	}))
}

// world is a plane and one machine that it admitted, each with its own clock.
type world struct {
	t       *testing.T
	plane   *swarm.Plane
	planes  *wallclock.Clock
	person  *planeclient.Client
	id      string
	clock   *wallclock.Clock
	data    string
	run     string
	log     programs.Output
	process *exec.Cmd
}

func newWorld(t *testing.T) *world {
	t.Helper()
	root, err := os.MkdirTemp("", "fw") // short: sockets live below it
	if err != nil {
		t.Fatal(err)
	}
	w := &world{t: t, data: filepath.Join(root, "d"), run: filepath.Join(root, "r")}
	t.Cleanup(func() {
		w.kill()
		if w.plane != nil {
			w.plane.Kill()
		}
		if t.Failed() {
			t.Logf("the agent's log:\n%s", w.log.String())
		}
		os.RemoveAll(root)
	})
	for _, d := range []string{w.data, filepath.Join(root, "p"), filepath.Join(root, "m")} {
		if err := os.MkdirAll(d, 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if w.planes, err = wallclock.New(filepath.Join(root, "p")); err != nil {
		t.Fatal(err)
	}
	if w.clock, err = wallclock.New(filepath.Join(root, "m")); err != nil {
		t.Fatal(err)
	}
	w.plane, err = swarm.Prepare(t.Context(), filepath.Join(bin, "planed"), filepath.Join(root, "plane"), 1, "--check-interval", "1s", "--test-floor", "200ms")
	if err != nil {
		t.Fatal(err)
	}
	w.plane.Env = append(os.Environ(), w.planes.Env())
	if err := w.plane.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if w.person, err = w.plane.Client(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.person.Close)
	doc := w.plane.Credentials()[0]
	w.id = doc.Machine
	if err := os.Symlink(bin, filepath.Join(w.data, "current")); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(w.data, "installation"), []byte(strings.Repeat("ab", 16)+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	b, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	if out, err := w.agentd(string(b), "credential", "install"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return w
}

func (w *world) agentd(stdin string, args ...string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(bin, "agentd"), append(args, "--data", w.data, "--runtime", w.run)...)
	cmd.Env = append(os.Environ(), w.clock.Env(), "HOME="+w.data)
	cmd.Stdin = strings.NewReader(stdin)
	var errOut bytes.Buffer
	cmd.Stderr = &errOut
	out, err := cmd.Output()
	if err != nil {
		out = errOut.Bytes()
	}
	return out, err
}

// start starts the machine's agent.
func (w *world) start() {
	w.t.Helper()
	w.process = exec.Command(filepath.Join(bin, "agentd"), "run", "--data", w.data, "--runtime", w.run)
	w.process.Env = append(os.Environ(), w.clock.Env(), "HOME="+w.data)
	w.process.Stderr = &w.log
	if err := w.process.Start(); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) kill() {
	if w.process != nil && w.process.Process != nil {
		w.process.Process.Kill()
		w.process.Wait()
		w.process = nil
	}
}

// set sets the machine's clock ahead of the true time by d.
func (w *world) set(d time.Duration) {
	w.t.Helper()
	if err := w.clock.Set(d); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) await(what string, ok func() bool) {
	w.t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			w.t.Fatalf("waited in vain for %s", what)
		}
	}
}

// row waits until what the plane shows of the machine satisfies ok.
func (w *world) row(what string, ok func(wire.Machine) bool) (m wire.Machine) {
	w.t.Helper()
	w.await(what, func() bool {
		got, err := w.person.Machine(w.t.Context(), w.id)
		m = got
		return err == nil && ok(m)
	})
	return m
}

// status waits until what the machine says of itself satisfies ok.
func (w *world) status(what string, ok func(wire.AgentStatus) bool) (s wire.AgentStatus) {
	w.t.Helper()
	w.await(what, func() bool {
		s = wire.AgentStatus{}
		out, err := w.agentd("", "status", "--json")
		return err == nil && json.Unmarshal(out, &s) == nil && ok(s)
	})
	return s
}

func skewed(b wire.Blocker) bool {
	return b.Code == "clock_skew" && b.Severity == wire.SeverityBlock && b.Detail != "" && b.Remedy != ""
}

func checkedIn(m wire.Machine) bool {
	return m.Presence == wire.Present && m.Accepting && m.Credential.Generation >= 2
}

const (
	day  = 24 * time.Hour
	year = 365 * day
)

// TestAWrongClockIsABlockerAndNeverALostIdentity: a machine starts with a clock
// that is wrong, and somebody puts it right. Where the plane's certificate is
// valid by that clock the plane hears of it; where it is not, the machine says
// so itself. It is the same machine with the same credential throughout.
func TestAWrongClockIsABlockerAndNeverALostIdentity(t *testing.T) { // R21, R22, R27, R30
	for name, off := range map[string]time.Duration{
		"10 minutes ahead": 10 * time.Minute, "10 minutes behind": -10 * time.Minute,
		"a day ahead": day, "a day behind": -day,
		"10 years ahead": 10 * year, "10 years behind": -10 * year,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.set(off)
			w.start()
			s := w.status("clock_skew at the machine", func(s wire.AgentStatus) bool { return slices.ContainsFunc(s.Blockers, skewed) })
			n := 0
			for _, b := range s.Blockers {
				if b.Code == "clock_skew" {
					n++
				}
			}
			if n != 1 || s.Machine != w.id || s.Credential == wire.CredentialRevoked {
				t.Errorf("%+v", s)
			}
			if reached := s.LastCheck != nil && s.LastCheck.OK; reached {
				m := w.row("clock_skew at the plane", func(m wire.Machine) bool {
					return slices.ContainsFunc(m.Readiness.Blockers, skewed) && m.Credential.Generation >= 2
				})
				if m.Presence != wire.Present || m.Accepting || m.Lifecycle.State != wire.LifecycleRunning {
					t.Errorf("%+v", m)
				}
			} else if off < 10*time.Minute && off > -10*time.Minute || !strings.Contains(s.LastCheck.Error, "clock") {
				t.Errorf("%+v", s.LastCheck)
			}
			// Nothing asked to be admitted again, and nothing was thrown away.
			all, err := w.person.Machines(t.Context(), wire.MachineFilter{})
			if err != nil || len(all.Machines) != 1 {
				t.Errorf("%+v, %v", all, err)
			}
			w.set(0)
			m := w.row("the machine to accept work", checkedIn)
			if m.ID != w.id || slices.ContainsFunc(m.Readiness.Blockers, func(b wire.Blocker) bool { return b.Code == "clock_skew" }) {
				t.Errorf("%+v", m)
			}
			s = w.status("the machine to be well", func(s wire.AgentStatus) bool {
				return s.LastCheck != nil && s.LastCheck.OK && !slices.ContainsFunc(s.Blockers, skewed)
			})
			if s.Machine != w.id || s.Credential != wire.CredentialOK {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestAClockThatStepsWhileARotationRunsHurtsNoRotation: in the middle of each
// step the clock is set, there and back by years, and in some the machine dies.
func TestAClockThatStepsWhileARotationRunsHurtsNoRotation(t *testing.T) { // R20, R21, R27
	for name, off := range map[string]time.Duration{
		"10 minutes": 10 * time.Minute, "a day": day, "10 years": 10 * year,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			before := w.row("the first rotation", checkedIn)
			next := filepath.Join(w.data, "credential.next")
			for i, by := range []time.Duration{off, -off, off / 2} {
				if _, err := w.person.Ask(t.Context(), w.id, "rotate"); err != nil {
					t.Fatal(err)
				}
				// The instant at which the next secret is on disk, and the plane may or
				// may not have heard of it. It may be gone before it is seen.
				w.await("the next secret", func() bool {
					_, err := os.Lstat(next)
					if err == nil {
						return true
					}
					m, err := w.person.Machine(t.Context(), w.id)
					return err == nil && m.Credential.Generation > before.Credential.Generation
				})
				sign := "the clocks went apart"
				if i == 1 {
					sign = "agentd runs"
				}
				seen := strings.Count(w.log.String(), sign)
				w.set(by)
				if i == 1 {
					w.kill()
					w.start()
				}
				// The agent sees the wrong clock before it is put right.
				w.await("the step to be noticed", func() bool { return strings.Count(w.log.String(), sign) > seen })
				w.set(0)
				before = w.row("the rotation to end", func(m wire.Machine) bool {
					return m.Credential.Generation > before.Credential.Generation && !m.Credential.NextPending && m.Requests.Rotate == nil && checkedIn(m)
				})
			}
			if s := w.status("an ok credential", func(s wire.AgentStatus) bool { return s.LastCheck != nil && s.LastCheck.OK }); s.Credential != wire.CredentialOK || s.Machine != w.id {
				t.Errorf("%+v", s)
			}
		})
	}
}

// TestAMachineThatResumesFromASnapshotWaitsForItsClock: the guest goes on with
// the clock of the snapshot, by which the plane's certificate is of the future;
// it says so, tries on, and is back at once when its clock is set.
func TestAMachineThatResumesFromASnapshotWaitsForItsClock(t *testing.T) { // R22, R27
	w := newWorld(t)
	w.start()
	w.row("the machine to be well", checkedIn)
	before, err := os.ReadFile(filepath.Join(w.data, "credential"))
	if err != nil {
		t.Fatal(err)
	}
	// Stopped, like a guest that is not scheduled; what it held open is gone.
	if err := w.process.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	if err := w.plane.Kill(); err != nil {
		t.Fatal(err)
	}
	w.set(-2 * year)
	if err := w.plane.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := w.process.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	s := w.status("the clock to be named", func(s wire.AgentStatus) bool {
		return s.LastCheck != nil && !s.LastCheck.OK && slices.ContainsFunc(s.Blockers, skewed)
	})
	if !strings.Contains(s.LastCheck.Error, "days behind") {
		t.Errorf("%+v", s.LastCheck)
	}
	if after, err := os.ReadFile(filepath.Join(w.data, "credential")); err != nil || !bytes.Equal(before, after) {
		t.Errorf("the credential was touched: %v", err)
	}
	w.set(0)
	w.status("the machine to be well again", func(s wire.AgentStatus) bool {
		return s.LastCheck != nil && s.LastCheck.OK && !slices.ContainsFunc(s.Blockers, skewed)
	})
	w.row("the machine to accept work", checkedIn)
}

// TestAPlaneWhoseClockIsWrongLosesNoMachine: the plane's clock steps; machines
// say that theirs differ, and go on checking and rotating.
func TestAPlaneWhoseClockIsWrongLosesNoMachine(t *testing.T) { // R19, R22, R27
	for name, off := range map[string]time.Duration{"10 minutes ahead": 10 * time.Minute, "10 minutes behind": -10 * time.Minute} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t)
			w.start()
			before := w.row("the machine to be well", checkedIn)
			if err := w.planes.Set(off); err != nil {
				t.Fatal(err)
			}
			m := w.row("the difference to be named", func(m wire.Machine) bool { return slices.ContainsFunc(m.Readiness.Blockers, skewed) })
			if m.Presence != wire.Present {
				t.Errorf("%+v", m)
			}
			if _, err := w.person.Ask(t.Context(), w.id, "rotate"); err != nil {
				t.Fatal(err)
			}
			w.row("a rotation", func(m wire.Machine) bool {
				return m.Credential.Generation > before.Credential.Generation && m.Presence == wire.Present
			})
			if err := w.planes.Set(0); err != nil {
				t.Fatal(err)
			}
			w.row("the machine to accept work", checkedIn)
		})
	}
}
