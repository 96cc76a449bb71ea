// Package readiness knows what keeps the machine from accepting work. It runs
// agentd-probes now and then, adds what agentd itself finds, and keeps the
// whole in memory for the check loop, which never waits for it (R17).
//
// Before the first run there is nothing, which is not the same as "nothing
// blocks" (R15). A probe that could not tell keeps what it found before, and
// so does the whole if the program did not run.
package readiness

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/wire"
)

const (
	// Every is the time between two runs of the probes.
	Every     = 5 * time.Minute
	deadline  = time.Minute
	maxOutput = 1 << 20
)

// Keeper holds the findings.
type Keeper struct {
	Program string // agentd-probes
	Data    string
	Env     []string
	// Own returns agentd's own findings; it may use the disk.
	Own func() []wire.Finding
	// Facts is called before each run, to write what the probes read.
	Facts func()
	// Changed is called when the set of findings became another.
	Changed func()
	Log     hclog.Logger

	ask     chan chan struct{}
	soon    chan struct{}
	looking sync.Mutex

	mu       sync.Mutex
	probed   bool
	told     bool // that it was probed
	byProbe  map[string][]wire.Finding
	own      []wire.Finding
	failure  string
	blockers []wire.Blocker
}

// Init makes the keeper ready.
func (k *Keeper) Init() {
	k.ask, k.soon = make(chan chan struct{}), make(chan struct{}, 1)
	k.byProbe = map[string][]wire.Finding{}
}

// Run probes at once, then on schedule and when asked, until the context ends.
func (k *Keeper) Run(ctx context.Context) {
	for {
		k.probe(ctx)
		// A little unevenness keeps a fleet's disks from working in step.
		t := time.NewTimer(Every + time.Duration(rand.Int64N(int64(Every/10))))
		select {
		case <-ctx.Done():
			t.Stop()
			return
		case <-t.C:
		case <-k.soon:
			t.Stop()
		case done := <-k.ask:
			t.Stop()
			k.probe(ctx)
			close(done)
		}
	}
}

