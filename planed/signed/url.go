package signed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/rotation"
)

// maxFormer bounds the URLs that a plane remembers of itself. Beyond it the
// oldest is forgotten: statements name no more than wire takes.
const maxFormer = 60

// URL is where the plane is.
type URL struct {
	Dir   string
	Store States
	// Present makes a request at a host, of a kind that is answered differently
	// where it is not refused, and returns whether it was.
	Present func(ctx context.Context, host string) (refused bool, err error)
	// Changed is told of all URLs for which the plane has to have a certificate.
	Changed func(urls []string)

	mu    sync.Mutex
	plane datadir.Plane
	heard string // the URL at which an owner was heard last, of those that are not in use
	now   atomic.Pointer[place]
}

// place is what a moment knows. It is replaced, never changed.
type place struct {
	Now
	url      string           // that people are told
	own      []string         // all, the one in plane.json first
	byNumber map[int64]string // values of the versions that live
	refused  []string         // hosts
	retiring string           // a host
	coming   string           // a host: the one that an owner has to be heard at
}

var _ rotation.Material = (*URL)(nil)

// NewURL is the URL of the plane in a data directory.
func NewURL(dir string, p datadir.Plane, store States) *URL {
	u := &URL{Dir: dir, Store: store, plane: p}
	u.now.Store(&place{url: p.URL, own: append([]string{p.URL}, p.Former...)})
	return u
}

// Now is what machines are to hold.
func (u *URL) Now() *Now { return &u.now.Load().Now }

// Current is the URL that people and new machines are told.
func (u *URL) Current() string { return u.now.Load().url }

// Own are all URLs that are or were the plane's, or are to be.
func (u *URL) Own() []string { return u.now.Load().own }

// hostOf is a URL's host as requests name it.
func hostOf(url string) string { return strings.TrimPrefix(url, "https://") }

func sameHost(a, b string) bool {
	return b != "" && (len(a) == len(b) && strings.EqualFold(a, b) || len(a) == len(b)+4 && strings.EqualFold(a, b+":443"))
}

// Judge says of the host that a machine's request names whether its URL retires,
// or has retired and is refused.
func (u *URL) Judge(host string) (retiring, refused bool) {
	p := u.now.Load()
	if p.retiring == "" && len(p.refused) == 0 {
		return false, false
	}
	return sameHost(host, p.retiring), slices.ContainsFunc(p.refused, func(h string) bool { return sameHost(host, h) })
}

