package model

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"flag"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"golang.org/x/crypto/ssh"
	"pgregory.net/rapid"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/audit"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/signed"
)

// dana signs where the plane is; the plane never has her key.
var dana = func() ssh.Signer {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		panic(err)
	}
	s, err := ssh.NewSignerFromKey(key)
	if err != nil {
		panic(err)
	}
	return s
}()

var places = []string{"https://plane.example", "https://b.example", "https://c.example:8443"}

func hostOf(url string) string { return strings.TrimPrefix(url, "https://") }

// dyingPlace may die before and after each of its steps.
type dyingPlace struct {
	*signed.URL
	m *mortal
}

func (d dyingPlace) Make(version int64) (rotation.Holding, error) {
	if d.m.dies() {
		return rotation.Holding{}, errDead
	}
	return d.URL.Make(version)
}

func (d dyingPlace) Prove(ctx context.Context, retired int64) error {
	err := d.URL.Prove(ctx, retired)
	if d.m.dies() {
		return errDead
	}
	return err
}

func (d dyingPlace) Erase(keep int64) error {
	if d.m.dies() {
		return errDead
	}
	err := d.URL.Erase(keep)
	if d.m.dies() {
		return errDead
	}
	return err
}

// openPlace is what planed does at its start.
func (p *plane) openPlace() error {
	p.mortal = mortal{}
	file, err := datadir.Load(p.dir)
	if err != nil {
		return err
	}
	p.place = signed.NewURL(p.dir, file, p.store)
	p.place.Present = func(ctx context.Context, host string) (bool, error) {
		p.mu.Lock()
		h := p.handler
		p.mu.Unlock()
		return api.PresentAt(ctx, h, "", host)
	}
	p.engine = &rotation.Engine{Kind: wire.MaterialURL, Store: dyingStore{p.store, &p.mortal}, Replica: "plane", Flat: gatePolicy.Flat(),
		Log: hclog.NewNullLogger(), Now: time.Now, Material: dyingPlace{p.place, &p.mortal}}
	p.engine.Init()
	return p.engine.Reload(context.Background())
}

func newMovingWorld(dir string, boxes int) (*world, error) {
	b, err := json.Marshal(datadir.Plane{Schema: "fleet.plane-file/v1", URL: places[0], Owner: "dana"})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, datadir.FilePlane), b, 0o600)
	}
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, moves: true}
	if err := p.open(true); err != nil {
		return nil, err
	}
	w := worldOf(p, boxes)
	w.net.doors = map[string]bool{}
	return w, nil
}

// TestNoScheduleLosesAMachineToAMove: whatever is killed, lost, full, asleep or
// gone while the plane moves and moves back, no machine that nobody named with
// leave is ever left where it is refused, and in the end all are where the plane
// is. // R26, R37
func TestNoScheduleLosesAMachineToAMove(t *testing.T) {
	base := memory(t)
	if usual {
		n := 250
		if testing.Short() {
			n = 25
		}
		flag.Set("rapid.checks", strconv.Itoa(n))
	}
	for i := range parts {
		t.Run(strconv.Itoa(i+1), func(t *testing.T) {
			t.Parallel()
			rapid.Check(t, func(r *rapid.T) { schedule(t, r, base, newMovingWorld, runMove) })
		})
	}
}

// moveRun is one schedule.
type moveRun struct{ *rotating }

// sign makes a person's statement.
func (g *moveRun) sign(version int64, url string) *rotation.Signing {
	g.r.Helper()
	b, err := json.Marshal(wire.Statement{Schema: wire.SchemaStatement, Kind: wire.MaterialURL, Version: version, Planes: g.plane.place.Own(), URL: url,
		SignedAt: wire.Time{Time: time.Now()}})
	g.must(err)
	sig, err := artifact.Sign(b, dana, wire.NamespaceMaterial)
	g.must(err)
	_, s, err := signed.Read(wire.MaterialURL, rotation.Signed{Statement: string(b), Signature: string(sig)})
	g.must(err)
	return &s
}

// before is the URL that an abort goes back to.
func (g *moveRun) before(s rotation.State) string {
	i := slices.IndexFunc(g.plane.place.Own(), func(url string) bool {
		return s.Run != nil && secret.Digest(sha256.Sum256([]byte(url))) == s.Run.FromDigest
	})
	if i < 0 {
		return ""
	}
	return g.plane.place.Own()[i]
}

