package hostcli

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"fleet.example/fleet/core/approval"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// byCode is a plane that knows nobody here: a machine is admitted once somebody
// who is logged in elsewhere has approved the code that is shown (R7). Who has
// SSH to a machine may install there, and who admits it is still a person with a
// session (R8).
type byCode struct {
	client *planeclient.Client
	call   *command.Call
	pause  func() // takes a moving line away before something is said
	report wire.EnrollReport
	got    wire.EnrollPollAnswer
}

// withoutSession opens the plane that the call means, if its root is kept here
// though no session is. Anything else is the error that was.
func withoutSession(c *command.Call, was error) (*state.Plane, *planeclient.Client, error) {
	f := fault.Of(was)
	if f == nil || f.Code != wire.CodeLoginRequired || c.String("token-file") != "" || !c.Interactive() {
		return nil, nil, was
	}
	p, err := operator.Known(c)
	if err != nil {
		return nil, nil, was
	}
	client, err := planeclient.New(planeclient.Options{URL: p.URL(), RootsPEM: p.RootsPEM()})
	return p, client, err
}

// Introduce takes what people are shown of the machine.
func (b *byCode) Introduce(r wire.EnrollReport) { b.report = r }

// Admit asks for approval, and waits for it.
func (b *byCode) Admit(ctx context.Context, r wire.AdmitRequest) (wire.AdmitAnswer, error) {
	installation, err := secret.ParseDigest(r.InstallationDigest)
	if err != nil {
		return wire.AdmitAnswer{}, err
	}
	credential, err := secret.ParseDigest(r.CredentialDigest)
	if err != nil {
		return wire.AdmitAnswer{}, err
	}
	approve := "fleet approve "
	b.got, err = approval.Await(ctx, b.client, approval.Request{Installation: installation, Credential: credential, Report: b.report,
		Show: func(a wire.EnrollAnswer) {
			b.pause()
			args := []string{a.Code}
			if r.Name != "" {
				args = append(args, "--name", r.Name)
			}
			for _, k := range slices.Sorted(maps.Keys(r.Labels)) {
				args = append(args, "--label", k+"="+r.Labels[k])
			}
			b.call.Notef("nobody is logged in here; somebody who is, anywhere, admits the machine as theirs")
			b.call.Notef("open  %s", command.Clean(a.URL))
			b.call.Notef("code  %s   (or: %s%s)", command.Clean(a.Code), approve, command.Clean(strings.Join(args, " ")))
			b.call.Notef("It is good for %d minutes. Waiting …", int(a.ExpiresS/60))
		},
		Notice: func(format string, args ...any) { b.pause(); b.call.Notef(format, args...) }})
	if errors.Is(err, approval.ErrNotTaken) {
		return wire.AdmitAnswer{}, fault.New(fault.NeedPerson, wire.CodeLoginRequired, "the plane's gate takes no requests from here").
			WithHint("fleet login %s; or carry the bundle there and run agentd enroll --gate-token-file FILE", b.client.URL())
	}
	if err != nil {
		return wire.AdmitAnswer{}, err
	}
	return wire.AdmitAnswer{Machine: b.got.Machine, Generation: b.got.Generation, Status: wire.AdmitNew, Name: b.got.Name, Owner: b.got.Owner}, nil
}

// Machine is the row as the approval named it. Nobody here may read it; that the
// plane took the very credential whose digest was approved, the machine's agent
// has just heard from it, and the install holds the two against each other.
func (b *byCode) Machine(_ context.Context, id string) (wire.Machine, error) {
	if id != b.got.Machine || id == "" {
		return wire.Machine{}, fault.New(fault.NeedPerson, wire.CodeLoginRequired, "nobody is logged in here").WithHint("fleet login %s", b.client.URL())
	}
	return wire.Machine{Schema: wire.SchemaMachine, ID: id, Name: b.got.Name, Owner: b.got.Owner, Labels: map[string]string{}, Presence: wire.Present}, nil
}

// Delete is no stranger's to ask for.
func (b *byCode) Delete(context.Context, string) (wire.DeleteAnswer, error) {
	return wire.DeleteAnswer{}, fault.New(fault.NeedPerson, wire.CodeLoginRequired, "nobody is logged in here").WithHint("fleet login %s", b.client.URL())
}