// Heard says that an owner was heard at a host. It reports whether that was
// waited for.
func (u *URL) Heard(host string) bool {
	p := u.now.Load()
	if !sameHost(host, p.coming) {
		return false
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	first := u.heard != p.coming
	u.heard = p.coming
	return first
}

// Load reads plane.json.
func (u *URL) Load() (primary rotation.Holding, secondary *rotation.Holding, hold func(), err error) {
	p, err := datadir.Load(u.Dir)
	if err != nil {
		return primary, nil, nil, err
	}
	s, err := u.Store.RotationState(context.Background(), wire.MaterialURL)
	if err != nil {
		return primary, nil, nil, err
	}
	primary, secondary = loaded(s, digest(p.URL), func(secret.Digest) bool { return true })
	return primary, secondary, func() {
		u.mu.Lock()
		defer u.mu.Unlock()
		u.plane = p
	}, nil
}

// Make takes the statement's word.
func (u *URL) Make(version int64) (rotation.Holding, error) {
	return made(u.Store, wire.MaterialURL, version)
}

// made is what the statement of a rotation that begins says.
func made(store States, kind string, version int64) (rotation.Holding, error) {
	s, err := store.RotationState(context.Background(), kind)
	if err != nil {
		return rotation.Holding{}, err
	}
	if !s.Running() || s.Run.To != version {
		return rotation.Holding{}, fmt.Errorf("version %d of the %s is not on its way", version, kind)
	}
	_, signing, err := Read(kind, s.Run.ToSigned)
	if err == nil && signing.Version != version {
		err = fmt.Errorf("the statement is version %d, not %d", signing.Version, version)
	}
	return signing.Holding, err
}

// Apply refuses what the state does not accept.
func (u *URL) Apply(s rotation.State) (versions []int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	p := &place{Now: *nowOf(s), url: u.plane.URL, byNumber: map[int64]string{}}
	own := append([]string{u.plane.URL}, u.plane.Former...)
	living := []rotation.Holding{{Version: s.Version, Digest: s.Digest}}
	if s.Running() {
		for _, g := range []rotation.Signed{s.Run.ToSigned, s.Run.FromSigned} {
			if st, _, err := Read(wire.MaterialURL, g); err == nil && !slices.Contains(own, st.URL) {
				own = append(own, st.URL)
			}
		}
		living = []rotation.Holding{{Version: s.Run.From, Digest: s.Run.FromDigest}, {Version: s.Run.To, Digest: s.Run.ToDigest}}
	}
	p.own = own
	var accepted []string
	for _, h := range living {
		i := slices.IndexFunc(own, func(url string) bool { return digest(url) == h.Digest })
		if i < 0 {
			continue
		}
		p.byNumber[h.Version] = own[i]
		if !s.Accepts(h.Version, h.Digest) {
			continue
		}
		accepted = append(accepted, own[i])
		if s.Running() && s.Run.Step == wire.StepWiden && h.Version == s.Run.To {
			// Machines are sent there when somebody has been there.
			if p.coming = hostOf(own[i]); u.heard != p.coming {
				continue
			}
		}
		versions = append(versions, h.Version)
	}
	if target := p.byNumber[s.Target()]; target != "" {
		p.url = target
	}
	if old := p.byNumber[s.Retiring()]; slices.Contains(accepted, old) {
		p.retiring = hostOf(old)
	}
	if !p.Signed.IsZero() {
		for _, url := range own {
			if !slices.Contains(accepted, url) {
				p.refused = append(p.refused, hostOf(url))
			}
		}
	}
	before := u.now.Swap(p)
	if u.Changed != nil && !slices.Equal(before.own, own) {
		u.Changed(own)
	}
	return versions
}

// Prove sees the refusal at the URL that retired, and none at the other.
func (u *URL) Prove(ctx context.Context, retired int64) error {
	p := u.now.Load()
	old, target := p.byNumber[retired], p.byNumber[p.Version]
	if old == "" || target == "" {
		return nil // nobody knows where it was
	}
	if refused, err := u.Present(ctx, hostOf(target)); err != nil {
		return err
	} else if refused {
		return fmt.Errorf("%s, which is to be used, is refused", target)
	}
	if p.Signed.IsZero() {
		return nil // it was taken back before any machine heard of it
	}
	if refused, err := u.Present(ctx, hostOf(old)); err != nil {
		return err
	} else if !refused {
		return fmt.Errorf("%s is still accepted", old)
	}
	return nil
}

// Erase puts the URL that is kept into plane.json. The one before is remembered
// as one that was the plane's.
func (u *URL) Erase(keep int64) error {
	url := u.now.Load().byNumber[keep]
	if url == "" {
		return fmt.Errorf("version %d of the URL is not known here", keep)
	}
	p, err := datadir.Update(u.Dir, func(p *datadir.Plane) {
		if p.URL == url {
			return
		}
		p.Former = append([]string{p.URL}, slices.DeleteFunc(p.Former, func(f string) bool { return f == url || f == p.URL })...)
		p.Former = p.Former[:min(len(p.Former), maxFormer)]
		p.URL = url
	})
	if err != nil {
		return err
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.plane = p
	return nil
}

// Only reports whether plane.json has a version's URL.
func (u *URL) Only(version int64) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.now.Load().byNumber[version] == u.plane.URL
}

// Check refuses what a statement must not say, before anything begins.
func (u *URL) Check(st *wire.Statement) error {
	if st.URL == u.Current() {
		return fmt.Errorf("the plane is at %s already", st.URL)
	}
	return u.Names(st)
}

// Names refuses a statement that machines would take for another plane's.
func (u *URL) Names(st *wire.Statement) error {
	for _, url := range u.Own() {
		if !slices.Contains(st.Planes, url) && url != st.URL {
			return fmt.Errorf("it does not name %s, where machines of this plane may be", url)
		}
	}
	return nil
}
