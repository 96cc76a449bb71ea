package planed

import (
	"bufio"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/admin"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/restore"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/bolt"
)

// Status is part of admin.Service.
func (s *server) Status(ctx context.Context) (admin.Status, error) {
	st := s.store.Stats()
	head, err := s.store.AuditHead(ctx)
	if err != nil {
		return admin.Status{}, err
	}
	o := s.opts
	out := admin.Status{
		Schema: admin.SchemaStatus, URL: s.place.Current(), Version: o.Version, PID: os.Getpid(),
		StartedAt: wire.Time{Time: s.started},
		IntervalS: o.Policy.Interval.Seconds(), MinGapS: o.Policy.MinGap().Seconds(), TestFloorS: o.Policy.TestFloor.Seconds(),
		Machines: st.Machines, Tombstones: st.Tombstones, Persons: st.Persons, Tokens: st.Tokens,
		Connections: s.conns.Load(), Keep: o.KeepConnections,
		StoreBytes: st.SizeBytes, StoreQueued: st.Queued, StoreError: st.WriteError, StoreFlushed: wire.TimeOf(st.LastFlush),
		AuditHead: head,
	}
	if _, own := s.certs.(*authority); own {
		out.CAPin = ca.Pin(s.authority.Current().Root)
	}
	if c, err := s.certs.Certificate(); err == nil && c.Leaf != nil {
		out.LeafExpires = wire.TimeOf(c.Leaf.NotAfter)
	}
	if s.gate != nil {
		rot, err := s.store.RotationState(ctx, s.engine.Kind)
		if err != nil {
			return admin.Status{}, err
		}
		g := &admin.Gate{Version: rot.Target(), Retiring: rot.Retiring(), Problem: s.engine.Problem()}
		if rot.Running() {
			g.Rotation = rot.Run.Step
		}
		n, since := s.gate.Refused.Now(time.Now(), o.Policy.Silence())
		g.Refused, g.RefusedSince = n, wire.TimeOf(since)
		out.Gate = g
	}
	if s.sink != nil {
		if err := s.sink.Err(); err != nil {
			out.AuditSink = err.Error()
		}
	}
	return out, nil
}

// Check is part of admin.Service.
func (s *server) Check(ctx context.Context) (admin.Report, error) { return verify(ctx, s.store) }

func verify(ctx context.Context, st store.Maintenance) (admin.Report, error) {
	problems, err := st.Verify(ctx)
	if err != nil {
		return admin.Report{}, err
	}
	if problems == nil {
		problems = []string{}
	}
	return admin.Report{Schema: admin.SchemaReport, OK: len(problems) == 0, Problems: problems}, nil
}

// Backup is part of admin.Service.
func (s *server) Backup(ctx context.Context, w io.Writer) error { return s.store.Backup(ctx, w) }

// RecoverOwner is part of admin.Service.
func (s *server) RecoverOwner(ctx context.Context, owner string) (admin.Recovered, error) {
	s.opts.Log.Warn("an owner is recovered", "owner", owner)
	return recoverOwner(ctx, s.store, s.opts.Dir, owner)
}

func recoverOwner(ctx context.Context, st store.Principals, dir, owner string) (admin.Recovered, error) {
	if err := wire.CheckName(owner); err != nil {
		return admin.Recovered{}, err
	}
	file, err := datadir.InviteOwner(ctx, st, dir, owner, "local:recover-owner", time.Now())
	if errors.Is(err, store.ErrLocked) {
		err = fault.New(fault.Refused, wire.CodeConflict, "%s is locked, and an invitation does not end a lock", owner).
			WithHint("--owner NAME invites another owner, who can unlock: fleet person unlock %s", owner)
	}
	return admin.Recovered{Schema: admin.SchemaRecovered, Owner: owner, InviteFile: file}, err
}

// offline is admin.Service over a store that no plane has open.
type offline struct {
	dir   string
	store *bolt.Store
}

func (o offline) Check(ctx context.Context) (admin.Report, error) { return verify(ctx, o.store) }
func (o offline) Backup(ctx context.Context, w io.Writer) error   { return o.store.Backup(ctx, w) }
func (o offline) RecoverOwner(ctx context.Context, owner string) (admin.Recovered, error) {
	return recoverOwner(ctx, o.store, o.dir, owner)
}

