package e2e

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"sort"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/agentd/fakeplane"
	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/wire"
)

// statusKiB reads a figure of /proc/PID/status.
func statusKiB(t testing.TB, pid int, key string) float64 {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, key+":"); ok {
			n, err := strconv.ParseFloat(strings.Fields(v)[0], 64)
			if err != nil {
				t.Fatal(err)
			}
			return n
		}
	}
	t.Fatalf("no %s", key)
	return 0
}

// cpu is the process's user and system time.
func cpu(t testing.TB, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	f := strings.Fields(string(b[bytes.LastIndexByte(b, ')')+1:]))
	u, _ := strconv.Atoi(f[11])
	s, _ := strconv.Atoi(f[12])
	return time.Duration(u+s) * 10 * time.Millisecond
}

func median(v []float64) float64 {
	sort.Float64s(v)
	return v[len(v)/2]
}

// maxIdleRSS is agentd's promise, in KiB.
const maxIdleRSS = 16 << 10

func TestIdleAgentIsSmall(t *testing.T) {
	m, p, _ := installed(t)
	m.start()
	p.Await(t, "ten checks", func(s seen) bool { return s.Mark.Seq == 10 })
	rss := statusKiB(t, m.cmd.Process.Pid, "VmRSS")
	t.Logf("after ten checks: VmRSS %.0f KiB, RssAnon %.0f KiB, threads %.0f, CPU %v", rss,
		statusKiB(t, m.cmd.Process.Pid, "RssAnon"), statusKiB(t, m.cmd.Process.Pid, "Threads"), cpu(t, m.cmd.Process.Pid))
	if rss > maxIdleRSS {
		t.Fatalf("VmRSS is %.0f KiB, more than %d", rss, maxIdleRSS)
	}
}

func TestBinariesAreSmall(t *testing.T) {
	for name, limit := range map[string]int64{"agentd": 12 << 20, "agentd-shim": 4 << 20} {
		st, err := os.Stat(filepath.Join(bin, name))
		if err != nil {
			t.Fatal(err)
		}
		t.Logf("%s: %d bytes", name, st.Size())
		if st.Size() > limit {
			t.Errorf("%s has %d bytes, more than %d", name, st.Size(), limit)
		}
	}
}

// benchMachine is newMachine for a benchmark.
func benchMachine(b *testing.B) (*machine, *fakeplane.Plane) {
	b.Helper()
	p, doc := fakeplane.Start(b)
	m := newMachine(b)
	m.install(doc)
	m.start()
	return m, p
}

// BenchmarkExecTrue is one whole session over the agent's socket: create,
// stream, exit.
func BenchmarkExecTrue(b *testing.B) {
	m, _ := benchMachine(b)
	c := m.client()
	var took []float64
	for b.Loop() {
		began := time.Now()
		_, exit, err := c.Run(b.Context(), wire.SessionRequest{Argv: []string{"true"}}, agentclient.Attachment{})
		if err != nil || exit.Code != 0 {
			b.Fatal(exit, err)
		}
		took = append(took, float64(time.Since(began).Microseconds())/1000)
	}
	b.ReportMetric(median(took), "ms-median")
}

// BenchmarkShimMemory is what one waiting session costs.
func BenchmarkShimMemory(b *testing.B) {
	m, _ := benchMachine(b)
	c := m.client()
	var rss []float64
	for b.Loop() {
		s, err := c.Create(b.Context(), wire.SessionRequest{Argv: []string{"sleep", "1000"}})
		if err != nil {
			b.Fatal(err)
		}
		lock, err := os.ReadFile(m.data + "/sessions/" + s.ID + "/lock")
		if err != nil {
			b.Fatal(err)
		}
		pid, _ := strconv.Atoi(strings.TrimSpace(string(lock)))
		rss = append(rss, statusKiB(b, pid, "VmRSS"))
		c.Signal(b.Context(), s.ID, "KILL")
	}
	b.ReportMetric(median(rss), "KiB-median")
}

// BenchmarkStreamOutput is output through shim, spool, agentd and client.
func BenchmarkStreamOutput(b *testing.B) {
	m, _ := benchMachine(b)
	c := m.client()
	const size = 64 << 20
	b.SetBytes(size)
	for b.Loop() {
		out := &counter{}
		_, exit, err := c.Run(b.Context(), wire.SessionRequest{Argv: []string{"head", "-c", strconv.Itoa(size), "/dev/zero"}}, agentclient.Attachment{Stdout: out})
		if err != nil || exit.Code != 0 || out.n != size {
			b.Fatal(exit, err, out.n)
		}
	}
}

type counter struct{ n int }

func (c *counter) Write(p []byte) (int, error) { c.n += len(p); return len(p), nil }

// BenchmarkAgentIdle reports memory and processor time of an agent at rest.
func BenchmarkAgentIdle(b *testing.B) {
	m, p := benchMachine(b)
	p.Await(b, "twenty checks", func(s seen) bool { return s.Mark.Seq == 20 })
	began, n := cpu(b, m.cmd.Process.Pid), len(p.Seen())
	for b.Loop() {
		want := len(p.Seen()) + 10
		p.Await(b, "ten more checks", func(seen) bool { return len(p.Seen()) >= want })
	}
	b.ReportMetric(statusKiB(b, m.cmd.Process.Pid, "VmRSS"), "KiB-RSS")
	b.ReportMetric(float64((cpu(b, m.cmd.Process.Pid)-began).Microseconds())/float64(len(p.Seen())-n), "us-CPU/check")
}
