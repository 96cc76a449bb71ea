package bolt

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
)

// uses counts who uses the version of the gate token that retires. Like the
// times of last checks they lie in pages by dense index and are flushed in
// groups, so that a check that is counted writes nothing. A page is made when
// it is first needed.
type uses struct {
	mu    sync.Mutex // to make pages, and of the callers
	pages atomic.Pointer[[]*usePage]
	// callers are those that are no known machine, by path.
	callers map[string]rotation.Caller
	dirty   bool // of callers
}

// usePage holds counts and times in microseconds since 1970.
type usePage struct {
	dirty atomic.Bool
	count [perPage]atomic.Int64
	last  [perPage]atomic.Int64
}

// callerKey begins the key of a caller; a page's has four bytes.
const callerKey = "path:"

func (u *usePage) encode() []byte {
	b := make([]byte, 0, 16*perPage)
	for i := range u.count {
		b = binary.BigEndian.AppendUint64(b, uint64(u.count[i].Load()))
		b = binary.BigEndian.AppendUint64(b, uint64(u.last[i].Load()))
	}
	return b
}

func (u *usePage) decode(b []byte) {
	for i := 0; i < perPage && 16*i+16 <= len(b); i++ {
		u.count[i].Store(int64(binary.BigEndian.Uint64(b[16*i:])))
		u.last[i].Store(int64(binary.BigEndian.Uint64(b[16*i+8:])))
	}
}

func (u *uses) all() []*usePage {
	if p := u.pages.Load(); p != nil {
		return *p
	}
	return nil
}

// page is the one of an index, made if it is not there.
func (u *uses) page(index uint32) *usePage {
	n := int(index / perPage)
	if all := u.all(); n < len(all) && all[n] != nil {
		return all[n]
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	all := slices.Clone(u.all())
	for len(all) <= n {
		all = append(all, nil)
	}
	if all[n] == nil {
		all[n] = &usePage{}
		u.pages.Store(&all)
	}
	return all[n]
}

func (u *uses) of(index uint32) (g machine.GateUses) {
	all := u.all()
	n := int(index / perPage)
	if n >= len(all) || all[n] == nil {
		return g
	}
	g.Count = all[n].count[index%perPage].Load()
	if v := all[n].last[index%perPage].Load(); v != 0 {
		g.Last = time.UnixMicro(v).UTC()
	}
	return g
}

// forget begins anew for an index that had another machine.
func (u *uses) forget(index uint32) {
	all := u.all()
	if n := int(index / perPage); n < len(all) && all[n] != nil {
		all[n].count[index%perPage].Store(0)
		all[n].last[index%perPage].Store(0)
		all[n].dirty.Store(true)
	}
}

// used counts a machine's use.
func (s *Store) used(index uint32, now time.Time) {
	p := s.uses.page(index)
	p.count[index%perPage].Add(1)
	p.last[index%perPage].Store(now.UnixMicro())
	p.dirty.Store(true)
}

// MachineUsed counts a use by a machine that proved who it is.
func (s *Store) MachineUsed(id string, now time.Time) {
	k, ok := keyOf(id)
	if !ok {
		return
	}
	sh := s.shard(k)
	sh.mu.Lock()
	h := sh.find(k)
	var index uint32
	if ok = h != nil; ok {
		index = h.index
	}
	sh.mu.Unlock()
	if ok {
		s.used(index, now)
	}
}

// CallerUsed counts a use by whoever calls a path of the table.
func (s *Store) CallerUsed(path string, now time.Time) {
	u := &s.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.callers == nil {
		u.callers = map[string]rotation.Caller{}
	}
	c := u.callers[path]
	c.Path, c.Uses, c.Last = path, c.Uses+1, now.UTC()
	u.callers[path], u.dirty = c, true
}

// Callers lists them by path.
func (s *Store) Callers(string) []rotation.Caller {
	u := &s.uses
	u.mu.Lock()
	defer u.mu.Unlock()
	out := make([]rotation.Caller, 0, len(u.callers))
	for _, c := range u.callers {
		out = append(out, c)
	}
	slices.SortFunc(out, func(a, b rotation.Caller) int { return strings.Compare(a.Path, b.Path) })
	return out
}

func (u *uses) load(t *bbolt.Tx) error {
	return t.Bucket(bucketUses).ForEach(func(k, v []byte) error {
		if path, ok := strings.CutPrefix(string(k), callerKey); ok {
			if len(v) == 16 {
				if u.callers == nil {
					u.callers = map[string]rotation.Caller{}
				}
				u.callers[path] = rotation.Caller{Path: path, Uses: int64(binary.BigEndian.Uint64(v)),
					Last: time.UnixMicro(int64(binary.BigEndian.Uint64(v[8:]))).UTC()}
			}
			return nil
		}
		if len(k) == 4 {
			if n := binary.BigEndian.Uint32(k); n < 1<<22 {
				u.page(n * perPage).decode(v)
			}
		}
		return nil
	})
}

// flush writes what has changed, within the flusher's transaction.
func (u *uses) flush(t *tx) (some bool, err error) {
	for n, p := range u.all() {
		// Cleared before the values are read, as with the times of checks.
		if p == nil || !p.dirty.Swap(false) {
			continue
		}
		some = true
		t.undo = append(t.undo, func() { p.dirty.Store(true) })
		if err := t.put(bucketUses, pageKey(n), p.encode()); err != nil {
			return true, err
		}
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if !u.dirty {
		return some, nil
	}
	u.dirty = false
	t.undo = append(t.undo, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.dirty = true
	})
	for path, c := range u.callers {
		v := binary.BigEndian.AppendUint64(nil, uint64(c.Uses))
		v = binary.BigEndian.AppendUint64(v, uint64(c.Last.UnixMicro()))
		if err := t.put(bucketUses, []byte(callerKey+path), v); err != nil {
			return true, err
		}
	}
	return true, nil
}

// reset forgets all uses: another version retires from here on. A use that is
// counted between the commit and this is forgotten with them, and is of the
// version before or is made again at its machine's next check.
func (u *uses) reset(t *tx) error {
	var keys [][]byte
	err := t.Bucket(bucketUses).ForEach(func(k, _ []byte) error {
		keys = append(keys, slices.Clone(k))
		return nil
	})
	if err != nil {
		return err
	}
	for _, k := range keys {
		if err := t.del(bucketUses, k); err != nil {
			return err
		}
	}
	t.after = append(t.after, func() {
		for _, p := range u.all() {
			if p == nil {
				continue
			}
			for i := range p.count {
				p.count[i].Store(0)
				p.last[i].Store(0)
			}
		}
		u.mu.Lock()
		defer u.mu.Unlock()
		u.callers, u.dirty = nil, false
	})
	return nil
}
