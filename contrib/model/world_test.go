package model

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	agent "fleet.example/fleet/agentd/plane"

	"fleet.example/fleet/agentd/check"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// fate is what the network does to one request.
type fate int

const (
	deliver      fate = iota
	dropRequest       // it never arrives
	dropAnswer        // it arrives, and its answer does not
	delayRequest      // it arrives later, after others
	duplicate         // it arrives, and a copy of it later
	hang              // it arrives, and the answer comes after the client gave up
	fates
)

const maxLate = 6 // messages that the network holds

// network stands between the machines and the plane.
type network struct {
	mu    sync.Mutex
	plane *plane
	fates []fate // of the next requests; then all is well
	late  []message
	heard map[string]message // the last check of each machine that was answered
	// refused counts the checks of each machine that were turned away at the gate,
	// though they presented the best that lies on its disk.
	refused map[string]int
	disks   map[string]*disk
	doors   map[string]bool // hosts where nobody answers
}

func (n *network) shutDoor(host string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.doors[host]
}

func (n *network) fate() fate {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.fates) == 0 {
		return deliver
	}
	f := n.fates[0]
	n.fates = n.fates[1:]
	return f
}

func (n *network) hold(m message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if len(n.late) < maxLate {
		n.late = append(n.late, m)
	}
}

// release takes one of the messages that are held.
func (n *network) release(i int) message {
	n.mu.Lock()
	defer n.mu.Unlock()
	m := n.late[i]
	n.late = append(n.late[:i:i], n.late[i+1:]...)
	return m
}

// overhear keeps a check for thieves.
func (n *network) overhear(m message) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if id, _, ok := strings.Cut(strings.TrimPrefix(m.header.Get("Authorization"), "Bearer "), "."); ok && m.path == wire.PathCheck {
		n.heard[id] = m
	}
}

var errNetwork = errors.New("the network is bad")

// wire of one process: when the process is dead nothing passes.
type conn struct {
	*network
	process *process
}

func (c conn) RoundTrip(r *http.Request) (*http.Response, error) {
	body, err := io.ReadAll(r.Body)
	if err != nil {
		return nil, err
	}
	m := message{r.Method, r.URL.Path, r.Header.Clone(), body, r.URL.Host}
	f := c.fate()
	if !c.process.alive() || f == dropRequest || c.shutDoor(m.host) {
		return nil, errNetwork
	}
	if f == delayRequest {
		c.hold(m)
		return nil, errNetwork
	}
	answer := c.plane.deliver(m)
	if answer != nil && c.plane.gate != nil {
		c.shut(m, answer.StatusCode)
	}
	switch {
	case answer == nil || f == dropAnswer || !c.process.alive():
		return nil, errNetwork
	case f == duplicate:
		c.hold(m)
	case f == hang:
		<-r.Context().Done()
		return nil, r.Context().Err()
	}
	answer.Request = r
	c.overhear(m)
	return answer, nil
}

// agentProcess is one agentd as far as its credential goes: the check loop over
// the client over the files.
type agentProcess struct {
	process *process
	store   *credential.Store
	loop    *check.Loop
	stop    context.CancelFunc
	done    chan struct{}
}

// box is a machine.
type box struct {
	disk         *disk
	agents       []*agentProcess // two, where nothing kept the second one away
	installation secret.Digest
	id           string // as the plane admitted it last
	most         int64  // generations that this id may have by what it was asked
}

// known is a secret that was on a disk or in an install's hands.
type known struct {
	generation int64
	secret     secret.Text
}

// world is everything.
type world struct {
	net   *network
	plane *plane
	boxes []*box

	mu      sync.Mutex
	secrets map[string]map[secret.Digest]known // by machine id
}

func newWorld(dir string, boxes int) (*world, error) {
	p, err := newPlane(dir)
	if err != nil {
		return nil, err
	}
	return worldOf(p, boxes), nil
}

func worldOf(p *plane, boxes int) *world {
	w := &world{plane: p, net: &network{plane: p, heard: map[string]message{}, refused: map[string]int{}, disks: map[string]*disk{}}, secrets: map[string]map[secret.Digest]known{}}
	for range boxes {
		w.boxes = append(w.boxes, &box{disk: newDisk(w.written), installation: secret.New("").Digest()})
	}
	return w
}