// Now runs the probes and returns when they have run, or the context ends.
func (k *Keeper) Now(ctx context.Context) error {
	done := make(chan struct{})
	select {
	case k.ask <- done:
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Soon has the probes run again, since what they read of Facts became another.
// It waits for nothing.
func (k *Keeper) Soon() {
	select {
	case k.soon <- struct{}{}:
	default:
	}
}

func (k *Keeper) probe(ctx context.Context) {
	k.Facts()
	doc, err := k.run(ctx)
	if ctx.Err() != nil {
		return
	}
	k.takeOwn()
	k.mu.Lock()
	failure := ""
	if err != nil {
		failure = err.Error()
	} else {
		k.probed = true
		found := map[string][]wire.Finding{}
		for _, p := range doc.Probes {
			if p.OK {
				found[p.Name] = p.Findings
				continue
			}
			k.Log.Warn("probe cannot tell", "probe", p.Name, "error", p.Error)
			found[p.Name] = k.byProbe[p.Name]
		}
		k.byProbe = found
	}
	if failure != "" && failure != k.failure {
		k.Log.Warn("probes did not run", "error", failure)
	}
	k.failure = failure
	k.mu.Unlock()
	k.settle()
}

// Recheck looks at agentd's own findings again, without running the probes.
func (k *Keeper) Recheck() {
	k.takeOwn()
	k.settle()
}

// takeOwn looks and stores in one go, so that an older look never replaces a
// newer one.
func (k *Keeper) takeOwn() {
	k.looking.Lock()
	defer k.looking.Unlock()
	own := k.Own()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.own = own
}

// settle makes the set of blockers anew and tells if it became another. A
// finding that stays keeps the time since when it stands.
func (k *Keeper) settle() {
	k.mu.Lock()
	since := map[string]*wire.Time{}
	for _, b := range k.blockers {
		since[b.Code] = b.Since
	}
	now := &wire.Time{Time: time.Now()}
	all := append([]wire.Finding(nil), k.own...)
	for _, found := range k.byProbe {
		for _, f := range found {
			// What agentd itself finds is of now: a probe's word on the same is of
			// its last run.
			if !slices.ContainsFunc(k.own, func(own wire.Finding) bool { return own.Code == f.Code }) {
				all = append(all, f)
			}
		}
	}
	blockers := make([]wire.Blocker, 0, len(all))
	for _, f := range all {
		b := wire.Blocker{Code: f.Code, Severity: f.Severity, Detail: f.Detail, Remedy: f.Remedy, Since: since[f.Code]}
		if b.Severity == "" {
			b.Severity = wire.SeverityBlock
		}
		if b.Since == nil {
			b.Since = now
		}
		blockers = append(blockers, b)
	}
	sort.SliceStable(blockers, func(i, j int) bool { return blockers[i].Code < blockers[j].Code })
	same := len(blockers) == len(k.blockers)
	for i := 0; same && i < len(blockers); i++ {
		// The words may carry figures that change all the time; the code is what counts.
		same = blockers[i].Code == k.blockers[i].Code && blockers[i].Severity == k.blockers[i].Severity
	}
	first := k.probed && !k.told // from "not probed" to "nothing blocks" is a change too
	k.told = k.probed
	k.blockers = blockers
	k.mu.Unlock()
	if !same || first {
		k.Changed()
	}
}

// Snapshot is what a check says: nil before the first run, unless agentd
// itself knows of something that blocks.
func (k *Keeper) Snapshot() *wire.CheckReadiness {
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.probed && len(k.own) == 0 {
		return nil
	}
	r := &wire.CheckReadiness{Blockers: make([]wire.Finding, 0, len(k.blockers))}
	for _, b := range k.blockers {
		r.Blockers = append(r.Blockers, wire.Finding{Code: b.Code, Severity: b.Severity, Detail: b.Detail, Remedy: b.Remedy})
	}
	return r
}

// Blockers are the findings with the time since when each stands, and whether
// the probes have run.
func (k *Keeper) Blockers() ([]wire.Blocker, bool) {
	k.mu.Lock()
	defer k.mu.Unlock()
	return append([]wire.Blocker{}, k.blockers...), k.probed
}

// run starts agentd-probes and reads its one document.
func (k *Keeper) run(ctx context.Context) (*wire.Findings, error) {
	if _, err := os.Stat(k.Program); err != nil {
		return nil, errors.New("agentd-probes is missing")
	}
	ctx, cancel := context.WithTimeout(ctx, deadline)
	defer cancel()
	cmd := exec.CommandContext(ctx, k.Program, "--data", k.Data, "--json")
	cmd.Env = k.Env
	cmd.Dir = "/"
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 5 * time.Second
	out, errOut := &bounded{max: maxOutput}, &bounded{max: 4 << 10}
	cmd.Stdout, cmd.Stderr = out, errOut
	err := cmd.Run()
	switch {
	case ctx.Err() != nil:
		return nil, fmt.Errorf("agentd-probes took longer than %v", deadline)
	case out.over:
		return nil, fmt.Errorf("agentd-probes printed more than %d bytes", maxOutput)
	case err != nil:
		return nil, fmt.Errorf("agentd-probes: %w: %s", err, lastLine(errOut.Bytes()))
	}
	return parse(out.Bytes())
}

func parse(b []byte) (*wire.Findings, error) {
	var doc wire.Findings
	if err := json.Unmarshal(b, &doc); err != nil || doc.Schema != wire.SchemaFindings {
		return nil, errors.New("agentd-probes printed something that is not " + wire.SchemaFindings)
	}
	for i := range doc.Probes {
		kept := doc.Probes[i].Findings[:0]
		for _, f := range doc.Probes[i].Findings {
			if wire.CheckName(f.Code) == nil {
				kept = append(kept, f)
			}
		}
		doc.Probes[i].Findings = kept
	}
	return &doc, nil
}

func lastLine(b []byte) []byte {
	b = bytes.TrimSpace(b)
	return b[bytes.LastIndexByte(b, '\n')+1:]
}

// bounded keeps up to max bytes and notes that there were more. It does not
// embed the buffer, whose ReadFrom would go past the bound.
type bounded struct {
	buf  bytes.Buffer
	max  int
	over bool
}

func (b *bounded) Bytes() []byte { return b.buf.Bytes() }

func (b *bounded) Write(p []byte) (int, error) {
	if room := b.max - b.buf.Len(); len(p) > room {
		b.over = true
		b.buf.Write(p[:max(room, 0)])
		return len(p), nil
	}
	return b.buf.Write(p)
}
