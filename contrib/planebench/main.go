// Command planebench measures what a check costs the plane, on the real planed
// binary:
//
//   - server CPU per check, against a Go HTTPS handler that reads the body and
//     does nothing, over the same number of kept connections, in alternating
//     rounds of one run;
//   - memory (RssAnon) per machine over an empty plane.
//
// It prints one JSON document. The server is a process of its own, so that the
// client's work is not counted.
package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store/bolt"
)

const body = `{"boot":"7d9f2c1e-5b0a-4e0f-9f7e-0d1c2b3a4f5e","name":"box","version":"1.0.0","os":"linux","arch":"amd64","scope":"user","service_manager":"systemd","lifecycle":{"state":"running","reason":null},"readiness":{"blockers":[{"code":"linger_disabled","severity":"warn","detail":"sessions end at logout","remedy":"loginctl enable-linger"}]},"have":{"gate":1,"url":1,"trust":1}}`

// result is the document.
type result struct {
	Schema        string  `json:"schema"`
	Machines      int     `json:"machines"`
	Connections   int     `json:"connections"`
	NoopMicros    float64 `json:"noop_cpu_us"`  // medians of the rounds
	CheckMicros   float64 `json:"check_cpu_us"` //
	Ratio         float64 `json:"ratio"`        // median of each round's own ratio
	ChecksPerS    float64 `json:"checks_per_s"`
	EmptyRSS      int64   `json:"empty_rss_anon_bytes"`
	FullRSS       int64   `json:"full_rss_anon_bytes"`
	BytesPerOne   float64 `json:"rss_anon_bytes_per_machine"`
	FirstChecksPS float64 `json:"first_checks_per_s"` // each one durable
	StoreBytes    int64   `json:"store_bytes"`
}

func main() {
	noop := flag.String("noop", "", "serve the empty handler at this address, with the chain and key in the files given as arguments")
	planed := flag.String("planed", "", "the planed binary (default: built)")
	machines := flag.Int("machines", 100_000, "machines")
	conns := flag.Int("connections", 64, "kept connections")
	rounds := flag.Int("rounds", 9, "rounds")
	each := flag.Duration("each", 2*time.Second, "length of a round's half")
	flag.Parse()
	if *noop != "" {
		serveNoop(*noop, flag.Arg(0), flag.Arg(1))
		return
	}
	r, err := bench(*planed, *machines, *conns, *rounds, *each)
	if err != nil {
		log.Fatal(err)
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	enc.Encode(r)
}

func serveNoop(addr, cert, key string) {
	srv := &http.Server{
		Addr: addr,
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
		}),
		TLSConfig: &tls.Config{MinVersion: tls.VersionTLS13, NextProtos: []string{"http/1.1"}},
	}
	log.Fatal(srv.ListenAndServeTLS(cert, key))
}

type credential struct {
	id     string
	secret secret.Text
}

func bench(planed string, machines, conns, rounds int, each time.Duration) (*result, error) {
	dir, err := os.MkdirTemp("", "planebench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	if planed == "" {
		planed = filepath.Join(dir, "planed")
		if out, err := exec.Command("go", "build", "-o", planed, "fleet.example/fleet/cmd/planed").CombinedOutput(); err != nil {
			return nil, fmt.Errorf("cannot build planed: %s", out)
		}
	}
	r := &result{Schema: "fleet.planebench/v1", Machines: machines, Connections: conns}

	empty, err := startPlane(planed, filepath.Join(dir, "empty"), 0)
	if err != nil {
		return nil, err
	}
	if err := empty.checks(conns, nil, time.Second); err != nil {
		return nil, err
	}
	r.EmptyRSS, err = settle(empty.pid())
	empty.stop()
	if err != nil {
		return nil, err
	}

	full, err := startPlane(planed, filepath.Join(dir, "full"), machines)
	if err != nil {
		return nil, err
	}
	defer full.stop()
	began := time.Now()
	if err := full.each(conns); err != nil {
		return nil, err
	}
	r.FirstChecksPS = float64(machines) / time.Since(began).Seconds()
	if err := full.each(conns); err != nil {
		return nil, err
	}
	if r.FullRSS, err = settle(full.pid()); err != nil {
		return nil, err
	}
	r.BytesPerOne = float64(r.FullRSS-r.EmptyRSS) / float64(machines)
	if st, err := os.Stat(filepath.Join(dir, "full", datadir.FileStore)); err == nil {
		r.StoreBytes = st.Size()
	}

	none, err := startNoop(dir, full.dir)
	if err != nil {
		return nil, err
	}
	defer none.stop()
	var noops, checks, ratios, rates []float64
	for range rounds {
		n, _, err := measure(none, conns, each)
		if err != nil {
			return nil, err
		}
		c, rate, err := measure(full, conns, each)
		if err != nil {
			return nil, err
		}
		noops, checks, ratios, rates = append(noops, n), append(checks, c), append(ratios, c/n), append(rates, rate)
	}
	r.NoopMicros, r.CheckMicros, r.Ratio, r.ChecksPerS = median(noops), median(checks), median(ratios), median(rates)
	return r, nil
}

