package store

import (
	"context"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/planed/machine"
)

// Web is what the store does for persons' browsers. A link is good once and
// opens a browser's session; neither is taken where a program's session is. All
// of them end with the person's lock, removal, or the key that they come from.
type Web interface {
	// MakeLink stores a link for the person whose session asks. One that waited
	// before is void. key is the fingerprint that opened that session.
	MakeLink(ctx context.Context, by machine.By, key string, link secret.Digest, now, expires time.Time) error
	// LinkOwner says whose a link is, or ErrNotFound; it uses nothing up.
	LinkOwner(ctx context.Context, link secret.Digest, now time.Time) (string, error)
	// SpendLink opens a browser's session with a link, once.
	SpendLink(ctx context.Context, link, session secret.Digest, now, expires time.Time) (Person, error)
	// Browser says whose a browser's session is, or ErrNotFound. It reads live.
	Browser(ctx context.Context, session secret.Digest, now time.Time) (Principal, error)
}
