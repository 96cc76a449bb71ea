package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

var errEnough = errors.New("that is enough")

// TestFrontWatch is the command as somebody uses it: what is there, what changes,
// and the end. // R35
func TestFrontWatch(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	dir := m.root + "/watched"
	if err := os.MkdirAll(dir+"/a", 0o700); err != nil {
		t.Fatal(err)
	}
	var got []string
	act := writer(func(p []byte) (int, error) {
		var ev wire.WatchEvent
		if err := json.Unmarshal(p, &ev); err != nil || ev.Schema != wire.SchemaWatch || ev.Machine != "m_x" || ev.Token == "" {
			return 0, fmt.Errorf("%w: %s", err, p)
		}
		line := ev.Event + " " + string(ev.From) + " " + string(ev.Path)
		got = append(got, strings.TrimSpace(line))
		switch line {
		case "ready  ":
			return len(p), os.Mkdir(dir+"/new", 0o700)
		case "created  new":
			return len(p), os.Rename(dir+"/new", dir+"/a/\xff")
		case "renamed new a/\xff":
			return len(p), os.Remove(dir + "/a/\xff")
		case "removed  a/\xff":
			return len(p), os.Rename(dir, dir+"-moved")
		}
		return len(p), nil
	})
	errOut, exit := m.frontTo(act, target{m}, "", "file", "watch", "--json", "--initial", "box:"+dir)
	if want := []string{"exists  a", "ready", "created  new", "renamed new a/\xff", "removed  a/\xff", "ended"}; !slices.Equal(got, want) || exit != fault.NotFound ||
		!strings.Contains(errOut, wire.CodeWatchGone) {
		t.Errorf("%q, exit %d: %s", got, exit, errOut)
	}
	for words, want := range map[string]int{"watch box:" + dir: 5, "watch box": 2, "watch box:/dev/null/x": 9} {
		if out, errOut, exit := m.front("", append([]string{"file"}, strings.Fields(words)...)...); exit != want {
			t.Errorf("%s: exit %d: %s%s", words, exit, out, errOut)
		}
	}
}

// TestAWatchGoesOnAfterEveryCut: each event once and in order, whatever becomes of
// the connections; and when the agent itself is another one, an overflow says that
// something may be missing. // R35
func TestAWatchGoesOnAfterEveryCut(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	dir := m.root + "/watched"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	d := &cutting{machine: m, cuts: []int64{3000, 10, 400, 20_000, 60_000, 1}}
	c := agentclient.New(d)
	defer c.Close()
	const n = 3000
	name := func(i int) wire.Bytes { return wire.Bytes(fmt.Sprintf("%04d-%s", i, strings.Repeat("n", 40))) }
	seen, notices := 0, []string{}
	err := c.Watch(ctx(t), agentclient.Watching{Path: dir, Notice: func(text string) { notices = append(notices, text) }}, func(ev wire.WatchEvent) error {
		switch {
		case ev.Event == wire.WatchReady:
			for i := range n {
				if err := os.Symlink("x", dir+"/"+string(name(i))); err != nil {
					return err
				}
			}
		case ev.Event != wire.WatchCreated || ev.Path != name(seen):
			return fmt.Errorf("after %d events: %+v", seen, ev)
		default:
			if seen++; seen == n {
				return errEnough
			}
		}
		return nil
	})
	if !errors.Is(err, errEnough) || len(d.cuts) != 0 || !slices.Contains(notices, "reconnected") {
		t.Fatalf("%v; %d cuts were not made; %q", err, len(d.cuts), notices)
	}
	var events []string
	err = m.client().Watch(ctx(t), agentclient.Watching{Path: dir, Initial: true}, func(ev wire.WatchEvent) error {
		if ev.Event != wire.WatchExists {
			events = append(events, strings.TrimSpace(ev.Event+" "+ev.Reason))
		}
		switch {
		case len(events) == 1 && ev.Event == wire.WatchReady:
			m.kill()
			if err := os.Mkdir(dir+"/meanwhile", 0o700); err != nil {
				return err
			}
			m.start()
		case ev.Event == wire.WatchReady:
			return os.Mkdir(dir+"/after", 0o700)
		case ev.Event == wire.WatchCreated:
			return errEnough
		}
		return nil
	})
	if want := []string{"ready", "overflow resume", "ready", "created"}; !errors.Is(err, errEnough) || !slices.Equal(events, want) {
		t.Errorf("%v: %q", err, events)
	}
}