func median(v []float64) float64 {
	v = slices.Sorted(slices.Values(v))
	return v[len(v)/2]
}

// target is a server process with machines to check as.
type target struct {
	cmd   *exec.Cmd
	addr  string
	roots *x509.CertPool
	creds []credential
	dir   string
	seq   atomic.Uint64
	done  atomic.Int64
}

func (t *target) pid() int { return t.cmd.Process.Pid }

func (t *target) stop() {
	t.cmd.Process.Signal(syscall.SIGTERM)
	t.cmd.Wait()
}

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

func startPlane(planed, dir string, machines int) (*target, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	t := &target{addr: addr, dir: dir, roots: x509.NewCertPool()}
	if out, err := exec.Command(planed, "init", "--data", dir, "--url", "https://"+addr).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s", out)
	}
	pem, err := os.ReadFile(filepath.Join(dir, datadir.FileRootCert))
	if err != nil {
		return nil, err
	}
	t.roots.AppendCertsFromPEM(pem)
	if t.creds, err = admit(filepath.Join(dir, datadir.FileStore), machines); err != nil {
		return nil, err
	}
	t.cmd = exec.Command(planed, "serve", "--data", dir, "--listen", addr)
	t.cmd.Stderr = os.Stderr
	return t, t.start()
}

func startNoop(dir, plane string) (*target, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	p, err := datadir.Load(plane)
	if err != nil {
		return nil, err
	}
	authority, err := datadir.Authority(plane, p)
	if err != nil {
		return nil, err
	}
	cert, key, err := writeLeaf(dir, authority)
	if err != nil {
		return nil, err
	}
	t := &target{addr: addr, roots: x509.NewCertPool(), creds: []credential{{wire.NewMachineID(), secret.New("fm_")}}}
	t.roots.AddCert(authority.Root)
	t.cmd = exec.Command(self, "-noop", addr, cert, key)
	t.cmd.Stderr = os.Stderr
	return t, t.start()
}

func (t *target) start() error {
	if err := t.cmd.Start(); err != nil {
		return err
	}
	for range 1000 {
		c, err := net.Dial("tcp", t.addr)
		if err == nil {
			return c.Close()
		}
		time.Sleep(10 * time.Millisecond)
	}
	return fmt.Errorf("%s does not answer", t.cmd.Path)
}

