package api

import (
	"bytes"
	"context"
	"net/http"
	"strconv"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/identity"
)

// proof marks a request by which the plane looks at its own gate.
type proof struct{}

// pass decides the gate. Exactly one header is taken: of two it would be
// unclear which one something in front of the plane looked at.
func (a *API) pass(c *call) bool {
	h := c.r.Header[wire.HeaderGate]
	ok := len(h) == 1
	if ok {
		c.gate, ok = a.Gate.Judge(h[0])
	}
	if c.r.Context().Value(proof{}) != nil {
		c.gate.Retiring = false // counted for nobody
		return ok
	}
	if !ok {
		a.metrics.gateRefused.Inc()
		a.Gate.Refused.Add(a.Now(), a.Policy.Silence())
	}
	return ok
}

// retiring counts a use of the gate token that is to be accepted no more. The
// handler has counted it where it knows the machine.
func (a *API) retiring(rt *Route, c *call) {
	if c.told {
		a.metrics.retiringMachine.Inc()
		return
	}
	a.metrics.retiringUnknown.Inc()
	a.Store.CallerUsed(wire.MaterialGate, rt.Path, a.Now())
}

// usedBy counts a use of the retiring gate token for the machine that a handler
// has judged. Every handler of a gated route but the check's, whose store does it
// on its way, calls it.
func (a *API) usedBy(c *call, id string, s identity.Standing) {
	if !c.gate.Retiring && !c.old || s == identity.Unknown || s == identity.Revoked {
		return
	}
	c.told = true // where it goes, a machine tells with its checks
	if c.gate.Retiring {
		a.Store.MachineUsed(wire.MaterialGate, id, a.Now())
	}
}

func (a *API) gateValue() *wire.CredentialGate {
	if a.Gate == nil {
		return nil
	}
	v, ok := a.Gate.Value()
	if !ok {
		return nil
	}
	return &v
}

// gateRefused is what the gate turns away now, or nil.
func (a *API) gateRefused() *wire.GateRefused {
	if a.Gate == nil {
		return nil
	}
	n, since := a.Gate.Refused.Now(a.Now(), a.Policy.Silence())
	if n == 0 {
		return nil
	}
	return &wire.GateRefused{Requests: n, Since: wire.Time{Time: since}}
}

// material is GET /v1/material/{kind}/{version}. It stands in front of the gate,
// so that a machine that slept through a rotation gets in again, and takes a
// live credential. A version is named by its number; whoever asks for one that
// is not given any more is told the number of the one that is.
func (a *API) material(c *call) error {
	id, presented := a.caller(c.r)
	s, err := a.Store.Material(c.ctx(), id, presented, a.Now())
	if err != nil {
		return err
	}
	if s == identity.Next {
		a.metrics.confirmed.Inc()
	}
	if err := standing(s, id); err != nil {
		return err
	}
	gone := &refusal{http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "there is no such material"}}
	version, err := strconv.ParseInt(c.r.PathValue("version"), 10, 64)
	if err != nil {
		return gone
	}
	if kind := c.r.PathValue("kind"); kind != wire.MaterialGate {
		now := a.now(kind)
		switch {
		case now == nil || now.Signed.IsZero():
			return gone
		case now.Version != version:
			gone.detail.Want = map[string]int64{kind: now.Version}
			return gone
		}
		return c.answer(wire.Material{Schema: wire.SchemaMaterial, Kind: kind, Version: version, Value: now.Signed.Statement, Signature: now.Signed.Signature})
	}
	v := a.gateValue()
	switch {
	case v == nil:
		return gone
	case v.Version != version:
		gone.detail.Want = map[string]int64{wire.MaterialGate: v.Version}
		return gone
	}
	return c.answer(wire.Material{Schema: wire.SchemaMaterial, Kind: wire.MaterialGate, Version: v.Version, Value: v.Value})
}

// Present makes a check with a gate token and nothing else, and reports whether
// it was turned away at the gate: beyond it the answer is that the check's
// header is missing. handler is what serves the plane's listener.
func Present(ctx context.Context, handler http.Handler, value string) (refused bool, err error) {
	r, err := http.NewRequestWithContext(context.WithValue(ctx, proof{}, true), http.MethodPost, wire.PathCheck, bytes.NewReader(nil))
	if err != nil {
		return false, err
	}
	r.Header.Set(wire.HeaderGate, value)
	return answered(handler, r)
}

// PresentAt is Present at a host, with a gate token that is accepted, or none
// where the plane has no gate.
func PresentAt(ctx context.Context, handler http.Handler, value, host string) (refused bool, err error) {
	r, err := http.NewRequestWithContext(context.WithValue(ctx, proof{}, true), http.MethodPost, wire.PathCheck, bytes.NewReader(nil))
	if err != nil {
		return false, err
	}
	r.Host = host
	if value != "" {
		r.Header.Set(wire.HeaderGate, value)
	}
	return answered(handler, r)
}

// answered reports whether the plane refused its own request.
func answered(handler http.Handler, r *http.Request) (refused bool, err error) {
	w := &seen{header: http.Header{}}
	handler.ServeHTTP(w, r)
	switch w.status {
	case http.StatusUnauthorized:
		return true, nil
	case http.StatusBadRequest:
		return false, nil
	}
	return false, &refusal{w.status, wire.ErrorDetail{Code: wire.CodeBusy, Message: "the plane answers itself with status " + strconv.Itoa(w.status)}}
}

// seen keeps an answer's status.
type seen struct {
	header http.Header
	status int
}

func (s *seen) Header() http.Header { return s.header }
func (s *seen) Write(b []byte) (int, error) {
	if s.status == 0 {
		s.status = http.StatusOK
	}
	return len(b), nil
}
func (s *seen) WriteHeader(status int) { s.status = status }
