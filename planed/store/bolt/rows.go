package bolt

import (
	"encoding/binary"
	"sync"
	"sync/atomic"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// key is a machine id without its prefix.
type key [26]byte

func keyOf(id string) (k key, ok bool) {
	if !wire.IsMachineID(id) {
		return k, false
	}
	copy(k[:], id[len(wire.MachineIDPrefix):])
	return k, true
}

func idOf(k key) string { return wire.MachineIDPrefix + string(k[:]) }

// hot is what a plain check needs of a row: about 300 bytes, and no pointer, so
// that a hundred thousand of them cost the garbage collector nothing.
type hot struct {
	cred     identity.Row
	body     [16]byte
	instance [32]byte // padded with zeros
	seq      uint64
	logs     int64 // requests in milliseconds, 0: none
	rotate   int64
	staged   int64  // since when the next generation waits, in milliseconds, 0: none does
	behind   int64  // when a superseded secret was presented last
	barred   int64  // when a bearer was presented last where a certificate is wanted
	until    int64  // when the latest certificate expires, 0: none is wanted
	stale    uint64 // the last sequence number that was below seq, and was passed over
	lines    machine.Lines
	gate     int64 // version of the gate token that was presented last
	url      int32 // versions that the machine said it has
	trust    int32
	index    uint32 // of its time of last check
	said     bool
	two      bool // suspected
}

const (
	shards  = 64
	perSlab = 64
)

type shard struct {
	mu    sync.Mutex
	at    map[key]uint32 // position in slabs
	slabs []*[perSlab]hot
	used  uint32
	free  []uint32
}

// find returns the row or nil. The caller holds the lock for as long as it
// uses the row.
func (sh *shard) find(k key) *hot {
	n, ok := sh.at[k]
	if !ok {
		return nil
	}
	return &sh.slabs[n/perSlab][n%perSlab]
}

func (sh *shard) add(k key) *hot {
	var n uint32
	if last := len(sh.free) - 1; last >= 0 {
		n, sh.free = sh.free[last], sh.free[:last]
	} else {
		n = sh.used
		sh.used++
		if n/perSlab == uint32(len(sh.slabs)) {
			sh.slabs = append(sh.slabs, new([perSlab]hot))
		}
	}
	sh.at[k] = n
	h := &sh.slabs[n/perSlab][n%perSlab]
	*h = hot{}
	return h
}

func (s *Store) shard(k key) *shard {
	// The characters are random already.
	return &s.shards[(uint(k[0])*31+uint(k[1])*7+uint(k[2]))%shards]
}

// warm brings memory in line with a row that has been committed.
func (s *Store) warm(r *machine.Row, index uint32) {
	k, ok := keyOf(r.ID)
	if !ok {
		return
	}
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h := sh.find(k)
	if h == nil {
		h = sh.add(k)
		h.index = index
	}
	h.cred = r.Credential
	h.body = r.Told.Digest
	instance := padded(r.Told.Instance)
	if h.instance != instance || h.seq < r.Told.Seq {
		h.instance, h.seq = instance, r.Told.Seq
	}
	h.said = r.Told.Said != ""
	if h.two && !r.CloneSuspected {
		h.lines = machine.Lines{}
	}
	h.two = r.CloneSuspected
	h.logs, h.rotate = milli(r.Asked.Logs), milli(r.Asked.Rotate)
	h.staged = milli(r.StagedAt)
	h.gate, h.url, h.trust = r.Gate, int32(r.Held.URL), int32(r.Held.Trust)
	h.until = 0
	if r.Credential.Keys.Mtls && r.Deleted == nil {
		h.until = milli(r.CertifiedTo)
	}
}

// refused records that a secret was presented which no longer, or alone no
// longer, opens anything.
func (s *Store) refused(id string, standing identity.Standing, at time.Time) {
	k, _ := keyOf(id)
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	h := sh.find(k)
	switch {
	case h == nil:
	case standing == identity.Behind:
		h.behind = milli(at)
	default:
		h.barred = milli(at)
	}
}

// Rotations counts the rotations that are under way. One shard is locked at a
// time, for the microseconds that looking through it takes.
func (s *Store) Rotations(p machine.Policy) (n store.Rotations) {
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, at := range sh.at {
			h := &sh.slabs[at/perSlab][at%perSlab]
			since := h.rotate
			if h.rotate != 0 {
				n.Requested++
			}
			if h.staged != 0 {
				n.Staged++
				since = h.staged
			}
			if since != 0 && p.Stuck(time.UnixMilli(since), s.lastHeard(h.index)) {
				n.Stuck++
			}
		}
		sh.mu.Unlock()
	}
	return n
}

