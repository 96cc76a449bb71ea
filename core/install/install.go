// Package install takes a machine from an SSH destination to a matched row on
// the plane, in ten steps: connect, host-key, platform, admit, upload, verify,
// credential, service, first-check, match.
//
// It may be interrupted anywhere and run again (R6). Why that ends right:
//
//   - What each step leaves is found again by the step itself, on the machine
//     or on the plane, never in a note of the installer's. A finished step is
//     skipped because its result is there.
//   - Everything on the machine appears by a rename or a link of something
//     complete: the installation id, the version directory, the credential, the
//     service's files.
//   - The installation id is made once by a link that cannot replace, so two
//     installers agree on it; the plane has at most one row for its digest, so
//     they agree on the machine.
//   - The secret is made here and its digest is sent first. If its way to the
//     machine breaks, the row's credential has never succeeded, and the next
//     admission replaces it. If it did arrive and worked, the plane says
//     `living`, nothing is replaced, and the credential step is skipped.
//   - A lock that lives as long as this connection's shell keeps two installers
//     from interleaving on one machine; a dead one's lock is recognised by its
//     process being gone.
//
// Nothing but SSH's standard input carries the secret (R1).
//
// The package must not know command lines and terminals, nor how plugins are
// found and started: Env has what it is given of these.
package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"path"
	"strings"
	"time"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/remote"
	"fleet.example/fleet/core/route"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

// Plane is what an install asks of the control plane.
type Plane interface {
	Admit(ctx context.Context, r wire.AdmitRequest) (wire.AdmitAnswer, error)
	Machine(ctx context.Context, id string) (wire.Machine, error)
	Delete(ctx context.Context, id string) (wire.DeleteAnswer, error)
}

// Elsewhere is a Plane at which nobody here is logged in. Its Admit waits until
// somebody who is, somewhere, has approved what Introduce said before.
type Elsewhere interface {
	Plane
	Introduce(r wire.EnrollReport)
}

// Manager is a launched service-manager plugin.
type Manager interface {
	sdk.ServiceManager
	Description() sdk.Description
	Close() error
}

// Env is what an install works with. All of it is given; nothing is global.
type Env struct {
	Plane Plane
	// Links and PlaneURL, RootsPEM belong to the plane that was logged in to.
	Links    *state.Plane
	PlaneURL string
	RootsPEM string
	// PersonKey is the key that logged in, in authorized_keys form, or "".
	PersonKey string

	Resolver sshconfig.Resolver
	Pins     *hostkey.Store
	// Transport starts a transport plugin, which answers to th.
	Transport func(ctx context.Context, name string, th sdk.TransportHost) (route.Transport, error)
	// Output takes what programs on the way to a host write on their standard
	// error.
	Output io.Writer

	// Managers names the service-manager plugins that act on a platform; Launch
	// starts one, and may be called from several goroutines.
	Managers func(goos, goarch string) []string
	Launch   func(ctx context.Context, name string) (Manager, error)

	Artifact func(goos, goarch string) (*artifact.Artifact, error)
	Signers  artifact.Signers

	// Open reaches a machine's agent.
	Open OpenAgent

	// Ask asks the person whether the key is right; nil means nobody can be asked.
	Ask func(ctx context.Context, m hostkey.Met) (bool, error)
	// HopMet is told of every jump host's key: what confirmed it, "" where it was
	// pinned before, or why it was refused. Nil: nobody wants to know.
	HopMet func(m hostkey.Met, by string, err error)
	// Report is told of every finished step; Notice of what is being waited for;
	// Sent of how many bytes of an upload are on their way.
	Report func(wire.Step)
	Notice func(format string, args ...any)
	Sent   func(sent, size int64)
	Notef  func(format string, args ...any) // -v
}

