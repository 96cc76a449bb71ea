package planeclient

import (
	"context"
	"errors"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// Enroll asks for admission, for a machine that nobody has admitted. It needs
// no token.
func (c *Client) Enroll(ctx context.Context, r wire.EnrollRequest) (a wire.EnrollAnswer, err error) {
	err = c.do(ctx, "POST", wire.PathEnroll, r, &a)
	var f *fault.Error
	if errors.As(err, &f) && f.Code == wire.CodeLoginRequired {
		// Nobody logs in to ask, so it is the gate that refuses.
		err = fault.New(fault.Refused, wire.CodeUnauthorized, "the plane does not let this machine ask: it has a gate")
	}
	return a, err
}

// PollEnroll asks what became of it, with the poll secret. A request that is
// over without an approval gives an error with wire.CodeUnauthorized, whatever
// ended it.
func (c *Client) PollEnroll(ctx context.Context, poll secret.Text) (a wire.EnrollPollAnswer, err error) {
	as := *c
	as.token = poll
	err = as.do(ctx, "POST", wire.PathEnrollPoll, struct{}{}, &a)
	var f *fault.Error
	if errors.As(err, &f) && f.Code == wire.CodeLoginRequired {
		err = fault.New(fault.NeedPerson, wire.CodeUnauthorized, "the plane knows no such request")
	}
	return a, err
}

// LookAtCode shows what waits under a code.
func (c *Client) LookAtCode(ctx context.Context, code string) (e wire.Enrollment, err error) {
	err = c.do(ctx, "POST", wire.PathEnrollmentLook, wire.CodeRequest{Code: code}, &e)
	return e, err
}

// Approve admits the machine that waits under a code.
func (c *Client) Approve(ctx context.Context, r wire.CodeRequest) (e wire.Enrolled, err error) {
	err = c.do(ctx, "POST", wire.PathEnrollmentApprove, r, &e)
	return e, err
}

// Deny ends the request of the machine that waits under a code.
func (c *Client) Deny(ctx context.Context, code string) (e wire.Enrolled, err error) {
	err = c.do(ctx, "POST", wire.PathEnrollmentDeny, wire.CodeRequest{Code: code}, &e)
	return e, err
}

// WebLink makes a link that signs the person in to the plane's pages, once.
func (c *Client) WebLink(ctx context.Context) (l wire.WebLink, err error) {
	err = c.do(ctx, "POST", wire.PathWebLinks, struct{}{}, &l)
	return l, err
}
