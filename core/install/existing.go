package install

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strings"
	"time"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/remote"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/plugins/sdk"
)

// existing opens a machine that has an installation: it connects, requires the
// pinned key, and finds the directories. Steps then run on it as on an install.
func (e *Env) existing(ctx context.Context, hostArg string, flags sshconfig.Flags, doc *wire.Install) (*run, error) {
	r := &run{Env: e, o: Options{Host: hostArg, SSH: flags, Manager: "auto"}, doc: doc}
	return r, r.existing(ctx)
}

// existing opens the installation; a connection that was lent is used.
func (r *run) existing(ctx context.Context) error {
	err := r.step(ctx, "connect", func(ctx context.Context) (bool, string, error) {
		if r.lent {
			r.conf, r.doc.HostKey, r.doc.Matched.Account = r.conn.Config, HostKeyDoc(r.conn), true
		} else if _, _, err := r.connect(ctx); err != nil {
			return false, "", err
		}
		if !r.conn.Pinned {
			return false, "", sshconn.Unconfirmed(r.conn)
		}
		r.doc.Matched.HostKey = true
		var err error
		if r.facts, err = r.conn.Facts(ctx); err != nil {
			return false, "", err
		}
		places, err := Places(r.facts)
		if err != nil {
			return false, "", err
		}
		if r.scope, err = locate(ctx, r.conn, places); err != nil {
			return false, "", err
		}
		if r.scope == "" {
			return false, "", fault.New(fault.NotFound, "not_installed", "no agent is installed at %s for this account", r.conf).WithHint("fleet install %s", r.o.Host)
		}
		if err := r.askSudo(ctx); err != nil {
			return false, "", err
		}
		r.dirs = places[r.scope]
		r.host = remote.New(r.conn, r.facts)
		r.host.Phase, r.host.Scope, r.host.DataDir = sdk.PhaseChange, sdk.Scope(r.scope), r.dirs.Data
		r.host.Notice = func(m string) { r.Notice("%s", m) }
		if err := r.lockInTurn(ctx); err != nil {
			return false, "", err
		}
		if r.record, err = ReadRecord(ctx, r.host, r.dirs.Data); err != nil {
			return false, "", err
		}
		if r.record != nil {
			r.host.Manager = r.record.Manager
		}
		return false, r.conf.String(), r.takeInstallation(ctx)
	})
	if err != nil {
		r.close()
		r.conn, r.free = nil, nil
	}
	return err
}

// turnIn bounds how long another install may take before this one gives up.
const turnIn = 2 * time.Minute

// lockInTurn takes the lock, and waits for another install of the account that
// has it: what it leaves is then found as it is.
func (r *run) lockInTurn(ctx context.Context) (err error) {
	for end, said := time.Now().Add(turnIn), false; ; said = true {
		if r.lent {
			r.free, err = r.holdLock(ctx)
		} else {
			err = r.lock(ctx)
		}
		if err == nil || fault.Of(err).Code != "install_running" || time.Now().After(end) {
			return err
		}
		if !said {
			r.Notice("connect: another install of this account runs on the machine")
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(time.Second):
		}
	}
}

func (r *run) matched(ctx context.Context, machine string) error {
	return r.step(ctx, "match", func(ctx context.Context) (bool, string, error) {
		a, err := r.Open(ctx, r.conn, r.dirs)
		if err != nil {
			return false, "", err
		}
		defer a.Close()
		id, err := a.Identity(ctx)
		if err != nil {
			return false, "", err
		}
		r.admitted.Machine = machine
		if err := Match(id, machine, r.facts.UID); err != nil {
			return false, "", err
		}
		r.confirmed = id.Row.Fresh
		r.doc.Matched.PlaneRow = true
		return false, machine, nil
	})
}

// refused reports whether it is another machine, or one that is deleted, that
// answered.
func refused(err error) bool {
	switch fault.Of(err).Code {
	case "account_mismatch", "row_mismatch", wire.CodeRevoked:
		return true
	}
	return false
}