// maintainer is what works with and without a running plane.
type maintainer interface {
	Check(ctx context.Context) (admin.Report, error)
	Backup(ctx context.Context, w io.Writer) error
	RecoverOwner(ctx context.Context, owner string) (admin.Recovered, error)
}

// maintain runs f with the running plane or, if there is none, with the store
// itself.
func maintain(c *command.Call, f func(dir string, p datadir.Plane, m maintainer) error) error {
	dir, err := dataDir(c)
	if err != nil {
		return err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return err
	}
	p, err := datadir.Open(dir)
	if err != nil {
		return err
	}
	client, err := running(dir)
	if err != nil {
		return err
	}
	if client != nil {
		return f(dir, p, client)
	}
	st, err := bolt.Open(filepath.Join(dir, datadir.FileStore), bolt.Options{Offline: true})
	if err != nil {
		return err
	}
	defer st.Close()
	return f(dir, p, offline{dir, st})
}

func statusCommand() *command.Command {
	return &command.Command{
		Name: "status", Summary: "how the running plane is",
		Flags: append(command.JSONFlags(false), dataFlag()),
		Run: func(ctx context.Context, c *command.Call) error {
			dir, err := dataDir(c)
			if err != nil {
				return err
			}
			p, err := datadir.Open(dir)
			if err != nil {
				return err
			}
			client, err := running(dir)
			if err != nil {
				return err
			}
			if client == nil {
				return fault.New(fault.Unreachable, "not_running", "the plane %s is not running", p.URL).
					WithHint("planed serve --data %s starts it", dir)
			}
			ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
			defer cancel()
			s, err := client.Status(ctx)
			if err != nil {
				return err
			}
			if c.WantsJSON() {
				return c.Print(s)
			}
			return printStatus(c.Stdout, s)
		},
	}
}

func printStatus(out io.Writer, s admin.Status) error {
	w := bufio.NewWriter(out)
	line := func(k, format string, args ...any) { fmt.Fprintf(w, "%-12s %s\n", k, fmt.Sprintf(format, args...)) }
	line("url", "%s", s.URL)
	line("version", "%s, pid %d, since %s", s.Version, s.PID, s.StartedAt)
	if s.CAPin != "" {
		line("ca_pin", "%s", s.CAPin)
	}
	line("machines", "%d, %d deleted", s.Machines, s.Tombstones)
	line("principals", "%d persons, %d tokens", s.Persons, s.Tokens)
	line("interval", "%gs, floor %gs", s.IntervalS, s.MinGapS)
	if s.TestFloorS > 0 {
		line("test_floor", "%gs: for labs only", s.TestFloorS)
	}
	line("connections", "%d open, %d kept at most", s.Connections, s.Keep)
	line("store", "%.1f MiB, %d operations wait", float64(s.StoreBytes)/(1<<20), s.StoreQueued)
	if g := s.Gate; g != nil {
		words := fmt.Sprintf("version %d", g.Version)
		if g.Retiring != 0 {
			words += fmt.Sprintf(", version %d retires", g.Retiring)
		}
		if g.Rotation != "" {
			words += ", rotation: " + g.Rotation
		}
		line("gate", "%s", words)
		if g.Problem != "" {
			line("gate_problem", "%s", g.Problem)
		}
		if g.RefusedSince != nil {
			line("gate_refused", "%d requests since %s: a gate token that does not fit looks like absent machines", g.Refused, g.RefusedSince.Format(time.RFC3339))
		}
	}
	if s.StoreError != "" {
		line("store_error", "%s", s.StoreError)
	}
	line("audit", "entry %d, %s", s.AuditHead.Seq, s.AuditHead.Hash)
	if s.AuditSink != "" {
		line("audit_sink", "%s", s.AuditSink)
	}
	return w.Flush()
}

