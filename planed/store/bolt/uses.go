package bolt

import (
	"encoding/binary"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.etcd.io/bbolt"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/rotation"
)

// uses counts who uses the version of one kind of material that retires. Like
// the times of last checks they lie in pages by dense index and are flushed in
// groups, so that a check that is counted writes nothing. A page is made when
// it is first needed.
type uses struct {
	// prefix begins the keys of a kind, but the gate's, which was there first.
	prefix string
	mu     sync.Mutex // to make pages, and of the callers
	pages  atomic.Pointer[[]*usePage]
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

// callerKey begins the key of a caller, after the kind's prefix; a page's has
// four bytes.
const callerKey = "path:"

// kinds are the kinds of material whose uses are counted, the gate's first.
var kinds = []string{wire.MaterialGate, wire.MaterialURL, wire.MaterialTrust}

// usesOf are the uses of a kind.
func (s *Store) usesOf(kind string) *uses { return &s.uses[max(0, slices.Index(kinds, kind))] }

func (s *Store) initUses() {
	for i := range s.uses {
		if i > 0 {
			s.uses[i].prefix = kinds[i] + ":"
		}
	}
}

// own is a key of the bucket without the kind's prefix.
func (u *uses) own(key []byte) (rest string, ok bool) {
	if u.prefix == "" {
		return string(key), len(key) == 4 || strings.HasPrefix(string(key), callerKey)
	}
	return strings.CutPrefix(string(key), u.prefix)
}

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

func (u *uses) of(index uint32) (g machine.Uses) {
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
func (u *uses) used(index uint32, now time.Time) {
	p := u.page(index)
	p.count[index%perPage].Add(1)
	p.last[index%perPage].Store(now.UnixMicro())
	p.dirty.Store(true)
}

// MachineUsed counts a use by a machine that proved who it is.
func (s *Store) MachineUsed(kind, id string, now time.Time) {
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
		s.usesOf(kind).used(index, now)
	}
}

// CallerUsed counts a use by whoever calls a path of the table.
func (s *Store) CallerUsed(kind, path string, now time.Time) {
	u := s.usesOf(kind)
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
func (s *Store) Callers(kind string) []rotation.Caller {
	u := s.usesOf(kind)
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
		key, ok := u.own(k)
		if !ok {
			return nil
		}
		if path, ok := strings.CutPrefix(key, callerKey); ok {
			if len(v) == 16 {
				if u.callers == nil {
					u.callers = map[string]rotation.Caller{}
				}
				u.callers[path] = rotation.Caller{Path: path, Uses: int64(binary.BigEndian.Uint64(v)),
					Last: time.UnixMicro(int64(binary.BigEndian.Uint64(v[8:]))).UTC()}
			}
			return nil
		}
		if len(key) == 4 {
			if n := binary.BigEndian.Uint32([]byte(key)); n < 1<<22 {
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
		if err := t.put(bucketUses, append([]byte(u.prefix), pageKey(n)...), p.encode()); err != nil {
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
		if err := t.put(bucketUses, []byte(u.prefix+callerKey+path), v); err != nil {
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
		if _, ok := u.own(k); ok {
			keys = append(keys, slices.Clone(k))
		}
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