// matchedOnDisk is matched for an agent that does not answer: the credential that
// it would present is this account's, and of that machine.
func (r *run) matchedOnDisk(ctx context.Context, machine string) error {
	return r.step(ctx, "match-disk", func(ctx context.Context) (bool, string, error) {
		b, err := r.conn.RunOK(ctx, sshconn.Script{Args: []string{r.dirs.Data}, Body: `
[ -O "$1/credential" ] || exit 1
sed -n 's/.*"machine": *"\([A-Za-z0-9_]*\)".*/\1/p' "$1/credential" | head -n 1`})
		if err != nil {
			return false, "", err
		}
		if on := strings.TrimSpace(string(b)); on != machine {
			return false, "", fault.New(fault.Refused, "row_mismatch", "the credential there is of %q, and %s was meant", command.Clean(on), machine)
		}
		r.admitted.Machine = machine
		return false, machine, nil
	})
}

// newDoc starts the document of an operation on a linked machine.
func newDoc(l state.Link) (*wire.Install, sshconfig.Flags, error) {
	f, err := sshconfig.FlagsOf(l.SSHArgs)
	return &wire.Install{Schema: wire.SchemaInstall, Host: l.Host, Steps: []wire.Step{}}, f, err
}

// Update brings a machine to the operator's artifact. The former version stays
// for Rollback. If the new one does not check in, the former comes back.
func (e *Env) Update(ctx context.Context, l state.Link) (*wire.Install, error) {
	doc, flags, err := newDoc(l)
	if err != nil {
		return doc, err
	}
	r, err := e.existing(ctx, l.Host, flags, doc)
	if err != nil {
		return doc, err
	}
	defer r.close()
	if err := r.matched(ctx, l.Machine); err != nil {
		return doc, err
	}
	if r.art, err = r.Artifact(r.facts.GOOS, r.facts.GOARCH); err != nil {
		return doc, err
	}
	return doc, r.update(ctx, l)
}

// update brings the machine to r.art.
func (r *run) update(ctx context.Context, l state.Link) error {
	if r.found.current == r.art.ID {
		ok, err := intact(ctx, r.host, r.dirs.Data, r.art)
		if err == nil && ok && r.runsCurrent(ctx, r.art.ID) {
			r.doc.Artifact = &wire.InstallArtifact{Version: r.art.Manifest.Version, SHA256: r.art.ID}
			return r.step(ctx, "verify", func(context.Context) (bool, string, error) { return true, "runs this version", nil })
		}
		// One that died after the switch left the version to come back to there.
		r.was = r.found.previous
	}
	if err := r.idle(ctx); err != nil {
		return err
	}
	if err := r.step(ctx, "upload", r.upload); err != nil {
		return err
	}
	// What has begun during the upload is waited for as well.
	if err := r.deferred(ctx); err != nil {
		return err
	}
	// It is held until it has checked in: nobody is there to say so if this side
	// goes away in between, and then it is not brought again by itself.
	if err := r.hold(ctx, r.art.ID); err != nil && r.onConnect {
		return err
	}
	if err := r.step(ctx, "verify", r.verify); err != nil {
		r.hold(ctx, r.found.held)
		return err
	}
	if r.runs != "" { // a session has begun in the last moment
		r.hold(ctx, r.found.held)
		return fault.New(fault.NotYet, wire.CodeDeferred, "deferred while sessions run")
	}
	if err := r.handOver(ctx); err != nil {
		return r.comeBack(ctx, err)
	}
	r.hold(ctx, "")
	r.prune(ctx)
	return r.Links.UpdateLink(ctx, l.Machine, func(l *state.Link) { l.Artifact = r.art.ID })
}

// ErrNothing says that there is nothing newer for a machine than what it runs.
var ErrNothing = errors.New("there is nothing newer for the machine")