// Options are one install's.
type Options struct {
	Host         string
	SSH          sshconfig.Flags
	Name         string
	Labels       map[string]string
	Scope        string // user | system | "" to choose
	Manager      string // a plugin's name, or "auto"
	Fingerprints []string
	Trust        string // "" | known_hosts | cert-authority
	// StatementSigners are the keys whose statements the machine is to take, in
	// place of those that it has; empty: it keeps them, or takes PersonKey's.
	StatementSigners []byte
	// Listen is where the agent is to serve its API on the machine's loopback
	// interface, too; "off": nowhere, "": as before.
	Listen string
}

// run is one install under way.
type run struct {
	*Env
	o     Options
	doc   *wire.Install
	conf  *sshconfig.Config
	conn  *sshconn.Conn
	lent  bool   // conn is another's, and stays
	free  func() // gives up the lock on one
	facts *sshconn.Facts
	host  *remote.Host

	dirs         place.Dirs
	scope        string
	record       *wire.ServiceRecord // as found on the machine
	found        found
	manager      Manager
	detected     *sdk.Detection // what manager says of the machine; nil until asked
	installation secret.Text
	admitted     wire.AdmitAnswer
	secret       secret.Text
	art          *artifact.Artifact
	runs         string // the version that is to run: art's, or the former one while sessions run (R4)
	onConnect    bool   // nobody asked for the update by name
	deaf         bool   // the agent does not answer
	confirmed    bool   // the plane has answered the agent lately
	switched     bool   // current now names another version than before
	was          string
}

// stepTimeout bounds each step by itself. A person elsewhere may have to approve
// the admission, whose code is good for ten minutes.
const (
	stepTimeout  = 5 * time.Minute
	admitTimeout = 12 * time.Minute
)

