package swarm

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"io/fs"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/agentd/certificate"
	"fleet.example/fleet/agentd/check"
	"fleet.example/fleet/agentd/credential"
	agent "fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/wire"
)

// files is a directory in memory, credential.FS.
type files struct {
	mu sync.Mutex
	m  map[string][]byte
}

func (f *files) Read(name string) ([]byte, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.m[name]
	if !ok {
		return nil, fs.ErrNotExist
	}
	return b, nil
}

func (f *files) Write(name string, data []byte) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.m[name] = slices.Clone(data)
	return nil
}

func (f *files) Rename(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.m[from]
	if !ok {
		return fs.ErrNotExist
	}
	f.m[to] = b
	delete(f.m, from)
	return nil
}

func (f *files) Link(from, to string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	b, ok := f.m[from]
	if !ok {
		return fs.ErrNotExist
	}
	f.m[to] = b
	return nil
}

func (f *files) Remove(name string) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.m, name)
	return nil
}

func (f *files) Sync(string) error     { return nil }
func (f *files) SyncDir() error        { return nil }
func (f *files) Lock() (func(), error) { return func() {}, nil }
func newFiles() *files                 { return &files{m: map[string][]byte{}} }

// Machine is one of the swarm.
type Machine struct {
	ID    string
	Store *credential.Store
	Certs *certificate.Store

	heard  atomic.Int64 // when a check was answered last, in nanoseconds
	widest atomic.Int64 // the longest between two such, since Swarm.Mark
}

// Swarm is all of them.
type Swarm struct {
	Machines []*Machine
	// Answered and Failed count checks.
	Answered, Failed atomic.Int64

	transport *http.Transport
	stop      context.CancelFunc
	wg        sync.WaitGroup
}

// shared hides that idle connections can be closed: one machine that meets a
// dead connection does not close those of all the others.
type shared struct{ http.RoundTripper }

// Run starts the machines, spread over a while as a fleet's are.
func Run(p *Plane, connections int, over time.Duration) (*Swarm, error) {
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM([]byte(p.Roots)) {
		return nil, errors.New("the plane's root is no certificate")
	}
	ctx, cancel := context.WithCancel(context.Background())
	s := &Swarm{stop: cancel, transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13},
		MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections, MaxIdleConns: connections, ResponseHeaderTimeout: 15 * time.Second}}
	for i, doc := range p.machines {
		disk := newFiles()
		st := credential.Open(disk)
		if _, err := st.Install(&doc, false); err != nil {
			cancel()
			return nil, err
		}
		m := &Machine{ID: doc.Machine, Store: st, Certs: certificate.Open(disk, st.Machine)}
		s.Machines = append(s.Machines, m)
		loop := &check.Loop{Store: st, Log: hclog.NewNullLogger(), Body: func() wire.CheckBody {
			return wire.CheckBody{Name: "box", Version: "1", OS: "linux", Arch: "amd64", Readiness: &wire.CheckReadiness{Blockers: []wire.Finding{}}}
		}, Dial: func(pl credential.Plane, gate *wire.CredentialGate) (check.Plane, error) {
			return &counted{agent.Over(shared{s.transport}, pl, gate), s, m}, nil
		}, Rung: &check.Rung{Certs: m.Certs, Dial: func(pl credential.Plane, gate *wire.CredentialGate, url string, source func() *tls.Certificate) (check.Mutual, error) {
			c, err := agent.Mutual(pl, gate, url, source) // a connection of its own: it is what says who speaks
			return &counted{c, s, m}, err
		}}}
		loop.Init()
		wait := time.Duration(i) * over / time.Duration(len(p.machines))
		s.wg.Go(func() {
			select {
			case <-ctx.Done():
			case <-time.After(wait):
				loop.Run(ctx)
			}
		})
	}
	return s, nil
}

// Stop ends all machines.
func (s *Swarm) Stop() {
	s.stop()
	s.wg.Wait()
	s.transport.CloseIdleConnections()
}

// Mark begins to look for the widest gap.
func (s *Swarm) Mark() {
	for _, m := range s.Machines {
		m.widest.Store(0)
	}
}

// Widest is the longest that a machine was not answered for since Mark.
func (s *Swarm) Widest() time.Duration {
	var most int64
	for _, m := range s.Machines {
		most = max(most, m.widest.Load(), time.Now().UnixNano()-m.heard.Load())
	}
	return time.Duration(most)
}

// counted is a machine's client.
type counted struct {
	*agent.Client
	s *Swarm
	m *Machine
}

func (c *counted) Check(ctx context.Context, cred credential.Credential, mark wire.CheckMark, body []byte) (*wire.CheckAnswer, error) {
	a, err := c.Client.Check(ctx, cred, mark, body)
	if err != nil {
		c.s.Failed.Add(1)
		return nil, err
	}
	c.s.Answered.Add(1)
	now := time.Now().UnixNano()
	if last := c.m.heard.Swap(now); last != 0 {
		c.m.widest.Store(max(c.m.widest.Load(), now-last))
	}
	return a, nil
}