// UpdateOver is Update for a machine that a person has just connected to, over
// that connection, which stays (R4). It is for nothing but what is newer than
// the version that runs there, and was not left again by a person's rollback or
// because it did not check in: whoever wants such a one asks for it. Unlike an
// update that somebody asks for it also waits for connections that are forwarded.
func (e *Env) UpdateOver(ctx context.Context, conn *sshconn.Conn, l state.Link, runs string) (*wire.Install, error) {
	facts, err := conn.Facts(ctx)
	if err != nil {
		return nil, err
	}
	art, err := e.Artifact(facts.GOOS, facts.GOARCH)
	if err != nil {
		if fault.Of(err).Code == "no_artifact" { // what is newer is for another platform
			err = ErrNothing
		}
		return nil, err
	}
	doc := &wire.Install{Schema: wire.SchemaInstall, Host: l.Host, Steps: []wire.Step{},
		Artifact: &wire.InstallArtifact{Version: art.Manifest.Version, SHA256: art.ID}}
	if !artifact.Newer(art.Manifest.Version, runs) {
		return doc, ErrNothing
	}
	r := &run{Env: e, o: Options{Host: l.Host, Manager: "auto"}, doc: doc, conn: conn, lent: true, art: art, onConnect: true}
	if err := r.existing(ctx); err != nil {
		return doc, err
	}
	defer r.close()
	if err := r.matched(ctx, l.Machine); err != nil {
		return doc, err
	}
	// Another operator may have been quicker; and while the plane is away, no
	// version can show that it does its job.
	st, err := r.status(ctx, nil)
	switch {
	case err != nil:
		return doc, err
	case !r.confirmed:
		return doc, fault.New(fault.NotYet, wire.CodeDeferred, "deferred while the machine's checks get no answer")
	case !artifact.Newer(art.Manifest.Version, st.Version):
		return doc, ErrNothing
	case r.found.held == art.ID:
		return doc, fault.New(fault.Refused, "held", "version %s was left again on this machine", art.Manifest.Version).
			WithHint("fleet update %s brings it all the same", l.Machine)
	}
	return doc, r.update(ctx, l)
}

// hold remembers on the machine, for every operator, the version that was left;
// none with "".
func (r *run) hold(ctx context.Context, id string) error {
	file := path.Join(r.dirs.Data, place.HeldFile)
	var err error
	if id == "" {
		err = r.host.Remove(ctx, false, file)
	} else {
		_, err = r.host.WriteFile(ctx, file, []byte(id+"\n"), 0o600, false)
	}
	if err != nil {
		r.Notef("cannot remember which version was left: %v", err)
	}
	return err
}

// idle refuses while sessions run: another version waits for them (R4).
func (r *run) idle(ctx context.Context) error {
	return r.step(ctx, "idle", func(ctx context.Context) (bool, string, error) { return false, "", r.deferred(ctx) })
}

func (r *run) deferred(ctx context.Context) error {
	st, err := r.status(ctx, nil)
	if err != nil {
		return err
	}
	switch {
	case st.Sessions > 0:
		return fault.New(fault.NotYet, wire.CodeDeferred, "deferred while %s", running(st.Sessions)).
			WithHint("fleet sessions %s shows them; fleet drain keeps new ones away; --wait waits for their end", r.admitted.Machine)
	case r.onConnect && st.Forwards > 0:
		return fault.New(fault.NotYet, wire.CodeDeferred, "deferred while connections are forwarded through the machine")
	case r.onConnect && st.Copies > 0:
		return fault.New(fault.NotYet, wire.CodeDeferred, "deferred while files are copied")
	}
	return nil
}

// handOver makes the agent become what current names, and waits for its check.
func (r *run) handOver(ctx context.Context) error {
	begin := time.Now().Add(r.facts.ClockOffset).Add(-2 * time.Second)
	err := r.step(ctx, "restart", func(ctx context.Context) (bool, string, error) {
		if r.deaf {
			return false, "by the service manager", r.restartService(ctx)
		}
		return false, "", r.becomeCurrent(ctx)
	})
	if err != nil {
		return err
	}
	return r.step(ctx, "first-check", func(ctx context.Context) (bool, string, error) {
		_, err := r.awaitRow(ctx, begin)
		return false, "", err
	})
}

// restartService has the service manager restart the agent, which need not
// answer.
func (r *run) restartService(ctx context.Context) error {
	m, err := r.chooseManager(ctx)
	if err != nil {
		return err
	}
	r.manager = m
	h := r.host.For(m.Description())
	spec := SpecOf(r.dirs, r.scope, r.facts.User)
	if err := m.Restart(ctx, h, spec); err != nil {
		return err
	}
	return awaitRunning(ctx, m, h, spec)
}

