// Package token keeps the tokens of the agent's API: in memory only, so that
// they die with agentd, and as digests only. It knows nothing of sockets.
package token

import (
	"slices"
	"sync"
	"time"

	"fleet.example/fleet/core/secret"
)

// DefaultLifetime and MaxLifetime bound how long a token is good.
const (
	DefaultLifetime = 12 * time.Hour
	MaxLifetime     = 7 * 24 * time.Hour
)

// maxTokens bounds what is kept; the one that ends first gives way.
const maxTokens = 512

// Set is the set of tokens that are good now.
type Set struct {
	mu   sync.Mutex
	list []entry
}

type entry struct {
	digest secret.Digest
	until  time.Time
	scope  string
}

// Mint makes a token that is good for life, 0 meaning the default, within a
// scope; "" is no bound.
func (s *Set) Mint(life time.Duration, scope string) (secret.Text, time.Time) {
	if life <= 0 {
		life = DefaultLifetime
	}
	t := secret.New("fa_")
	now := time.Now()
	e := entry{t.Digest(), now.Add(min(life, MaxLifetime)), scope}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(now)
	if len(s.list) >= maxTokens {
		first := 0
		for i := range s.list {
			if s.list[i].until.Before(s.list[first].until) {
				first = i
			}
		}
		s.list = append(s.list[:first], s.list[first+1:]...)
	}
	s.list = append(s.list, e)
	return t, e.until
}

func (s *Set) prune(now time.Time) {
	kept := s.list[:0]
	for _, e := range s.list {
		if now.Before(e.until) {
			kept = append(kept, e)
		}
	}
	clear(s.list[len(kept):])
	s.list = kept
}

// Check reports whether the token is good, and within which scope. Every kept
// one is compared.
func (s *Set) Check(t secret.Text) (scope string, valid bool) {
	d := t.Digest()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.prune(time.Now())
	digests := make([]secret.Digest, len(s.list))
	for i := range s.list {
		digests[i] = s.list[i].digest
	}
	if i := secret.Match(d, digests...); i >= 0 && !t.Empty() {
		return s.list[i].scope, true
	}
	return "", false
}

// Revoke ends every token of a scope.
func (s *Set) Revoke(scope string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = slices.DeleteFunc(s.list, func(e entry) bool { return e.scope == scope })
}

// RevokeAll ends every token and returns how many there were.
func (s *Set) RevokeAll() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	n := len(s.list)
	clear(s.list)
	s.list = nil
	return n
}
