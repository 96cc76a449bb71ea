package install

import (
	"context"
	"fmt"
	"time"

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
	err := r.step(ctx, "connect", func(ctx context.Context) (bool, string, error) {
		if _, _, err := r.connect(ctx); err != nil {
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
			return false, "", fault.New(fault.NotFound, "not_installed", "no agent is installed at %s for this account", r.conf).WithHint("fleet install %s", hostArg)
		}
		if err := r.askSudo(ctx); err != nil {
			return false, "", err
		}
		r.dirs = places[r.scope]
		r.host = remote.New(r.conn, r.facts)
		r.host.Phase, r.host.Scope, r.host.DataDir = sdk.PhaseChange, sdk.Scope(r.scope), r.dirs.Data
		r.host.Notice = func(m string) { r.Notice("%s", m) }
		if err := r.lock(ctx); err != nil {
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
		return nil, err
	}
	return r, nil
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
		r.doc.Matched.PlaneRow = true
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
	if r.found.current == r.art.ID {
		ok, err := intact(ctx, r.host, r.dirs.Data, r.art)
		if err == nil && ok && r.runsCurrent(ctx, r.art.ID) {
			doc.Artifact = &wire.InstallArtifact{Version: r.art.Manifest.Version, SHA256: r.art.ID}
			return doc, r.step(ctx, "verify", func(context.Context) (bool, string, error) { return true, "runs this version", nil })
		}
		// One that died after the switch left the version to come back to there.
		r.was = r.found.previous
	}
	if err := r.idle(ctx); err != nil {
		return doc, err
	}
	if err := r.step(ctx, "upload", r.upload); err != nil {
		return doc, err
	}
	if err := r.step(ctx, "verify", r.verify); err != nil {
		return doc, err
	}
	if err := r.handOver(ctx); err != nil {
		return doc, r.comeBack(ctx, err)
	}
	r.prune(ctx)
	return doc, e.Links.UpdateLink(ctx, l.Machine, func(l *state.Link) { l.Artifact = r.art.ID })
}

// idle refuses while sessions run: another version waits for them (R4).
func (r *run) idle(ctx context.Context) error {
	return r.step(ctx, "idle", func(ctx context.Context) (bool, string, error) {
		a, err := r.Open(ctx, r.conn, r.dirs)
		if err != nil {
			return false, "", err
		}
		defer a.Close()
		st, err := a.Status(ctx)
		if err != nil {
			return false, "", err
		}
		if st.Sessions > 0 {
			return false, "", fault.New(fault.NotYet, "deferred", "deferred while %s", running(st.Sessions)).
				WithHint("fleet sessions %s shows them; fleet drain keeps new ones away", r.admitted.Machine)
		}
		return false, "", nil
	})
}

// handOver makes the agent become what current names, and waits for its check.
func (r *run) handOver(ctx context.Context) error {
	begin := time.Now().Add(r.facts.ClockOffset).Add(-2 * time.Second)
	err := r.step(ctx, "restart", func(ctx context.Context) (bool, string, error) {
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

// comeBack returns to the former version after one that did not check in.
func (r *run) comeBack(ctx context.Context, why error) error {
	if r.was == "" || ctx.Err() != nil {
		return why
	}
	err := r.step(ctx, "rollback", func(ctx context.Context) (bool, string, error) {
		if err := SetCurrent(ctx, r.host, r.dirs.Data, r.was); err != nil {
			return false, "", err
		}
		// A version that was not taken is none that a rollback should find.
		if former := r.found.previous; former != r.was {
			if err := setPrevious(ctx, r.host, r.dirs.Data, former); err != nil {
				return false, "", err
			}
		}
		m, err := r.chooseManager(ctx)
		if err != nil {
			return false, "", err
		}
		r.manager = m
		h := r.host.For(m.Description())
		spec := SpecOf(r.dirs, r.scope, r.facts.User)
		if err := m.Restart(ctx, h, spec); err != nil {
			return false, "", err
		}
		return false, r.was, awaitRunning(ctx, m, h, spec)
	})
	if err != nil {
		return fmt.Errorf("%w; and the former version did not come back: %w", why, err)
	}
	return fault.New(fault.Failure, "rolled_back", "the new version was not taken and the former one runs again: %w", why)
}

// Rollback returns to the version before the last update. It does not wait for
// sessions, as an update does: it is the way out of a version that does not do
// its job, and sessions outlive the restart (R34).
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
		return doc, err
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
