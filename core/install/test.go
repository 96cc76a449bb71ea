package install

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/remote"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

// ProbeRunner runs the operator's probe plugins over a host and returns what
// they found, by probe.
type ProbeRunner func(ctx context.Context, h *remote.Host) (map[string][]sdk.Finding, error)

// Test is the install's read-only half. It changes nothing and trusts nothing:
// before the key is confirmed only fixed probes and described commands run.
func (e *Env) Test(ctx context.Context, hostArg string, flags sshconfig.Flags, by Confirmation, scope string, probes ProbeRunner) (*wire.Test, error) {
	doc := &wire.Test{Schema: wire.SchemaTest, Host: hostArg, Steps: []wire.Step{}}
	own := *e
	t := &tester{Env: &own, doc: doc, met: time.Now()}
	own.HopMet = t.jump
	conn, err := t.connect(ctx, hostArg, flags, by)
	if err != nil {
		return doc, err
	}
	defer conn.Close()
	facts, err := t.platform(ctx, conn, scope)
	if err != nil {
		return doc, err
	}
	if scope == "" {
		if scope = place.User; facts.UID == 0 {
			scope = place.System
		}
	}
	h := remote.New(conn, facts)
	if conn.Pinned {
		h.Phase = sdk.PhaseExamine
	}
	h.Scope = sdk.Scope(scope)
	places, err := Places(facts)
	if err != nil {
		return doc, err
	}
	h.DataDir = places[scope].Data
	t.account = facts.User
	t.sftp(ctx, conn)
	t.managers(ctx, h, facts.GOOS, facts.GOARCH, scope)
	t.probes(ctx, h, probes)
	t.artifact(ctx, h, facts)
	t.forward(ctx, conn, places[scope])
	doc.OK = true
	var failed []string
	for _, s := range doc.Steps {
		if s.Status == wire.StepFailed {
			doc.OK = false
			failed = append(failed, s.Name)
		}
	}
	if !doc.OK {
		return doc, fault.New(fault.Refused, "test_failed", "an install on %s would not succeed: %s", hostArg, strings.Join(failed, ", "))
	}
	return doc, nil
}

// tester collects the steps of a test.
type tester struct {
	*Env
	doc     *wire.Test
	account string
	met     time.Time // when the last jump host's key was met, or the test began
}

func (t *tester) add(name, status string, begin time.Time, detail, remedy string) {
	s := wire.Step{Name: name, Status: status, MS: time.Since(begin).Milliseconds(), Detail: detail, Remedy: remedy}
	t.doc.Steps = append(t.doc.Steps, s)
	t.Report(s)
}

func (t *tester) failed(name string, begin time.Time, err error) {
	f := fault.Of(err)
	t.add(name, wire.StepFailed, begin, f.Msg, f.Hint)
}

// jump shows one host on the way. One whose key nobody confirmed ends the test:
// to go on would be to log in there (R2).
func (t *tester) jump(m hostkey.Met, by string, err error) {
	begin := t.met
	t.met = time.Now()
	d := jumpDoc(m, by, err)
	t.doc.Jumps = append(t.doc.Jumps, d)
	detail := m.Host + ": " + d.HostKey.Type + " " + d.HostKey.Fingerprint
	if err == nil {
		detail += ", " + d.Confirmed
	}
	for _, ev := range m.Evidence {
		detail += "; " + ev.String()
	}
	if err == nil {
		t.add("jump-host-key", wire.StepOK, begin, detail, "")
		return
	}
	f := fault.Of(err)
	t.add("jump-host-key", wire.StepFailed, begin, detail+"; "+f.Msg, f.Hint)
}

func (t *tester) connect(ctx context.Context, hostArg string, flags sshconfig.Flags, by Confirmation) (*sshconn.Conn, error) {
	begin := time.Now()
	by.Loose = true // a test pins nothing
	conn, err := t.ConnectConfirming(ctx, hostArg, flags, by, false)
	if n := len(t.doc.Jumps); err != nil && n > 0 && t.doc.Jumps[n-1].Confirmed == "" {
		t.add("connect", wire.StepFailed, begin, "not reached: "+t.doc.Jumps[n-1].Host+" stands before it", "")
		return nil, err
	}
	if err != nil {
		t.failed("connect", begin, err)
		return nil, err
	}
	t.add("connect", wire.StepOK, begin, conn.Config.String(), "")
	t.doc.HostKey, t.doc.Pinned = HostKeyDoc(conn), conn.Pinned
	detail := t.doc.HostKey.Type + " " + t.doc.HostKey.Fingerprint
	if conn.Pinned {
		t.add("host-key", wire.StepOK, begin, detail+", pinned", "")
		return conn, nil
	}
	for _, ev := range conn.Evidence {
		detail += "; " + ev.String()
	}
	if len(by.Fingerprints) > 0 || by.Trust != "" {
		how, err := t.Decide(ctx, conn.Met(), by)
		if err == nil {
			t.add("host-key", wire.StepOK, begin, detail+"; "+how+" confirms it, not pinned yet", "")
			return conn, nil
		}
		if fault.Of(err).Code != "host_key_unknown" {
			t.failed("host-key", begin, err)
			conn.Close()
			return nil, err
		}
	}
	t.add("host-key", wire.StepWarn, begin, detail+"; not confirmed yet", "compare it with the host's own, then fleet install --fingerprint "+t.doc.HostKey.Fingerprint)
	return conn, nil
}

