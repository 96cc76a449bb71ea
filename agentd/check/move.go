package check

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/plane"
	"fleet.example/fleet/core/wire"
)

// strayAfter is after how many checks that nobody answered the place before is
// asked for news; then after twice as many, and so on.
const strayAfter = 3

// strayed counts checks that the plane did not answer. Its refusals are answers.
func (l *Loop) strayed(err error) {
	var r *plane.Refusal
	l.mu.Lock()
	defer l.mu.Unlock()
	if err == nil || errors.As(err, &r) && r.Code != "" {
		l.unreached = 0
		return
	}
	l.unreached++
	if n := l.unreached / strayAfter; l.unreached%strayAfter == 0 && n&(n-1) == 0 {
		l.astray = true
		poke(l.work)
	}
}

// planeWork does what answers lead to for where the plane is and what vouches
// for it. Package credential argues it.
func (l *Loop) planeWork(ctx context.Context, client Plane) {
	l.mu.Lock()
	if r := l.Rung; r != nil && r.mutual != nil && r.Certs.Present() != nil {
		client = r.mutual
	}
	cred, want, sought, astray := l.answered, l.moves, l.sought, l.astray
	l.sought, l.astray = false, false
	l.mu.Unlock()
	ctx, cancel := context.WithTimeout(ctx, workBudget)
	defer cancel()
	var moved bool
	var err error
	f, ok := client.(credential.Fetcher)
	switch {
	case astray:
		moved, err = l.askBefore(ctx)
	case !ok:
		return
	case sought:
		moved, err = l.Store.SeekPlane(ctx, f, l.tryPlane)
	default:
		moved, err = l.Store.AdvancePlane(ctx, f, cred, want, l.tryPlane)
	}
	if err != nil && ctx.Err() == nil && !sought && !astray {
		l.Log.Warn("the plane's statement changes nothing", "error", err)
	}
	if moved {
		st := l.Store.Status()
		l.Log.Info("the plane is reached by a person's statement", "plane", st.Plane, "have", st.Have)
		poke(l.regate)
		l.Kick()
	}
}

// askBefore asks the place before the one in use, which does not answer, whether
// there is news.
func (l *Loop) askBefore(ctx context.Context) (moved bool, err error) {
	before := l.Store.Previous()
	if before == nil {
		return false, nil
	}
	_, gate := l.Store.Plane()
	var client Plane
	if h := l.known(); h != nil {
		client, err = l.Rung.Dial(*before, gate, h.URL, func() *tls.Certificate { return h.TLS })
	} else {
		client, err = l.Dial(*before, gate)
	}
	if err != nil {
		return false, err
	}
	defer client.Close()
	f, ok := client.(credential.Fetcher)
	if !ok {
		return false, nil
	}
	return l.Store.SeekPlane(ctx, f, l.tryPlane)
}

// tryPlane makes sure that the plane is where a statement says, and knows this
// machine there: by the statement, which it gives to a credential that lives, or
// by a certificate where the bearer alone brings that and nothing else.
func (l *Loop) tryPlane(ctx context.Context, p credential.Plane, m *wire.Material) error {
	_, gate := l.Store.Plane()
	client, err := l.Dial(p, gate)
	if err != nil {
		return err
	}
	defer client.Close()
	if h := l.known(); h != nil {
		return l.certifyAt(ctx, client, h, p.URL)
	}
	f, ok := client.(credential.Fetcher)
	cred, has := l.Store.Present()
	if !ok || !has {
		return errors.New("there is nothing to present")
	}
	got, want, err := f.Material(ctx, cred, m.Kind, m.Version)
	switch {
	case err != nil:
		return err
	case got == nil:
		return fmt.Errorf("who answers there gives version %d", want)
	case *got != *m:
		return errors.New("who answers there gives another statement")
	}
	return nil
}
