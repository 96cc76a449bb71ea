package api

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// machineBearer takes a machine's credential apart. What is no credential
// still costs a digest and is judged like one (R22).
func machineBearer(r *http.Request) (id string, presented secret.Digest) {
	token, _ := bearer(r)
	id, s, _ := strings.Cut(token.Reveal(), ".")
	return id, secret.Of(s).Digest()
}

// caller is who asks, and by what: over a connection that a machine's
// certificate opened the certificate, whatever the headers say, else the bearer
// (R27). Of a certificate that is no machine's it is nobody.
func (a *API) caller(r *http.Request) (id string, by machine.Proof) {
	if c := verified(r.TLS); c != nil {
		if id, err := a.Certificates.Identify(c, a.Now()); err == nil {
			return id, machine.Proof{Digest: secret.Digest(ca.KeyDigest(c)), Key: true}
		}
		return "", machine.Proof{Key: true}
	}
	id, presented := machineBearer(r)
	return id, machine.Bearer(presented)
}

// verified is the certificate that opened the connection, nil for none. Only
// the listener that verifies against our roots asks for one.
func verified(s *tls.ConnectionState) *x509.Certificate {
	if s == nil || len(s.VerifiedChains) == 0 {
		return nil
	}
	return s.VerifiedChains[0][0]
}

// check is POST /v1/check, nearly all of the plane's traffic. A body equal to
// the last one is not decoded and the answer is put together by hand.
func (a *API) check(c *call) error {
	marks := c.r.Header[wire.HeaderCheck]
	if len(marks) != 1 {
		return bad("one %s header is wanted", wire.HeaderCheck)
	}
	mark, err := wire.ParseCheckMark(marks[0])
	if err != nil {
		return bad("%s", err)
	}
	id, by := a.caller(c.r)
	now := a.Now()
	sum := sha256.Sum256(c.body)
	given := newMark()
	var wanted, spared machine.Held
	wanted.URL, spared.URL = a.now(wire.MaterialURL).Counted()
	wanted.Trust, spared.Trust = a.now(wire.MaterialTrust).Counted()
	did, err := a.Store.Check(c.ctx(), store.Check{
		Machine: id,
		Check: machine.Check{Presented: by, Mark: mark, Digest: [16]byte(sum[:16]), Given: given, At: now, Gate: c.gate.Version, Retiring: c.gate.Retiring,
			Wanted: wanted, Spared: spared},
		Body: func() (*wire.CheckBody, error) {
			var b wire.CheckBody
			return &b, decodeLenient(c.body, &b)
		},
	})
	c.told = did.Standing == identity.Current || did.Standing == identity.Next || did.Standing == identity.Behind
	if err != nil {
		a.metrics.checkFailed.Inc()
		return err
	}
	a.metrics.checks[did.Standing].Inc()
	switch did.Standing {
	case identity.Current:
	case identity.Next:
		a.metrics.confirmed.Inc()
	default:
		return standing(did.Standing, id)
	}
	a.metrics.skewed(mark.Clock, now)

	b := append(c.made[:0], `{"machine":"`...)
	b = append(b, id...)
	b = append(b, `","generation":`...)
	b = strconv.AppendInt(b, did.Generation, 10)
	b = append(b, a.constant...)
	b = append(b, given[:]...)
	b = append(b, `","plane_time":"`...)
	b = now.UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, '"')
	if did.Asked != (machine.Asked{}) {
		b = appendAsked(b, did.Asked, did.Toward)
	}
	b = a.appendWants(b, c.gate.Version, did.Held)
	b = append(b, "}\n"...)
	// The length is left to net/http, which knows it for so short an answer
	// and does not put it into a map.
	c.w.Header()["Content-Type"] = jsonType
	c.w.Write(b)
	c.made = b
	return nil
}

// appendWants tells of the versions that the machine is to have and has not.
func (a *API) appendWants(b []byte, gate int64, held machine.Held) []byte {
	next := `,"want":{"`
	add := func(kind string, version int64, ok bool) {
		if ok {
			b = append(append(append(b, next...), kind...), `":`...)
			b = strconv.AppendInt(b, version, 10)
			next = `,"`
		}
	}
	if a.Gate != nil {
		v, ok := a.Gate.Want(gate)
		add(wire.MaterialGate, v, ok)
	}
	v, ok := a.now(wire.MaterialURL).Want(held.URL)
	add(wire.MaterialURL, v, ok)
	v, ok = a.now(wire.MaterialTrust).Want(held.Trust)
	add(wire.MaterialTrust, v, ok)
	if next == `,"` {
		b = append(b, '}')
	}
	return b
}

// constantAnswer is the middle of every answer, up to the mark's value.
func constantAnswer(p machine.Policy) []byte {
	b := []byte(`,"interval_s":`)
	b = appendSeconds(b, p.Interval)
	b = append(b, `,"min_gap_s":`...)
	b = appendSeconds(b, p.MinGap())
	if p.TestFloor > 0 {
		b = append(b, `,"test_floor_s":`...)
		b = appendSeconds(b, p.TestFloor)
	}
	return append(b, `,"mark":"`...)
}

func appendSeconds(b []byte, d time.Duration) []byte {
	return strconv.AppendFloat(b, d.Seconds(), 'f', -1, 64)
}

// newMark makes 16 random characters of a-z and 2-7.
func newMark() (m [16]byte) {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567"
	// Not a secret: it only has to differ from the others.
	for half := range 2 {
		for i, v := 8*half, rand.Uint64(); i < 8*half+8; i, v = i+1, v>>5 {
			m[i] = alphabet[v&31]
		}
	}
	return m
}

func appendAsked(b []byte, asked machine.Asked, toward identity.Rung) []byte {
	b = append(b, `,"requests":{`...)
	sep := ""
	for _, q := range []struct {
		name string
		at   time.Time
	}{{"logs", asked.Logs}, {"rotate", asked.Rotate}} {
		if q.at.IsZero() {
			continue
		}
		b = append(b, sep...)
		b = append(b, '"')
		b = append(b, q.name...)
		b = append(b, `":"`...)
		b = q.at.UTC().AppendFormat(b, time.RFC3339Nano)
		b = append(b, '"')
		sep = ","
	}
	if word := machine.RungWord(toward); word != "" && !asked.Rotate.IsZero() {
		b = append(b, `,"rotate_kind":"`...)
		b = append(b, word...)
		b = append(b, '"')
	}
	return append(b, '}')
}

// rotate is POST /v1/credential/rotate (R20).
func (a *API) rotate(c *call) error {
	var req wire.RotateRequest
	if err := decodeLenient(c.body, &req); err != nil {
		return err
	}
	digest, err := secret.ParseDigest(req.Digest)
	if err != nil {
		return bad("%s", err)
	}
	id, by := a.caller(c.r)
	did, err := a.Store.Rotate(c.ctx(), store.Rotation{
		Machine: id, Presented: by, Generation: req.Generation, Digest: digest, At: a.Now(),
	})
	if did.Standing == identity.Next {
		a.metrics.confirmed.Inc()
	}
	if did.Staged {
		a.metrics.staged.Inc()
	}
	if err != nil {
		return err
	}
	a.usedBy(c, id, did.Standing)
	if err := standing(did.Standing, id); err != nil {
		return err
	}
	return c.answer(wire.RotateAnswer{Machine: id, Generation: req.Generation})
}