// TestAnAgentEndsWhileItIsWatched, and who watches is told.
func TestAnAgentEndsWhileItIsWatched(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	err := m.client().Watch(ctx(t), agentclient.Watching{Path: m.root, Shallow: true, Patience: -1}, func(ev wire.WatchEvent) error {
		if ev.Event != wire.WatchReady {
			return nil
		}
		if exit := m.term(); exit != 0 {
			return fmt.Errorf("exit %d", exit)
		}
		return nil
	})
	if fault.Of(err).Exit != fault.Unreachable {
		t.Error(err)
	}
}

// TestAHundredThousandChanges at once: each comes, or it is said that some did not,
// and then the whole comes anew. // R35
func TestAHundredThousandChanges(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	const n = 100_000
	came, overflows, took := burst(t, m, n)
	if came != n {
		t.Errorf("%d of %d names are known", came, n)
	}
	t.Logf("%d changes: %d overflows, the last one came %v after the first was made", n, overflows, took)
	if rss := statusKiB(t, m.cmd.Process.Pid, "VmHWM"); rss > 96<<10 {
		t.Errorf("the agent took %.0f KiB", rss)
	}
}

// burst makes n names as fast as the system does and counts those that a client
// knows of in the end.
func burst(t testing.TB, m *machine, n int) (came, overflows int, took time.Duration) {
	t.Helper()
	dir, err := os.MkdirTemp(m.root, "burst")
	if err != nil {
		t.Fatal(err)
	}
	made := make(chan error, 1)
	var began time.Time
	known := map[wire.Bytes]bool{}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	err = m.client().Watch(ctx, agentclient.Watching{Path: dir, Initial: true}, func(ev wire.WatchEvent) error {
		switch ev.Event {
		case wire.WatchReady:
			if began.IsZero() {
				began = time.Now()
				go func() {
					for i := range n {
						if err := unix.Mknod(fmt.Sprintf("%s/%06d", dir, i), unix.S_IFREG|0o600, 0); err != nil {
							made <- err
							return
						}
					}
					made <- nil
				}()
			}
		case wire.WatchOverflow:
			clear(known)
			overflows++
		case wire.WatchCreated, wire.WatchExists:
			known[ev.Path] = true
		}
		if len(known) == n {
			took = time.Since(began)
			return errEnough
		}
		return nil
	})
	if err := errors.Join(<-made, err); !errors.Is(err, errEnough) {
		t.Fatal(err)
	}
	return len(known), overflows, took
}

// BenchmarkWatchNotice is the time from a change to its notice at a client on the
// agent's socket.
func BenchmarkWatchNotice(b *testing.B) {
	m, _ := benchMachine(b)
	dir := m.root + "/watched"
	if err := os.MkdirAll(dir+"/a/b/c", 0o700); err != nil {
		b.Fatal(err)
	}
	var took []float64
	var began time.Time
	i := 0
	change := func() error {
		i++
		began = time.Now()
		return os.Mkdir(fmt.Sprintf("%s/a/b/c/%d", dir, i), 0o700)
	}
	err := m.client().Watch(b.Context(), agentclient.Watching{Path: dir}, func(ev wire.WatchEvent) error {
		if ev.Event == wire.WatchCreated {
			took = append(took, float64(time.Since(began).Microseconds())/1000)
			time.Sleep(time.Millisecond) // one at a time
		}
		if !b.Loop() {
			return errEnough
		}
		return change()
	})
	if !errors.Is(err, errEnough) {
		b.Fatal(err)
	}
	slices.Sort(took)
	b.ReportMetric(took[len(took)/2], "ms-median")
	b.ReportMetric(took[len(took)*99/100], "ms-p99")
}

// BenchmarkWatchBurst is a hundred thousand changes at once.
func BenchmarkWatchBurst(b *testing.B) {
	m, _ := benchMachine(b)
	const n = 100_000
	lost := 0
	var took time.Duration
	for b.Loop() {
		_, overflows, t := burst(b, m, n)
		lost, took = lost+overflows, took+t
	}
	b.ReportMetric(float64(lost)/float64(b.N), "overflows")
	b.ReportMetric(float64(n*b.N)/took.Seconds(), "changes/s")
}