// comeBack returns to the former version after one that did not check in.
func (r *run) comeBack(ctx context.Context, why error) error {
	if r.was == "" || ctx.Err() != nil {
		return why
	}
	begin := time.Now().Add(r.facts.ClockOffset).Add(-2 * time.Second)
	err := r.step(ctx, "rollback", func(ctx context.Context) (bool, string, error) {
		r.hold(ctx, r.doc.Artifact.SHA256) // first: what follows may fail, and would be begun anew
		if err := SetCurrent(ctx, r.host, r.dirs.Data, r.was); err != nil {
			return false, "", err
		}
		// A version that was not taken is none that a rollback should find.
		if former := r.found.previous; former != r.was {
			if err := setPrevious(ctx, r.host, r.dirs.Data, former); err != nil {
				return false, "", err
			}
		}
		if err := r.restartService(ctx); err != nil {
			return false, "", err
		}
		if _, err := r.awaitRow(ctx, begin); fault.Of(err) != nil && fault.Of(err).Code == "no_check" {
			r.hold(ctx, r.found.held) // the former one gets no answer, either: it is not the version
		}
		return false, r.was, nil
	})
	if err != nil {
		return fmt.Errorf("%w; and the former version did not come back: %w", why, err)
	}
	return fault.New(fault.Failure, "rolled_back", "the new version was not taken and the former one runs again: %w", why)
}

// Rollback returns to the version before the last update. It does not wait for
// sessions, as an update does: it is the way out of a version that does not do
// its job, and sessions outlive the restart (R34). An update that was cut off may
// have left one that does not even answer: then what is on its disk says which
// machine it is, and the service manager restarts it.
func (e *Env) Rollback(ctx context.Context, l state.Link) (*wire.Install, error) {
	doc, flags, err := newDoc(l)
	if err != nil {
		return doc, err
	}
	r, err := e.existing(ctx, l.Host, flags, doc)
	if err != nil {
		return doc, err
	}
	defer r.close()
	if err := r.matched(ctx, l.Machine); err != nil {
		if refused(err) || ctx.Err() != nil || r.matchedOnDisk(ctx, l.Machine) != nil {
			return doc, err
		}
		r.deaf = true
	}
	var id string
	err = r.step(ctx, "verify", func(ctx context.Context) (bool, string, error) {
		b, err := r.conn.RunOK(ctx, sshconn.Script{Args: []string{r.dirs.Data}, Body: `
p=$(readlink "$1/previous") || { echo "there is no former version on the machine" >&2; exit 1; }
[ -x "$1/$p/agentd" ] || { echo "the former version is gone" >&2; exit 1; }
cd "$1/$p" && printf '%s' "${p##*/}"`})
		if err != nil {
			return false, "", fault.New(fault.Refused, "no_former_version", "%w", err)
		}
		id = string(b)
		// The manifest that lies beside the files was verified when they came,
		// and its hash is the directory's name.
		res, err := r.conn.Run(ctx, sshconn.Script{Args: []string{r.dirs.Data + "/versions/" + id, id}, Body: hashing + `
cd "$1" || exit 1
printf '%s  manifest.json\n' "$2" | check_sums || { echo "the former version was altered" >&2; exit 1; }
n=
sed -n 's/^ *"path": "\(.*\)",*$/p \1/p; s/^ *"sha256": "\(.*\)",*$/h \1/p' manifest.json | while read -r k v; do
  case $k in p) n=$v;; h) [ -n "$n" ] && printf '%s  %s\n' "$v" "$n"; n=;; esac
done > .sums.$$
check_sums < .sums.$$; r=$?; rm -f .sums.$$
[ $r = 0 ] || { echo "the former version was altered" >&2; exit 1; }`})
		if err != nil {
			return false, "", err
		}
		if res.Exit != 0 {
			return false, "", fault.New(fault.Refused, "artifact_altered", "%w", res.Err())
		}
		r.was = r.found.current
		return false, id, SetCurrent(ctx, r.host, r.dirs.Data, id)
	})
	if err != nil {
		return doc, err
	}
	doc.Artifact = &wire.InstallArtifact{SHA256: id}
	if err := r.handOver(ctx); err != nil {
		return doc, r.comeBack(ctx, err)
	}
	r.hold(ctx, r.was)
	return doc, e.Links.UpdateLink(ctx, l.Machine, func(l *state.Link) { l.Artifact = id })
}

