package model

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/gate"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/signed"
	"fleet.example/fleet/planed/store/bolt"
)

var owner = machine.By{Actor: "person:dana", Person: "dana", Owner: true}

// plane is planed's interface over its store, in a file that a kill leaves as
// it is.
type plane struct {
	dir    string
	opened int
	store  *bolt.Store
	under  sync.WaitGroup // requests that it works on

	mu      sync.Mutex // of what requests look at
	handler http.Handler
	down    bool

	// Of a plane with a gate; see gate_test.go.
	gateFile string
	gate     *gate.Gate
	engine   *rotation.Engine
	mortal   mortal

	// Of a plane that moves; see place_test.go.
	moves bool
	place *signed.URL
}

func newPlane(dir string) (*plane, error) {
	p := &plane{dir: dir}
	return p, p.open(true)
}

func newGatedPlane(dir string) (*plane, error) {
	p := &plane{dir: dir, gateFile: filepath.Join(dir, "gate")}
	if err := gate.Make(p.gateFile, 1); err != nil {
		return nil, err
	}
	return p, p.open(true)
}

func (p *plane) path() string { return filepath.Join(p.dir, "db"+strconv.Itoa(p.opened)) }

func (p *plane) open(create bool) error {
	st, err := bolt.Open(p.path(), bolt.Options{Create: create, FlushEvery: 10 * time.Minute})
	if err != nil {
		return err
	}
	p.store = st
	// It is down and works on nothing, so nobody looks. The mutex is held for
	// what no clock has a part in: who waits for one keeps synctest's still.
	if p.gateFile != "" {
		if err := p.openGate(); err != nil {
			return err
		}
	}
	if p.moves {
		if err := p.openPlace(); err != nil {
			return err
		}
	}
	a := api.New(api.Config{Gate: p.gate, Place: p.place, Store: st, URL: "https://plane.example", Policy: machine.Policy{Interval: 30 * time.Second},
		Version: "1", Log: hclog.NewNullLogger(), Now: time.Now})
	if p.engine != nil {
		a.Rotate(p.engine)
	}
	h := a.Handler()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.handler = h
	return nil
}

// kill ends the plane at an instant and starts it again on what it left.
func (p *plane) kill() error {
	was := p.setDown(true)
	defer p.setDown(was)
	p.under.Wait()
	b, err := os.ReadFile(p.path())
	if err != nil {
		return err
	}
	old := p.path()
	if err := errors.Join(p.store.Close(), os.Remove(old)); err != nil {
		return err
	}
	p.opened++
	if err := os.WriteFile(p.path(), b, 0o600); err != nil {
		return err
	}
	return p.open(false)
}

func (p *plane) setDown(down bool) (was bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	was, p.down = p.down, down
	return was
}

// message is one request of a machine's, which the network may hold, and
// deliver again.
type message struct {
	method string
	path   string
	header http.Header
	body   []byte
	host   string // "": the plane's first
}

// deliver returns nil if the plane is down.
func (p *plane) deliver(m message) *http.Response {
	p.mu.Lock()
	h, down := p.handler, p.down
	if down {
		p.mu.Unlock()
		return nil
	}
	p.under.Add(1)
	p.mu.Unlock()
	defer p.under.Done()
	r, err := http.NewRequestWithContext(context.Background(), m.method, "https://"+cmp.Or(m.host, "plane.example")+m.path, bytes.NewReader(m.body))
	if err != nil {
		panic(err)
	}
	r.Header = m.header.Clone()
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, r)
	return rec.Result()
}