// written learns of every secret that reaches a disk.
func (w *world) written(data []byte) {
	var f struct {
		Machine    string `json:"machine"`
		Generation int64  `json:"generation"`
		Secret     string `json:"secret"`
	}
	if json.Unmarshal(data, &f) == nil && f.Secret != "" {
		w.learn(f.Machine, f.Generation, secret.Of(f.Secret))
	}
}

func (w *world) learn(id string, generation int64, s secret.Text) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.secrets[id] == nil {
		w.secrets[id] = map[secret.Digest]known{}
	}
	w.secrets[id][s.Digest()] = known{generation, s}
}

func (w *world) start(b *box) {
	p := &process{disk: b.disk}
	a := &agentProcess{process: p, store: credential.Open(p), done: make(chan struct{})}
	a.loop = &check.Loop{Store: a.store, Log: hclog.NewNullLogger(),
		Body: func() wire.CheckBody { return wire.CheckBody{Name: "box", Have: a.store.Status().Have} },
		Dial: func(pl credential.Plane, gate *wire.CredentialGate) (check.Plane, error) {
			return agent.Over(conn{w.net, p}, pl, gate), nil
		}}
	a.loop.Init()
	ctx, cancel := context.WithCancel(context.Background())
	a.stop = cancel
	go func() {
		defer close(a.done)
		a.loop.Run(ctx)
	}()
	b.agents = append(b.agents, a)
}

// end ends a process as a kill does, or with a last check.
func (a *agentProcess) end(last bool) {
	if !last {
		a.process.die()
	}
	a.stop()
	<-a.done
	if last {
		a.loop.Last(wire.ReasonSignal)
	}
	a.process.die()
}

// reap buries the processes that died at a step.
func (b *box) reap() (died bool) {
	var alive []*agentProcess
	for _, a := range b.agents {
		if a.process.alive() {
			alive = append(alive, a)
			continue
		}
		a.end(false)
		died = true
	}
	b.agents = alive
	return died
}

func (b *box) killAll() {
	for _, a := range b.agents {
		a.end(false)
	}
	b.agents = nil
}

// install is what a person's install does: admit the installation with a
// secret of the installer's, and hand it over. It dies at a step, where said.
func (w *world) install(b *box, crash int) error {
	s := secret.New("fm_")
	var token *wire.CredentialGate
	if w.plane.gate != nil {
		v, ok := w.plane.gate.Value()
		if !ok {
			return errors.New("the plane has no gate token to give")
		}
		token = &v
	}
	did, err := w.plane.store.Admit(context.Background(), machine.Admission{By: owner, Installation: b.installation, Credential: s.Digest()}, time.Now())
	if err != nil {
		return err
	}
	if b.id != did.Row.ID {
		b.id, b.most = did.Row.ID, 2 // the first is rotated away
	}
	if did.Outcome == identity.Living {
		return nil // nothing is to be handed over
	}
	w.learn(b.id, did.Row.Credential.Generation, s)
	p := &process{disk: b.disk, crashIn: crash}
	_, err = credential.Open(p).Install(&wire.Credential{Schema: wire.SchemaCredential, Machine: b.id, Generation: did.Row.Credential.Generation,
		Secret: s.Reveal(), Plane: wire.CredentialPlane{URL: "https://plane.example", RootsPEM: "system"}, Gate: token}, false)
	died := !p.alive()
	p.die()
	if err != nil && !died && !b.disk.full && !b.disk.unread {
		return err
	}
	for _, a := range b.agents {
		a.store.Reload()
		a.loop.Reload()
	}
	return nil
}

// ask asks for a rotation, if none is asked for. It adds one generation, or two
// where a secret that was staged before has to go first.
func (w *world) ask(b *box) {
	r := w.row(b.id)
	if r == nil || !r.Asked.Rotate.IsZero() {
		return
	}
	b.most++
	b.disk.mu.Lock()
	_, staged := b.disk.now[credential.NextFile]
	b.disk.mu.Unlock()
	if r.Credential.Generation > 1 && staged {
		b.most++
	}
	w.edit(b.id, store.Change{Ask: &machine.Wish{Kind: wire.ScopeRotate}})
}

