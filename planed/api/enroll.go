package api

import (
	"errors"
	"net/http"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/enrol"
	"fleet.example/fleet/planed/store"
)

// enrollPerSource bounds what one source may ask for within ten minutes. A site
// behind one address has room; what many sources can do is bounded by enrol.Evict.
const enrollPerSource = 60

func digest(field, s string) (secret.Digest, error) {
	d, err := secret.ParseDigest(s)
	if err != nil || d.IsZero() || d == (secret.Text{}).Digest() { // R24: an empty secret fails closed
		return d, bad("%s: a digest is 64 hexadecimal digits, and not one of nothing", field)
	}
	return d, nil
}

// enroll is POST /v1/enroll: anybody may wait for approval. Nothing is audited
// before a person decides, so that strangers write nothing into the log.
func (a *API) enroll(c *call) error {
	if wait, ok := a.enrollers.Allow(c.r.RemoteAddr); !ok {
		return &limitedError{wait, "too many machines ask for approval from there"}
	}
	a.enrollers.Fail(c.r.RemoteAddr)
	var req wire.EnrollRequest
	if err := decodeLenient(c.body, &req); err != nil {
		return err
	}
	now := a.Now()
	r := enrol.Request{Report: enrol.Report(req.Report), At: now, ExpiresAt: now.Add(enrol.Life),
		From: a.enrollers.Network(c.r.RemoteAddr)}
	var err error
	if r.Installation, err = digest("installation_digest", req.InstallationDigest); err != nil {
		return err
	}
	if r.Credential, err = digest("credential_digest", req.CredentialDigest); err != nil {
		return err
	}
	if r.Poll, err = digest("poll_digest", req.PollDigest); err != nil {
		return err
	}
	if r.Poll == r.Credential {
		return bad("poll_digest: the poll secret is not the credential")
	}
	code := ""
	for range 4 { // two alike among 2^40 are a chance of one in millions
		code = enrol.NewCode()
		d, _, _ := enrol.Digest(code)
		if err = a.Store.Enrol(c.ctx(), d, r); !errors.Is(err, store.ErrExists) {
			break
		}
	}
	if err != nil {
		return err
	}
	return c.answer(wire.EnrollAnswer{Code: wire.ShowCode(code), URL: a.url() + wire.PathApprovePage,
		ExpiresAt: wire.Time{Time: r.ExpiresAt}, ExpiresS: enrol.Life.Seconds(), PollS: enrol.PollEvery.Seconds()})
}

// poll is POST /v1/enroll/poll. Expired, refused, used and never heard of are
// the same 401.
func (a *API) poll(c *call) error {
	token, ok := bearer(c.r)
	if !ok {
		return errUnauthorized
	}
	p, err := a.Store.Poll(c.ctx(), token.Digest(), a.Now())
	switch {
	case errors.Is(err, store.ErrNotFound):
		return errUnauthorized
	case err != nil:
		return err
	case p.Machine == "":
		return c.answer(wire.EnrollPollAnswer{Status: wire.EnrollWaiting, PollS: enrol.PollEvery.Seconds()})
	}
	return c.answer(wire.EnrollPollAnswer{Status: wire.EnrollApproved, Machine: p.Machine, Generation: p.Generation, Name: p.Name, Owner: p.Owner})
}

// errNoCode is one answer for every code that finds nothing.
var errNoCode = &refusal{http.StatusNotFound, wire.ErrorDetail{Code: wire.CodeNotFound, Message: store.ErrNoCode.Error(),
	Hint: "compare it with what the machine shows; a code is good once, and for ten minutes"}}

// codeError gives the refusals of a code their words.
func codeError(err error) error {
	var blocked *store.BlockedError
	var living *store.LivingError
	switch {
	case errors.Is(err, store.ErrNoCode):
		return errNoCode
	case errors.As(err, &blocked):
		return &limitedError{blocked.Wait, err.Error()}
	case errors.As(err, &living):
		return &refusal{http.StatusConflict, wire.ErrorDetail{Code: wire.CodeConflict, Message: err.Error(),
			Hint: "if that credential is lost, fleet delete " + living.Machine + " and approve again; the code stays good"}}
	}
	return err
}

func (c *call) code() (wire.CodeRequest, secret.Digest, string, error) {
	var req wire.CodeRequest
	if err := c.decodeStrict(&req); err != nil {
		return req, secret.Digest{}, "", err
	}
	d, normal, _ := enrol.Digest(req.Code) // no code at all is looked up, and counted, like a wrong one
	return req, d, normal, nil
}

// lookAtCode is POST /v1/enrollments/look.
func (a *API) lookAtCode(c *call) error {
	_, d, normal, err := c.code()
	if err != nil {
		return err
	}
	r, err := a.Store.Look(c.ctx(), d, c.by(), a.Now())
	if err != nil {
		return codeError(err)
	}
	return c.answer(enrollmentView(normal, r))
}

func enrollmentView(normal string, r enrol.Request) wire.Enrollment {
	return wire.Enrollment{Schema: wire.SchemaEnrollment, Code: wire.ShowCode(normal), Unproven: true, Report: r.Report,
		RequestedAt: wire.Time{Time: r.At}, ExpiresAt: wire.Time{Time: r.ExpiresAt}}
}

// approve is POST /v1/enrollments/approve.
func (a *API) approve(c *call) error {
	req, d, normal, err := c.code()
	if err != nil {
		return err
	}
	if req.Name != "" {
		if err := checkName(req.Name); err != nil {
			return err
		}
	}
	if err := checkLabels(req.Labels, nil); err != nil {
		return err
	}
	if err := a.touched(c, req.Touch, wire.ApproveSubject(normal)); err != nil {
		return err
	}
	return a.decide(c, store.Decision{Code: d, Approve: true, Name: req.Name, Labels: req.Labels})
}

// deny is POST /v1/enrollments/deny.
func (a *API) deny(c *call) error {
	req, d, _, err := c.code()
	if err != nil {
		return err
	}
	if req.Name != "" || len(req.Labels) > 0 || req.Touch != nil {
		return bad("a denial takes the code alone")
	}
	return a.decide(c, store.Decision{Code: d})
}

func (a *API) decide(c *call, d store.Decision) error {
	d.By, d.At = c.by(), a.Now()
	did, err := a.Store.Decide(c.ctx(), d)
	if err != nil {
		return codeError(err)
	}
	out := wire.Enrolled{Schema: wire.SchemaEnrolled, Status: wire.EnrollDenied, Report: did.Request.Report}
	if d.Approve {
		out.Status, out.Machine, out.Name, out.Owner = admission(did.Outcome), did.Row.ID, did.Row.Name, did.Row.Owner
	}
	return c.answer(out)
}

// linkLife is how long a link to the pages is good for, unused.
const linkLife = 2 * time.Minute

// webLink is POST /v1/web/links.
func (a *API) webLink(c *call) error {
	link := secret.New("fl_")
	now := a.Now()
	if err := a.Store.MakeLink(c.ctx(), c.by(), c.who.Key, link.Digest(), now, now.Add(linkLife)); err != nil {
		return err
	}
	return c.answer(wire.WebLink{Schema: wire.SchemaWebLink, URL: a.url() + wire.PathSignInPage + "?link=" + link.Reveal(),
		ExpiresAt: wire.Time{Time: now.Add(linkLife)}})
}