func (t *tester) platform(ctx context.Context, conn *sshconn.Conn, scope string) (*sshconn.Facts, error) {
	begin := time.Now()
	asks := []sshconn.Ask{sshconn.AskGit}
	if scope == place.System {
		asks = append(asks, sshconn.AskSudo)
	}
	f, err := conn.Facts(ctx, asks...)
	if err != nil {
		t.failed("platform", begin, err)
		return nil, err
	}
	if err := CheckPlatform(f, scope); err != nil {
		t.failed("platform", begin, err)
	} else {
		t.add("platform", wire.StepOK, begin, fmt.Sprintf("%s, %s, process 1 is %s", f, f.OSRelease["PRETTY_NAME"], f.Init), "")
	}
	if f.GOOS == "" {
		return nil, f.Supported()
	}
	t.add("shell", wire.StepOK, begin, path.Base(f.Shell)+", a script takes "+f.RoundTrip.Round(time.Millisecond).String(), "")
	if off := f.ClockOffset; off > f.RoundTrip+2*time.Second || -off > f.RoundTrip+2*time.Second {
		t.add("clock", wire.StepWarn, begin, fmt.Sprintf("the clock there is off by about %s", off.Round(time.Second)), "set the clock there, or run an NTP client")
	}
	if f.GitVer != "" {
		t.add("git", wire.StepOK, begin, f.GitVer, "")
	} else {
		t.add("git", wire.StepWarn, begin, "there is no git", "install git there if workspaces are to hold repositories")
	}
	return f, nil
}

func (t *tester) sftp(ctx context.Context, conn *sshconn.Conn) {
	begin := time.Now()
	err := conn.CheckSFTP(ctx)
	f := fault.Of(err)
	switch {
	case err == nil:
		t.add("sftp", wire.StepOK, begin, "", "")
	case f.Code == "sessions_exhausted":
		t.add("sftp", wire.StepWarn, begin, "the server opens one session at a time; uploads go through the shell's", "MaxSessions 10 there, which is the default, makes them faster")
	default:
		t.add("sftp", wire.StepWarn, begin, "no sftp ("+f.Msg+"); uploads go through cat", "")
	}
}

func (t *tester) managers(ctx context.Context, h *remote.Host, goos, goarch, scope string) {
	best := 0
	var why []string
	begin := time.Now()
	for _, name := range t.Managers(goos, goarch) {
		begin := time.Now()
		m, err := t.Launch(ctx, name)
		if err != nil {
			t.add("service-"+name, wire.StepWarn, begin, err.Error(), "")
			why = append(why, name+": "+err.Error())
			continue
		}
		d, err := m.Detect(ctx, h.For(m.Description()))
		switch {
		case err != nil:
			t.add("service-"+name, wire.StepWarn, begin, err.Error(), "")
			why = append(why, name+": "+err.Error())
		case !usable(d, scope):
			t.add("service-"+name, wire.StepSkipped, begin, d.Reason, "")
			why = append(why, name+": "+d.Reason)
		default:
			best = max(best, d.Score)
			t.add("service-"+name, wire.StepOK, begin, fmt.Sprintf("%s (score %d)", d.Reason, d.Score), "")
			if d.Linger && scope == place.User {
				t.linger(ctx, m, h)
			}
		}
		if err := m.Close(); err != nil {
			t.Notef("cannot end the service plugin: %v", err)
		}
	}
	if best == 0 {
		t.failed("service", begin, noManager(scope, why))
	}
}

func (t *tester) linger(ctx context.Context, m Manager, h *remote.Host) {
	begin := time.Now()
	l, err := m.Linger(ctx, h.For(m.Description()), SpecOf(place.Dirs{Data: h.DataDir, Runtime: h.DataDir}, string(h.Scope), t.account), false)
	switch {
	case errors.Is(err, sdk.ErrUnsupported):
	case err != nil:
		t.add("linger", wire.StepWarn, begin, "cannot tell: "+err.Error(), "")
	case l.Enabled:
		t.add("linger", wire.StepOK, begin, "on", "")
	default:
		t.add("linger", wire.StepOK, begin, "off; an install turns it on where the account may", "")
	}
}

func (t *tester) probes(ctx context.Context, h *remote.Host, run ProbeRunner) {
	begin := time.Now()
	found, err := run(ctx, h)
	if err != nil {
		t.add("probes", wire.StepWarn, begin, err.Error(), "")
	}
	n := 0
	for _, list := range found {
		for _, f := range list {
			n++
			detail := f.Detail
			if f.Severity != sdk.SeverityWarn { // an install works all the same
				detail += "; while that is so, the machine accepts no work"
			}
			t.add(f.Code, wire.StepWarn, begin, detail, f.Remedy)
		}
	}
	if err == nil && n == 0 {
		t.add("probes", wire.StepOK, begin, "nothing blocks", "")
	}
}

func (t *tester) artifact(ctx context.Context, h *remote.Host, facts *sshconn.Facts) {
	begin := time.Now()
	f, err := h.Facts(ctx)
	if err != nil {
		t.failed("artifact", begin, err)
		return
	}
	a, err := t.Artifact(f.OS, f.Arch)
	if err != nil {
		t.failed("artifact", begin, err)
		return
	}
	detail := fmt.Sprintf("%s, %.1f MiB, signed by %s", a.Manifest.Version, float64(a.Manifest.Archive.Size)/(1<<20), a.SignedBy)
	full := CheckSpace(facts, string(h.Scope))
	if h.Phase == sdk.PhaseUnconfirmed {
		if full != nil {
			t.failed("artifact", begin, full)
			return
		}
		t.add("artifact", wire.StepOK, begin, detail, "")
		return
	}
	ok, err := intact(ctx, h, h.DataDir, a)
	switch {
	case err != nil:
		t.failed("artifact", begin, err)
	case ok:
		t.add("artifact", wire.StepOK, begin, detail+"; there and intact", "")
	case full != nil:
		t.failed("artifact", begin, full)
	default:
		t.add("artifact", wire.StepOK, begin, detail+"; not there yet", "")
	}
}