func checkCommand() *command.Command {
	return &command.Command{
		Name: "check", Summary: "verify the store and the audit chain",
		Flags: append(command.JSONFlags(false), dataFlag()),
		Run: func(ctx context.Context, c *command.Call) error {
			return maintain(c, func(_ string, _ datadir.Plane, m maintainer) error {
				r, err := m.Check(ctx)
				if err != nil {
					return err
				}
				if c.WantsJSON() {
					if err := c.Print(r); err != nil {
						return err
					}
				} else {
					for _, p := range r.Problems {
						fmt.Fprintln(c.Stdout, p)
					}
				}
				if !r.OK {
					return fault.New(fault.Failure, "inconsistent", "the store is not consistent: %d problems", len(r.Problems)).
						WithHint("stop the plane and restore a backup")
				}
				if !c.WantsJSON() {
					c.Notef("the store and the audit chain are consistent")
				}
				return nil
			})
		},
	}
}

func backupCommand() *command.Command {
	return &command.Command{
		Name: "backup", Args: "FILE", Summary: "copy the store, consistent as of now, to FILE (mode 0600)", Min: 1, Max: 1,
		Help: "FILE must not exist yet; FILE.sha256 gets its checksum, as sha256sum -c reads it.\n" +
			"The certificates and keys in the data directory are not part of it. No plane works\n" +
			"on a backup before planed restore made it a store again.",
		Flags: []cli.Flag{dataFlag()},
		Run: func(ctx context.Context, c *command.Call) error {
			return maintain(c, func(_ string, _ datadir.Plane, m maintainer) error {
				return backup(ctx, c.Arg(0), m)
			})
		},
	}
}

// backup writes beside the file, and gives it its name when it is whole.
func backup(ctx context.Context, file string, m maintainer) (err error) {
	if _, err := os.Lstat(file); err == nil {
		return fault.New(fault.Refused, wire.CodeConflict, "%s is there already; a backup overwrites nothing", file)
	}
	tmp, err := os.CreateTemp(filepath.Dir(file), "."+filepath.Base(file)+".*") // 0600
	if err != nil {
		return fmt.Errorf("cannot write the backup: %w", err)
	}
	defer os.Remove(tmp.Name())
	defer tmp.Close()
	if err := m.Backup(ctx, tmp); err != nil {
		return fmt.Errorf("cannot write the backup: %w", err)
	}
	if err := bolt.MarkBackup(tmp.Name(), time.Now()); err != nil {
		return fmt.Errorf("cannot write the backup: %w", err)
	}
	sum := sha256.New()
	_, err = tmp.Seek(0, io.SeekStart)
	if err == nil {
		_, err = io.Copy(sum, tmp)
	}
	if err := errors.Join(err, tmp.Sync()); err != nil {
		return fmt.Errorf("cannot write the backup: %w", err)
	}
	// The checksum first: a file under the backup's name has one.
	line := fmt.Sprintf("%x  %s\n", sum.Sum(nil), filepath.Base(file))
	if err := durable.WriteFile(file+restore.SumSuffix, []byte(line), 0o600); err != nil {
		return fmt.Errorf("cannot write the backup's checksum: %w", err)
	}
	if err := os.Link(tmp.Name(), file); err != nil {
		return fmt.Errorf("cannot write the backup: %w", err)
	}
	return durable.SyncDir(filepath.Dir(file))
}