// step runs one step and records it. do returns skipped=true if its result was
// there already, and may say more in detail.
func (r *run) step(ctx context.Context, name string, do func(ctx context.Context) (skipped bool, detail string, err error)) error {
	limit := stepTimeout
	if name == "admit" {
		limit = admitTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	begin := time.Now()
	r.Notice("%s", name)
	skipped, detail, err := do(ctx)
	s := wire.Step{Name: name, Status: wire.StepOK, MS: time.Since(begin).Milliseconds(), Detail: detail}
	switch {
	case err != nil:
		s.Status, s.Detail = wire.StepFailed, err.Error()
	case skipped:
		s.Status = wire.StepSkipped
	}
	r.doc.Steps = append(r.doc.Steps, s)
	r.Report(s)
	return err
}

// Install installs the agent on a machine and links it. The document is
// returned even with an error and says how far it came.
func (e *Env) Install(ctx context.Context, o Options) (*wire.Install, error) {
	own := *e
	r := &run{Env: &own, o: o, doc: &wire.Install{Schema: wire.SchemaInstall, Host: o.Host, Steps: []wire.Step{}}}
	own.HopMet = func(m hostkey.Met, by string, err error) {
		r.doc.Jumps = append(r.doc.Jumps, jumpDoc(m, by, err))
		if e.HopMet != nil {
			e.HopMet(m, by, err)
		}
	}
	defer r.close()
	for _, s := range []struct {
		name string
		do   func(context.Context) (bool, string, error)
	}{
		{"connect", r.connect}, {"host-key", r.hostKey}, {"platform", r.platform}, {"admit", r.admit},
		{"upload", r.upload}, {"verify", r.verify}, {"credential", r.credential}, {"service", r.service},
		{"first-check", r.firstCheck}, {"match", r.match},
	} {
		if err := r.step(ctx, s.name, s.do); err != nil {
			var f *fault.Error
			if errors.As(err, &f) {
				return r.doc, err
			}
			return r.doc, fmt.Errorf("%s: %w", s.name, err)
		}
	}
	return r.doc, nil
}

func (r *run) close() {
	if r.manager != nil {
		if err := r.manager.Close(); err != nil {
			r.Notef("cannot end the service plugin: %v", err)
		}
	}
	if r.free != nil {
		r.free()
	}
	if r.conn != nil && !r.lent {
		r.conn.Close()
	}
}

// admit makes or finds the machine's row. Only digests travel.
func (r *run) admit(ctx context.Context) (bool, string, error) {
	if p, ok := r.Plane.(Elsewhere); ok {
		if r.found.credential { // whose it is, only the plane tells, and only to who is logged in
			return false, "", fault.New(fault.NeedPerson, wire.CodeLoginRequired, "%s has been admitted before, and nobody is logged in here", r.o.Host).
				WithHint("fleet login %s, and run this again", r.PlaneURL)
		}
		p.Introduce(wire.EnrollReport{Host: r.facts.HostName, Account: r.facts.User, OS: r.facts.GOOS, Arch: r.facts.GOARCH,
			Version: r.art.Manifest.Version, Scope: r.scope, ServiceManager: r.managerName()})
	}
	fresh := secret.New("fm_")
	a, err := r.Plane.Admit(ctx, wire.AdmitRequest{
		InstallationDigest: r.installation.Digest().Hex(), CredentialDigest: fresh.Digest().Hex(),
		Name: r.o.Name, Labels: r.o.Labels, Scope: r.scope, ServiceManager: r.managerName(),
	})
	if err != nil {
		return false, "", err
	}
	r.admitted = a
	if a.Status != wire.AdmitLiving {
		r.secret = fresh
		return false, a.Machine, nil
	}
	if !r.found.credential {
		return false, "", r.credentialLost()
	}
	return true, a.Machine + " (admitted before)", nil
}

// credentialLost is what a person must decide when the row's credential has
// worked and the machine has none that does.
func (r *run) credentialLost() error {
	return fault.New(fault.Refused, "credential_lost",
		"%s is admitted as %s and its credential has worked, but the machine no longer has it", r.o.Host, r.admitted.Machine).
		WithHint("if it is lost, delete the machine and install again:\nfleet delete %s", r.admitted.Machine)
}

// credential hands the secret to agentd on SSH's standard input.
func (r *run) credential(ctx context.Context) (bool, string, error) {
	if err := r.signers(ctx); err != nil {
		return false, "", err
	}
	if r.secret.Empty() {
		return true, "the machine's own works", nil
	}
	doc, err := json.Marshal(wire.Credential{Schema: wire.SchemaCredential, Machine: r.admitted.Machine,
		Generation: r.admitted.Generation, Secret: r.secret.Reveal(),
		Plane: wire.CredentialPlane{URL: r.PlaneURL, RootsPEM: r.RootsPEM}, Gate: r.admitted.Gate})
	if err != nil {
		return false, "", err
	}
	_, err = r.conn.RunOK(ctx, sshconn.Script{Args: []string{r.dirs.Data}, Input: doc,
		Body: `exec "$1/current/agentd" credential install --data "$1"`})
	clear(doc)
	if err != nil {
		return false, "", fmt.Errorf("cannot place the credential: %w", err)
	}
	return false, "", nil
}

// signers leaves on the machine whose statements it takes: over SSH, since what
// the plane says of that counts for nothing (R37).
func (r *run) signers(ctx context.Context) error {
	file, keys := path.Join(r.dirs.Data, place.SignersFile), r.o.StatementSigners
	if len(keys) == 0 {
		if r.PersonKey == "" {
			return nil
		}
		res, err := r.conn.Run(ctx, sshconn.Script{Args: []string{file}, Body: `[ -e "$1" ] && echo there || :`})
		if err != nil {
			return err
		}
		if res.Exit != 0 || strings.Contains(string(res.Stdout), "there") {
			return nil
		}
		keys = []byte(r.PersonKey + "\n")
	}
	if _, err := r.host.WriteFile(ctx, file, keys, 0o600, false); err != nil {
		return fmt.Errorf("cannot write the signers: %w", err)
	}
	return nil
}

func (r *run) managerName() string {
	if r.manager != nil {
		return r.manager.Description().Name
	}
	if r.record != nil {
		return r.record.Manager
	}
	return ""
}
