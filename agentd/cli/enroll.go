package cli

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"time"

	"github.com/mdp/qrterminal/v3"
	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/agentd/account"
	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/enroll"
	"fleet.example/fleet/agentd/latch"
	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

func enrollCommand(version string) *command.Command {
	return &command.Command{Name: "enroll", Summary: "have a person admit this machine by a short code, and install the agent",
		Help: `For a machine that no operator's SSH reaches. Run it from the unpacked artifact:
it verifies the bundle that it is part of, shows a code and a URL, and waits, at
most ten minutes, until somebody who is logged in there, or with fleet approve,
has approved. Then it takes its credential, registers the service and checks.

The account decides the scope: root's is system, everybody else's user. Run again
after an interruption it finishes; where the machine is admitted it asks nobody.`,
		Flags: append(command.JSONFlags(true),
			&ufcli.StringFlag{Name: "plane", Usage: "the plane's `URL`"},
			&ufcli.StringFlag{Name: "ca-pin", Usage: "`sha256:HEX` of the plane's root key, as planed init printed it"},
			&ufcli.StringFlag{Name: "artifact-signers", Usage: "`FILE` with the public keys that may have signed the bundle"},
			&ufcli.StringFlag{Name: "signers", Usage: "`FILE` with the public keys of persons whose signed statements this machine takes: where the plane is"},
			&ufcli.StringFlag{Name: "gate-token-file", Usage: "the private `FILE` with the plane's gate token, where the plane has a gate"},
			&ufcli.StringFlag{Name: "service-manager", Usage: "service-manager plugin `NAME`", Value: "auto"},
			&ufcli.BoolFlag{Name: "no-qr", Usage: "show no QR code of the URL on a terminal"},
		),
		Run: func(ctx context.Context, c *command.Call) error { return runEnroll(ctx, c, version) }}
}

// schemaEnroll names what the command prints: one line while it waits, under
// --jsonl, and one when it is done.
const schemaEnroll = "fleet.enroll/v1"

// enrollDoc is fleet.enroll/v1.
type enrollDoc struct {
	Schema    string     `json:"schema"`
	Status    string     `json:"status"` // waiting | enrolled
	Code      string     `json:"code,omitempty"`
	URL       string     `json:"url,omitempty"`
	ExpiresAt *wire.Time `json:"expires_at,omitempty"`
	Machine   string     `json:"machine,omitempty"`
	Name      string     `json:"name,omitempty"`
	Owner     string     `json:"owner,omitempty"`
	Manager   string     `json:"service_manager,omitempty"`
	Checked   bool       `json:"checked"`
}

// enrolling is one use of the command.
type enrolling struct {
	*command.Call
	version  string
	planeURL string
	scope    string
	dirs     place.Dirs
	account  account.Account
	signers  artifact.Signers
	doc      enrollDoc
}

func runEnroll(ctx context.Context, c *command.Call, version string) error {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	e := &enrolling{Call: c, version: version, account: account.Current(ctx), doc: enrollDoc{Schema: schemaEnroll}}
	if c.String("plane") == "" {
		return fault.Usagef("--plane URL is missing")
	}
	var err error
	if e.planeURL, err = wire.PlaneURL(c.String("plane")); err != nil {
		return fault.Usagef("--plane: %s", err)
	}
	if err := e.locate(); err != nil {
		return err
	}
	bundle, err := e.bundle()
	if err != nil {
		return err
	}
	persons, err := e.persons()
	if err != nil {
		return err
	}
	roots := planeclient.SystemRoots
	if pin := c.String("ca-pin"); pin != "" {
		if roots, err = planeclient.VerifyPin(ctx, e.planeURL, pin); err != nil {
			return err
		}
	}
	unlock, err := e.lock()
	if err != nil {
		return err
	}
	defer unlock()
	// Whatever refuses does so before a person is asked.
	if err := bundle.Place(e.dirs.Data, e.signers); err != nil {
		return err
	}
	if err := e.takes(persons); err != nil {
		return err
	}
	if err := e.admitted(ctx, roots); err != nil {
		return err
	}
	return e.finish(ctx)
}

// locate resolves the installation's directories for the scope.
func (e *enrolling) locate() error {
	e.scope = place.User
	if e.account.UID == 0 {
		e.scope = place.System // root has no session of its own to bind a user service to
	}
	f := locate.Local(e.account, e.Getenv)
	f.Scope = e.scope
	var err error
	if e.dirs, err = place.Resolve(f); err != nil {
		return err
	}
	if d := e.String("data"); d != "" {
		if e.dirs.Data, err = filepath.Abs(d); err != nil {
			return err
		}
		e.dirs.Runtime = filepath.Join(e.dirs.Data, "run")
	}
	if r := e.String("runtime"); r != "" {
		if e.dirs.Runtime, err = filepath.Abs(r); err != nil {
			return err
		}
	}
	if err := os.MkdirAll(e.dirs.Data, 0o700); err != nil {
		return fmt.Errorf("cannot make the data directory: %w", err)
	}
	if err := locate.CheckPrivate(e.dirs.Data); err != nil {
		return fault.New(fault.Failure, "data_unusable", "cannot use the data directory: %w", err)
	}
	return nil
}