func restoreCommand() *command.Command {
	return &command.Command{
		Name: "restore", Args: "FILE", Summary: "make a backup the plane's store again", Min: 1, Max: 1,
		Help: `The plane must be stopped. FILE is verified first, with FILE.sha256 where there is
one; whatever is refused changes nothing. Sessions, invitations and machines that
wait for approval are void afterwards.

A backup has forgotten what was deleted or locked since. --replay-audit re-applies
it from a copy of the audit log - the file of serve --audit-sink, or what
fleet audit --jsonl printed - and names the machines that do not come back by
themselves. Without such a copy, --accept-lost-deletions says that deleted
machines and tokens, and locked persons, may live again.

The store that was there is kept as ` + restore.FormerFile + ` in the data directory.`,
		Flags: append(command.JSONFlags(false), dataFlag(),
			&cli.StringFlag{Name: "replay-audit", Usage: "copy `FILE` of the audit log that goes on after the backup"},
			&cli.BoolFlag{Name: "accept-lost-deletions", Usage: "restore without one"}),
		Run: func(ctx context.Context, c *command.Call) error {
			dir, err := dataDir(c)
			if err != nil {
				return err
			}
			o := restore.Options{Dir: dir, Backup: c.Arg(0), Audit: c.String("replay-audit"), Accept: c.Bool("accept-lost-deletions"), Now: time.Now}
			if (o.Audit == "") != o.Accept {
				return fault.Usagef("either --replay-audit FILE or --accept-lost-deletions is needed, and not both").
					WithHint("the backup knows nothing of what was deleted or locked after it")
			}
			if _, err := datadir.Open(dir); err != nil {
				return err
			}
			r, err := restore.Run(ctx, o)
			if err != nil {
				return err
			}
			if c.WantsJSON() {
				return c.Print(r)
			}
			return printRestored(c.Stdout, r)
		},
	}
}

func printRestored(out io.Writer, r *restore.Report) error {
	w := bufio.NewWriter(out)
	line := func(k, format string, args ...any) {
		fmt.Fprintf(w, "%-12s %s\n", k, command.Clean(fmt.Sprintf(format, args...)))
	}
	age := "of an unknown time"
	if r.AgeS != nil {
		age = fmt.Sprintf("of %s, %s ago", r.BackupAt.UTC().Format(time.RFC3339), time.Duration(*r.AgeS*float64(time.Second)).Round(time.Second))
	}
	line("backup", "%s, audit entry %d", age, r.Head.Seq)
	line("void", "%d sessions, %d invitations, %d machines that waited for approval", r.Sessions, r.Invitations, r.Enrolments)
	if p := r.Replayed; p == nil {
		line("replayed", "nothing: what was deleted or locked since the backup lives again")
	} else {
		line("replayed", "%d audit entries, until entry %d of %s", p.Entries, p.Until.Seq, p.At.UTC().Format(time.RFC3339))
		for _, part := range []struct {
			name  string
			words []string
		}{{"deleted", p.Deleted}, {"locked", p.Locked}, {"removed", p.Removed}, {"key", p.Keys}, {"token", p.Tokens}} {
			for _, word := range part.words {
				line(part.name, "%s", word)
			}
		}
		for _, l := range p.Lost {
			line("lost", "%s %s: %s; fleet delete it if it is listed, and install it again", l.Machine, l.Name, l.Why)
		}
		for _, n := range p.NotApplied {
			line("not applied", "entry %d, %s of %s: %s", n.Seq, n.Action, n.Subject, n.Why)
		}
	}
	if r.Former != "" {
		line("before", "%s", r.Former)
	}
	line("next", "start planed; persons log in again, and verify the log with fleet audit verify --reset")
	return w.Flush()
}

func recoverCommand() *command.Command {
	return &command.Command{
		Name: "recover-owner", Summary: "make a new owner's invitation, when every owner's key is lost",
		Help: "The invitation is written to owner.invite in the data directory (mode 0600), works once\n" +
			"and for seven days, and is in the audit log.",
		Flags: append(command.JSONFlags(false), dataFlag(),
			&cli.StringFlag{Name: "owner", Usage: "the owner's `NAME` (default: the one given to init)"}),
		Run: func(ctx context.Context, c *command.Call) error {
			return maintain(c, func(_ string, p datadir.Plane, m maintainer) error {
				owner := c.String("owner")
				if owner == "" {
					owner = p.Owner
				}
				if err := wire.CheckName(owner); err != nil {
					return fault.Usagef("--owner: %s", err)
				}
				r, err := m.RecoverOwner(ctx, owner)
				if err != nil {
					return err
				}
				if c.WantsJSON() {
					return c.Print(r)
				}
				fmt.Fprintln(c.Stdout, r.InviteFile)
				c.Notef("Log in: fleet login %s --ca-pin %s --invite-file %s", p.URL, p.CAPin, r.InviteFile)
				return nil
			})
		},
	}
}

var _ admin.Service = (*server)(nil)