// admit fills a store before the plane opens it.
func admit(path string, n int) ([]credential, error) {
	creds := make([]credential, n)
	if n == 0 {
		return nil, nil
	}
	st, err := bolt.Open(path, bolt.Options{Offline: true})
	if err != nil {
		return nil, err
	}
	var wg sync.WaitGroup
	var next atomic.Int64
	errs := make(chan error, 256)
	for range 256 {
		wg.Go(func() {
			for i := next.Add(1) - 1; i < int64(n); i = next.Add(1) - 1 {
				s := secret.New("fm_")
				a, err := st.Admit(context.Background(), machine.Admission{
					By:           machine.By{Actor: "person:dana", Person: "dana"},
					Installation: secret.New("").Digest(), Credential: s.Digest(),
					Labels: map[string]string{"env": "prod"},
				}, time.Now())
				if err != nil {
					errs <- err
					return
				}
				creds[i] = credential{a.Row.ID, s}
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return nil, err
	default:
	}
	return creds, st.Close()
}

// conn is one kept connection.
type conn struct {
	c net.Conn
	r *bufio.Reader
	b []byte
}

func (t *target) dial() (*conn, error) {
	c, err := tls.Dial("tcp", t.addr, &tls.Config{RootCAs: t.roots, MinVersion: tls.VersionTLS13})
	if err != nil {
		return nil, err
	}
	return &conn{c: c, r: bufio.NewReader(c)}, nil
}

// check sends one check and reads the answer, as cheaply as a client can.
func (c *conn) check(t *target, cred credential) (status int, err error) {
	c.c.SetDeadline(time.Now().Add(30 * time.Second))
	mark := wire.CheckMark{Instance: "bench", Seq: t.seq.Add(1), Mark: "abcdefghijklmnop", Clock: time.Now()}
	b := append(c.b[:0], "POST /v1/check HTTP/1.1\r\nHost: "...)
	b = append(b, t.addr...)
	b = append(b, "\r\nUser-Agent: agentd/1.0.0\r\nAuthorization: Bearer "...)
	b = append(b, cred.id...)
	b = append(b, '.')
	b = append(b, cred.secret.Reveal()...)
	b = append(b, "\r\nFleet-Check: "...)
	b = append(b, mark.String()...)
	b = append(b, "\r\nContent-Type: application/json\r\nContent-Length: "...)
	b = strconv.AppendInt(b, int64(len(body)), 10)
	b = append(b, "\r\n\r\n"...)
	b = append(b, body...)
	c.b = b
	if _, err := c.c.Write(b); err != nil {
		return 0, err
	}
	line, err := c.r.ReadSlice('\n')
	if err != nil {
		return 0, err
	}
	status, _ = strconv.Atoi(string(line[9:12]))
	length := 0
	for {
		if line, err = c.r.ReadSlice('\n'); err != nil {
			return 0, err
		}
		if len(line) <= 2 {
			break
		}
		if v, ok := strings.CutPrefix(string(line), "Content-Length: "); ok {
			length, _ = strconv.Atoi(strings.TrimSpace(v))
		}
	}
	_, err = c.r.Discard(length)
	return status, err
}

// each has every machine check once.
func (t *target) each(conns int) error {
	var next atomic.Int64
	return t.parallel(conns, func(c *conn) error {
		for i := next.Add(1) - 1; i < int64(len(t.creds)); i = next.Add(1) - 1 {
			if status, err := c.check(t, t.creds[i]); err != nil || status != http.StatusOK {
				return fmt.Errorf("check: %d %v", status, err)
			}
		}
		return nil
	})
}

// checks has machines check for a while; without creds, an unknown one does.
func (t *target) checks(conns int, creds []credential, d time.Duration) error {
	if len(creds) == 0 {
		creds = []credential{{wire.NewMachineID(), secret.New("fm_")}}
	}
	end := time.Now().Add(d)
	var next atomic.Int64
	return t.parallel(conns, func(c *conn) error {
		for time.Now().Before(end) {
			if _, err := c.check(t, creds[int(next.Add(1))%len(creds)]); err != nil {
				return err
			}
			t.done.Add(1)
		}
		return nil
	})
}

func (t *target) parallel(n int, f func(*conn) error) error {
	var wg sync.WaitGroup
	errs := make(chan error, n)
	for range n {
		wg.Go(func() {
			c, err := t.dial()
			if err == nil {
				err = f(c)
				c.c.Close()
			}
			if err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	select {
	case err := <-errs:
		return err
	default:
		return nil
	}
}

// measure returns the server's CPU in microseconds a request, and the rate.
// The handshakes fall before what is measured.
func measure(t *target, conns int, d time.Duration) (cpu, rate float64, err error) {
	var before time.Duration
	var count int64
	var began time.Time
	var once sync.Once
	var ready sync.WaitGroup
	ready.Add(conns)
	var next atomic.Int64
	var end time.Time
	err = t.parallel(conns, func(c *conn) error {
		_, err := c.check(t, t.creds[0])
		ready.Done()
		if err != nil {
			return err
		}
		ready.Wait()
		once.Do(func() {
			before, count, began = cpuOf(t.pid()), t.done.Load(), time.Now()
			end = began.Add(d)
		})
		for time.Now().Before(end) {
			if _, err := c.check(t, t.creds[int(next.Add(1))%len(t.creds)]); err != nil {
				return err
			}
			t.done.Add(1)
		}
		return nil
	})
	spent, did := cpuOf(t.pid())-before, t.done.Load()-count
	if err == nil && did == 0 {
		err = fmt.Errorf("nothing was answered")
	}
	return float64(spent.Microseconds()) / float64(max(1, did)), float64(did) / time.Since(began).Seconds(), err
}

// cpuOf is the CPU time a process has had, from the scheduler's own count in
// nanoseconds.
func cpuOf(pid int) time.Duration {
	var total time.Duration
	tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
	for _, f := range tasks {
		b, err := os.ReadFile(f)
		if err != nil {
			continue
		}
		ns, _ := strconv.ParseInt(strings.Fields(string(b))[0], 10, 64)
		total += time.Duration(ns)
	}
	return total
}

// settle waits until a process has stopped shrinking or growing and returns
// its anonymous memory.
func settle(pid int) (int64, error) {
	var last int64
	for range 20 {
		now, err := rssAnon(pid)
		if err != nil {
			return 0, err
		}
		if d := now - last; d > -64<<10 && d < 64<<10 {
			return now, nil
		}
		last = now
		time.Sleep(500 * time.Millisecond)
	}
	return last, nil
}

func rssAnon(pid int) (int64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if v, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			kb, err := strconv.ParseInt(strings.Fields(v)[0], 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("no RssAnon in /proc/%d/status", pid)
}