// edit is a person's; a machine that is gone stays so.
func (w *world) edit(id string, ch store.Change) {
	ch.By, ch.At = owner, time.Now()
	w.plane.store.Edit(context.Background(), id, ch)
}

// row is the plane's, and nil for a machine that is not.
func (w *world) row(id string) *machine.Row {
	r, err := w.plane.store.Machine(context.Background(), id)
	if err != nil {
		return nil
	}
	return r
}

// look reads the rows of all machines that ever were.
func (w *world) look() map[string]*machine.Row {
	w.mu.Lock()
	defer w.mu.Unlock()
	rows := map[string]*machine.Row{}
	for id := range w.secrets {
		rows[id] = w.row(id)
	}
	return rows
}

// holds is the first invariant.
func (w *world) holds(rows map[string]*machine.Row, b *box) error {
	r := rows[b.id]
	if r == nil || !r.Credential.Proven {
		return nil // deleted, or not living yet
	}
	for i, image := range b.disk.images() {
		if !accepted(r, image) {
			return fmt.Errorf("%s, generation %d: after a power cut now (image %d) nothing on the disk would be accepted: %s", b.id, r.Credential.Generation, i, names(image))
		}
	}
	return nil
}

// accepted reports whether some whole credential in the image is the row's.
func accepted(r *machine.Row, image map[string]*inode) bool {
	for _, name := range []string{credential.CurrentFile, credential.NextFile, credential.PreviousFile} {
		var f struct {
			Machine string `json:"machine"`
			Secret  string `json:"secret"`
		}
		if n := image[name]; n == nil || json.Unmarshal([]byte(n.data), &f) != nil || f.Machine != r.ID {
			continue
		}
		switch r.Credential.Judge(secret.Of(f.Secret).Digest()) {
		case identity.Current, identity.Next:
			return true
		}
	}
	return false
}

func names(image map[string]*inode) string {
	var out []string
	for name := range image {
		out = append(out, name)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

// dead are secrets of earlier generations and of deleted machines.
func (w *world) dead(rows map[string]*machine.Row) map[string][]known {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := map[string][]known{}
	for id, of := range w.secrets {
		r := rows[id]
		for d, k := range of {
			// A second secret of the current generation was never the plane's.
			if r == nil || k.generation < r.Credential.Generation || k.generation == r.Credential.Generation && r.Credential.Judge(d) == identity.Unknown {
				out[id] = append(out[id], k)
			}
		}
	}
	return out
}

// thief presents every dead secret wherever one can be presented, and in the
// machine's own last check, which the plane may take for a plain one: the second
// invariant.
func (w *world) thief(rows map[string]*machine.Row, rotates bool) error {
	for id, of := range w.dead(rows) {
		for _, k := range of {
			fresh := http.Header{wire.HeaderCheck: {"instance=thief; seq=1"}}
			tries := []message{{"POST", wire.PathCheck, fresh, []byte("{}"), ""}}
			if rotates {
				tries = append(tries, message{"POST", wire.PathRotate, fresh, fmt.Appendf(nil, `{"generation":%d,"digest":"%s"}`, k.generation+1, secret.New("fm_").Digest().Hex()), ""})
			}
			w.net.mu.Lock()
			if m, ok := w.net.heard[id]; ok {
				tries = append(tries, m)
			}
			w.net.mu.Unlock()
			for _, m := range tries {
				m.header = m.header.Clone()
				m.header.Set("Authorization", "Bearer "+id+"."+k.secret.Reveal())
				if a := w.plane.deliver(m); a != nil && a.StatusCode != 401 && a.StatusCode != 409 && a.StatusCode != 410 {
					return fmt.Errorf("%s: a dead secret of generation %d gets status %d at %s", id, k.generation, a.StatusCode, m.path)
				}
			}
		}
	}
	return nil
}