// owners come to every place that is open.
func (g *moveRun) owners() {
	for _, url := range places {
		if !g.net.shutDoor(hostOf(url)) {
			g.plane.place.Heard(hostOf(url))
		}
	}
}

// planeOf is what an image of a disk says of the plane.
func (g *moveRun) planeOf(image map[string]*inode) (p wire.CredentialPlane) {
	g.r.Helper()
	f := image[credential.PlaneFile]
	if f == nil {
		g.r.Fatal("plane.json is gone")
	}
	g.must(json.Unmarshal([]byte(f.data), &p))
	return p
}

func (g *moveRun) holds() {
	g.r.Helper()
	for _, b := range g.boxes {
		for _, image := range b.disk.images() {
			p := g.planeOf(image)
			if _, refused := g.plane.place.Judge(hostOf(p.URL)); refused && !g.left[b.id] {
				g.r.Fatalf("%s is at %s, version %d, where it is refused, and nobody left it: %+v", b.id, p.URL, p.URLVersion, g.state().Run)
			}
		}
	}
}

func runMove(r *rapid.T, w *world) {
	g := &moveRun{newRotating(r, w, wire.MaterialURL, rotation.ErrOther, rotation.ErrUnsigned)}
	keys := artifact.Signers{dana.PublicKey()}.Format()
	for _, b := range w.boxes {
		g.must(w.install(b, 0))
		g.must(credential.Replace(&process{disk: b.disk}, credential.SignersFile, keys))
		w.start(b)
	}
	g.repeat(24, g.owners, g.holds, actions{
		"move": func(r *rapid.T) {
			to := rapid.SampledFrom(places).Draw(r, "to")
			if s := g.state(); !s.Running() && to != w.plane.place.Own()[0] {
				b := rotation.Begin{By: "person:dana", Signing: g.sign(s.High+1, to)}
				g.steer(func(s *rotation.State) ([]audit.Event, error) { return s.Start(b, time.Now()) })
			}
		},
		"abort": func(*rapid.T) {
			s := g.state()
			url := g.before(s)
			if url == "" {
				return
			}
			again := g.sign(s.High+1, url)
			g.steer(func(s *rotation.State) ([]audit.Event, error) { return s.Abort("person:dana", again, time.Now()) })
		},
		"a place goes or comes": func(r *rapid.T) {
			host := hostOf(rapid.SampledFrom(places).Draw(r, "place"))
			w.net.mu.Lock()
			w.net.doors[host] = !w.net.doors[host]
			w.net.mu.Unlock()
		},
	})
	g.settle()
}

// settle ends all faults. Then a move that is under way ends, and every machine,
// also one that was left, is where the plane is, and checks there.
func (g *moveRun) settle() {
	w := g.world
	s := g.rotating.settle(g.owners, g.holds)
	at := w.plane.place.Current()
	for _, b := range w.boxes {
		row, st := w.row(b.id), b.agents[0].store.Status()
		p := g.planeOf(b.disk.images()[0])
		if p.URL != at || time.Since(row.LastCheck) > time.Minute || st.Refused != "" {
			g.r.Fatalf("%s is at %s, the plane at %s; last check %s ago, %+v", b.id, p.URL, at, time.Since(row.LastCheck), st)
		}
		if !s.Signed.IsZero() && (p.URLVersion != s.Version || row.Held.URL != s.Version) {
			g.r.Fatalf("%s has version %d and told of %d, the plane has %d", b.id, p.URLVersion, row.Held.URL, s.Version)
		}
		if left := files(b.disk); slices.Contains(left, "plane.next") {
			g.r.Fatalf("%s has a statement left: %v", b.id, left)
		}
	}
	for _, url := range places {
		status := w.plane.deliver(message{"POST", wire.PathCheck, http.Header{}, nil, hostOf(url)}).StatusCode
		if _, refused := w.plane.place.Judge(hostOf(url)); refused != (status == http.StatusUnauthorized) || url == at && refused {
			g.r.Fatalf("at %s the answer is %d, and the plane is at %s", url, status, at)
		}
	}
}