// Uninstall stops the agent, takes the service away, deletes the row, removes
// the files, and forgets the link. Run again after an interruption it goes on.
func (e *Env) Uninstall(ctx context.Context, l state.Link) (*wire.Install, error) {
	doc, flags, err := newDoc(l)
	if err != nil {
		return doc, err
	}
	r, err := e.existing(ctx, l.Host, flags, doc)
	if err != nil && fault.Of(err).Code != "not_installed" {
		return doc, err
	}
	if r != nil {
		defer r.close()
		if err := r.step(ctx, "service", func(ctx context.Context) (bool, string, error) { return r.unregister(ctx) }); err != nil {
			return doc, err
		}
	}
	del := (&run{Env: e, doc: doc}).step
	err = del(ctx, "delete", func(ctx context.Context) (bool, string, error) {
		_, err := e.Plane.Delete(ctx, l.Machine)
		if f := fault.Of(err); f != nil && (f.Code == wire.CodeDeleted || f.Exit == fault.NotFound) {
			return true, "already deleted", nil
		}
		return false, l.Machine, err
	})
	if err != nil {
		return doc, err
	}
	if r != nil {
		if err := r.step(ctx, "files", func(ctx context.Context) (bool, string, error) { return r.removeFiles(ctx) }); err != nil {
			return doc, err
		}
	}
	_, err = e.Links.RemoveLink(ctx, l.Machine)
	return doc, err
}

func (r *run) unregister(ctx context.Context) (bool, string, error) {
	if r.record == nil {
		return true, "none is registered", nil
	}
	m, err := r.chooseManager(ctx)
	if err != nil {
		return false, "", err
	}
	r.manager = m
	h := r.host.For(m.Description())
	facts, err := h.Facts(ctx)
	if err != nil {
		return false, "", err
	}
	spec := SpecOf(r.dirs, r.scope, r.facts.User)
	rendered, err := m.Render(ctx, facts, spec)
	if err != nil {
		return false, "", err
	}
	if err := m.Disable(ctx, h, spec); err != nil {
		return false, "", err
	}
	for _, f := range rendered.Files {
		if err := r.host.Remove(ctx, f.Owner == "root", f.Path); err != nil {
			return false, "", err
		}
	}
	return false, rendered.Unit, m.Reload(ctx, h, spec)
}

// removeFiles removes what the installation has on the machine. Sessions that
// still run keep their open files and lose their directory.
func (r *run) removeFiles(ctx context.Context) (bool, string, error) {
	s := sshconn.Script{Args: []string{r.dirs.Data, r.dirs.Runtime}, Body: `
case $1 in */fleet-agent/?*) ;; *) echo "refusing to remove $1" >&2; exit 1;; esac
rm -rf -- "$1" "$2" || exit 1
rmdir -- "$(dirname "$1")" 2>/dev/null
true`}
	run := r.host.Script
	if r.scope == place.System {
		run = r.host.RootScript
	}
	res, err := run(ctx, s)
	if err != nil {
		return false, "", err
	}
	if res.Exit != 0 {
		return false, "", fmt.Errorf("cannot remove %s on the machine: %w", r.dirs.Data, res.Err())
	}
	return false, r.dirs.Data, nil
}

// Link records which destination reaches a machine, once the three facts agree.
func (e *Env) Link(ctx context.Context, machine, hostArg string, flags sshconfig.Flags) (state.Link, error) {
	doc := &wire.Install{}
	row, err := e.Plane.Machine(ctx, machine)
	if err != nil {
		return state.Link{}, err
	}
	r, err := e.existing(ctx, hostArg, flags, doc)
	if err != nil {
		return state.Link{}, err
	}
	defer r.close()
	if err := r.matched(ctx, row.ID); err != nil {
		return state.Link{}, err
	}
	l := state.Link{Machine: row.ID, Name: row.Name, Host: hostArg, SSHArgs: flags.Args(), Account: r.facts.User,
		DataDir: r.dirs.Data, Runtime: r.dirs.Runtime, Scope: r.scope, Artifact: r.found.current, Last: "ok", At: time.Now().UTC().Format(time.RFC3339)}
	if r.record != nil {
		l.Manager = r.record.Manager
	}
	return l, e.Links.SaveLink(ctx, l)
}
