package api

import (
	"crypto/x509"
	"net/http"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/identity"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// Authority issues machines' certificates and reads them.
type Authority interface {
	Machine(r ca.Request, machine string, now, until time.Time) (chain string, leaf *x509.Certificate, err error)
	Identify(c *x509.Certificate, now time.Time) (machine string, err error)
	Bundle() ([]byte, error)
}

// Lives of machines' certificates.
const (
	CertificateLife    = 8 * time.Hour
	MaxCertificateLife = 48 * time.Hour
	MinCertificateLife = time.Hour
)

var (
	errNoMTLS = &refusal{http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict,
		Message: "this plane has no listener for certificates", Hint: "planed serve --mtls-listen ADDR makes one"}}
	errNoBundle = &refusal{http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: "this plane has no authority of its own"}}
)

// certify is POST /v1/credential/certificate (R27). It stands in front of the
// gate, as material does: a machine that slept past its certificate and through a
// rotation of the gate begins here. The row takes note of the
// key before the certificate is made, so that an answer that is lost leaves
// nothing but a request to repeat.
func (a *API) certify(c *call) error {
	if a.MTLSURL == "" {
		return errNoMTLS
	}
	var req wire.CertificateRequest
	if err := decodeLenient(c.body, &req); err != nil {
		return err
	}
	asked, err := ca.ParseRequest(req.CSR)
	if err != nil {
		return bad("%s", err)
	}
	id, bearer := machineBearer(c.r)
	var held secret.Digest
	if cert := verified(c.r.TLS); cert != nil {
		holder, err := a.Certificates.Identify(cert, a.Now())
		if err != nil || holder != id {
			id, bearer = "", secret.Digest{}
		} else {
			held = secret.Digest(ca.KeyDigest(cert))
		}
	}
	now := a.Now().Truncate(time.Millisecond)
	until := now.Add(a.CertificateLife).Truncate(time.Second)
	did, err := a.Store.Certify(c.ctx(), store.Certification{Machine: id, Certification: machine.Certification{
		Bearer: bearer, Held: held, Key: secret.Digest(asked.Digest), Until: until, At: now}})
	if err != nil {
		a.metrics.certificates.refused.Inc()
		return err
	}
	if did.Standing == identity.Next {
		a.metrics.confirmed.Inc()
	}
	if err := standing(did.Standing, id); err != nil {
		a.metrics.certificates.refused.Inc()
		return err
	}
	chain, leaf, err := a.Certificates.Machine(asked, id, now, until)
	if err != nil {
		return err
	}
	a.metrics.certificates.issued.Inc()
	return c.answer(wire.CertificateAnswer{Machine: id, Generation: did.Generation, Chain: chain, URL: a.MTLSURL,
		IssuedAt: now.UTC(), ExpiresAt: leaf.NotAfter.UTC()})
}

// trustBundle is GET /v1/spiffe/bundle.
func (a *API) trustBundle(c *call) error {
	if a.Certificates == nil {
		return errNoBundle
	}
	b, err := a.Certificates.Bundle()
	if err != nil {
		return err
	}
	h := c.w.Header()
	h["Content-Type"] = jsonType
	h["Cache-Control"] = noStore
	c.w.Write(b)
	return nil
}