// bundle verifies the bundle that this program is part of.
func (e *enrolling) bundle() (*enroll.Bundle, error) {
	file := e.String("artifact-signers")
	if file == "" {
		file = filepath.Join(e.dirs.Data, "artifact-signers") // of an install before
	}
	b, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) && !e.IsSet("artifact-signers") {
		return nil, fault.Usagef("--artifact-signers FILE is missing").WithHint("it holds the public keys that this bundle may be signed with; the operator's fleet artifact trust ls shows them")
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read the artifact signers: %w", err)
	}
	if e.signers, err = artifact.ParseSigners(b); err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", file, err)
	}
	if len(e.signers) == 0 {
		return nil, fault.New(fault.Refused, "artifact_refused", "%s names no signer", file) // R24
	}
	self, err := os.Executable()
	if err == nil {
		self, err = filepath.EvalSymlinks(self)
	}
	if err != nil {
		return nil, fmt.Errorf("cannot find this program's own bundle: %w", err)
	}
	return enroll.OpenBundle(filepath.Dir(self), e.signers)
}

// persons are the keys whose statements the machine is to take, as it keeps
// them; nil: those that it has.
func (e *enrolling) persons() ([]byte, error) {
	file := e.String("signers")
	if file == "" {
		return nil, nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("cannot read the signers: %w", err)
	}
	keys, err := artifact.ParseSigners(b)
	if err != nil {
		return nil, fault.Usagef("--signers: %s: %s", file, err)
	}
	if len(keys) == 0 {
		return nil, fault.Usagef("--signers: %s names no key", file)
	}
	return keys.Format(), nil
}

// takes leaves whose statements this machine takes.
func (e *enrolling) takes(persons []byte) error {
	file := filepath.Join(e.dirs.Data, credential.SignersFile)
	if persons == nil {
		if _, err := os.Lstat(file); errors.Is(err, fs.ErrNotExist) {
			e.Notef("without --signers FILE this machine follows no move of the plane to another URL or root")
		}
		return nil
	}
	if err := durable.WriteFile(file, persons, 0o600); err != nil {
		return fmt.Errorf("cannot write the signers: %w", err)
	}
	return nil
}

// lock keeps two of them apart.
func (e *enrolling) lock() (func(), error) {
	f, err := os.OpenFile(filepath.Join(e.dirs.Data, "enroll.lock"), os.O_RDWR|os.O_CREATE|syscall.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot lock the data directory: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		return nil, fault.New(fault.Refused, wire.CodeConflict, "another agentd enroll is at work in %s", e.dirs.Data)
	}
	return func() { f.Close() }, nil
}

// admitted has a credential in place: the one that is there, or a new one.
func (e *enrolling) admitted(ctx context.Context, roots string) error {
	creds := credential.Open(credential.Dir(e.dirs.Data))
	if st := creds.Status(); creds.Machine() != "" && !st.Revoked {
		if p, _ := creds.Plane(); p == nil || p.URL != e.planeURL {
			return fault.New(fault.Refused, "credential_lives", "this machine is %s of another plane", creds.Machine()).
				WithHint("delete the machine there first, with fleet uninstall")
		}
		e.doc.Machine = creds.Machine()
		e.Notef("this machine is admitted as %s", e.doc.Machine)
		return nil
	}
	installation, err := enroll.Installation(e.dirs.Data)
	if err != nil {
		return err
	}
	gate, err := e.gate()
	if err != nil {
		return err
	}
	options := planeclient.Options{URL: e.planeURL, RootsPEM: roots}
	if gate != nil {
		options.Gate = secret.Of(gate.Value)
	}
	client, err := planeclient.New(options)
	if err != nil {
		return err
	}
	defer client.Close()
	host, _ := os.Hostname()
	got, err := enroll.Await(ctx, client, enroll.Request{Installation: installation, Show: e.show, Notice: e.Notef,
		Report: wire.EnrollReport{Host: host, Account: e.account.Name, OS: runtime.GOOS, Arch: runtime.GOARCH, Version: e.version, Scope: e.scope}})
	if err != nil {
		return err
	}
	if _, err := creds.Install(got.Document(e.planeURL, roots, gate), false); err != nil {
		return err
	}
	// A running agent, of an installation whose machine was deleted, uses it at once.
	newLocal(e.dirs.Runtime).call(ctx, "POST", wire.PathReload, nil, nil)
	e.doc.Machine, e.doc.Name, e.doc.Owner = got.Machine, got.Name, got.Owner
	return nil
}