// Certificates looks at those that machines have, one shard after the other.
func (s *Store) Certificates(now time.Time, within []time.Duration) store.Certificates {
	out := store.Certificates{Within: make([]uint64, len(within))}
	for i := range s.shards {
		sh := &s.shards[i]
		sh.mu.Lock()
		for _, at := range sh.at {
			h := &sh.slabs[at/perSlab][at%perSlab]
			if h.until == 0 {
				continue
			}
			left := max(0, time.UnixMilli(h.until).Sub(now))
			out.Machines++
			out.Left += left
			for j, bound := range within {
				if left <= bound {
					out.Within[j]++
				}
			}
		}
		sh.mu.Unlock()
	}
	return out
}

func padded(instance string) (p [32]byte) {
	copy(p[:], instance)
	return p
}

// cool forgets a tombstone that was dropped.
func (s *Store) cool(id string) {
	k, ok := keyOf(id)
	if !ok {
		return
	}
	sh := s.shard(k)
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if n, ok := sh.at[k]; ok {
		delete(sh.at, k)
		sh.free = append(sh.free, n)
	}
}

// holds is the version of a kind of material that was presented last.
func (h *hot) holds(kind string) int64 {
	switch kind {
	case wire.MaterialURL:
		return int64(h.url)
	case wire.MaterialTrust:
		return int64(h.trust)
	}
	return h.gate
}

func milli(t time.Time) int64 {
	if t.IsZero() {
		return 0
	}
	return t.UnixMilli()
}

func (h *hot) asked() machine.Asked {
	var a machine.Asked
	if h.logs != 0 {
		a.Logs = time.UnixMilli(h.logs).UTC()
	}
	if h.rotate != 0 {
		a.Rotate = time.UnixMilli(h.rotate).UTC()
	}
	return a
}

// perPage times fit one page of the file together with its headers.
const perPage = 448

// page holds times of last checks in microseconds since 1970; 0 means never.
type page struct {
	dirty atomic.Bool
	at    [perPage]atomic.Int64
}

func (p *page) set(slot uint16, t time.Time) {
	p.at[slot].Store(t.UnixMicro())
	// A load first: a store would take the cache line from the other core
	// at every check.
	if !p.dirty.Load() {
		p.dirty.Store(true)
	}
}

func (p *page) get(slot uint16) time.Time {
	v := p.at[slot].Load()
	if v == 0 {
		return time.Time{}
	}
	return time.UnixMicro(v).UTC()
}

func (p *page) encode() []byte {
	b := make([]byte, 8*perPage)
	for i := range p.at {
		binary.BigEndian.PutUint64(b[8*i:], uint64(p.at[i].Load()))
	}
	return b
}

func (p *page) decode(b []byte) {
	for i := 0; i < perPage && 8*i+8 <= len(b); i++ {
		p.at[i].Store(int64(binary.BigEndian.Uint64(b[8*i:])))
	}
}

// heard records the time of a check.
func (s *Store) heard(index uint32, t time.Time) {
	(*s.pages.Load())[index/perPage].set(uint16(index%perPage), t)
}

// lastHeard is the time of the last check, zero if there was none.
func (s *Store) lastHeard(index uint32) time.Time {
	pages := *s.pages.Load()
	if n := int(index / perPage); n < len(pages) {
		return pages[n].get(uint16(index % perPage))
	}
	return time.Time{} // of a row that is being made
}

func pageKey(n int) []byte { return binary.BigEndian.AppendUint32(nil, uint32(n)) }