// gate reads the gate token, if one is named.
func (e *enrolling) gate() (*wire.CredentialGate, error) {
	file := e.String("gate-token-file")
	if file == "" {
		return nil, nil
	}
	b, err := durable.ReadPrivate(file, 4<<10)
	if err != nil {
		return nil, fmt.Errorf("cannot read the gate token: %w", err)
	}
	g, err := wire.ParseGate(string(b))
	if err != nil {
		return nil, fault.Usagef("cannot use the gate token in %s: %s", file, err)
	}
	return &g, nil
}

// show tells a person what to do. The code stands in no URL, so a photograph of
// the QR code is worth nothing.
func (e *enrolling) show(a wire.EnrollAnswer) {
	if e.Bool("jsonl") {
		e.Print(enrollDoc{Schema: schemaEnroll, Status: "waiting", Code: a.Code, URL: a.URL, ExpiresAt: &a.ExpiresAt})
	}
	if command.IsTerminal(e.Stderr) && !e.Bool("no-qr") && strings.HasPrefix(a.URL, e.planeURL+"/") {
		qrterminal.GenerateHalfBlock(a.URL, qrterminal.L, e.Stderr)
	}
	e.Notef("open  %s", a.URL)
	e.Notef("code  %s   (or: fleet approve %s)", a.Code, a.Code)
	e.Notef("It is good until %s. Waiting …", a.ExpiresAt.Local().Format(time.TimeOnly))
}

// finish registers the service and waits for the first check.
func (e *enrolling) finish(ctx context.Context) error {
	var out, errOut bytes.Buffer
	cmd := exec.CommandContext(ctx, filepath.Join(e.dirs.Data, place.CurrentLink, artifact.Plugins), "register",
		"--data", e.dirs.Data, "--runtime", e.dirs.Runtime, "--scope", e.scope, "--manager", e.String("service-manager"))
	cmd.Stdout, cmd.Stderr = &out, &errOut
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fault.New(fault.Failure, "service_failed", "the machine is admitted, and the service could not be registered: %s", strings.TrimSpace(errOut.String()+" "+err.Error())).
			WithHint("run this again to finish; nobody is asked again")
	}
	var reg wire.Registered
	if err := json.Unmarshal(out.Bytes(), &reg); err != nil || reg.Schema != wire.SchemaRegistered {
		return fmt.Errorf("cannot read what the plugins say: %.200q", out.String())
	}
	for _, w := range reg.Caveats {
		e.Notef("%s", w)
	}
	e.doc.Manager = reg.Manager
	if reg.Stopped || latch.Present(e.dirs.Data) {
		return fault.New(fault.Refused, "stopped", "the agent is installed and a person stopped it on purpose; enrolling does not start it").
			WithHint("%s start", filepath.Join(e.dirs.Data, place.CurrentLink, artifact.Agent))
	}
	if err := e.firstCheck(ctx); err != nil {
		return err
	}
	e.doc.Status, e.doc.Checked = "enrolled", true
	if e.WantsJSON() {
		return e.Print(e.doc)
	}
	fmt.Fprintf(e.Stdout, "%s  enrolled, running and checked in (%s)\n", e.doc.Machine, reg.Manager)
	return nil
}

// firstCheckWait bounds how long the first check may take.
const firstCheckWait = 45 * time.Second

// firstCheck waits until the running agent says that the plane took its
// credential.
func (e *enrolling) firstCheck(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, firstCheckWait)
	defer cancel()
	mint := newLocal(e.dirs.Runtime)
	var last error
	for wait := 50 * time.Millisecond; ; wait = min(2*wait, time.Second) {
		var st wire.AgentStatus
		err := mint.call(ctx, "GET", wire.PathStatus, nil, &st)
		switch {
		case err != nil:
			last = err
		case st.Credential == wire.CredentialRevoked:
			return fault.New(fault.Refused, wire.CodeRevoked, "the plane says that this machine was deleted")
		case st.Machine == e.doc.Machine && st.LastCheck != nil && st.LastCheck.OK:
			return nil
		case st.LastCheck != nil && st.LastCheck.Error != "":
			last = errors.New(st.LastCheck.Error)
		default:
			last = errors.New("no check yet")
		}
		select {
		case <-ctx.Done():
			if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return ctx.Err()
			}
			return fault.New(fault.NotYet, "no_check", "the agent runs and has not checked in: %w", last).
				WithHint("does this machine reach %s? agentd status tells more", e.planeURL)
		case <-time.After(wait):
		}
	}
}
