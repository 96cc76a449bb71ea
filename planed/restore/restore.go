// Package restore turns a backup into a plane's store again.
//
// # What a backup forgets
//
// A backup knows nothing of what came after it. Put back as it is, it revives
// every machine and token that was deleted, and every person that was locked
// since. So a restore re-applies these from a copy of the audit log, whose
// chain it follows from the backup's last entry on, or is told by a person that
// they may be lost. Sessions, invitations and enrolments are void either way:
// each may have been used or ended since.
//
// Machines have rotated since. A machine's disk keeps its credential and the
// one before, so one that promoted a single generation is known to the backup
// and comes back by itself, and so does one whose next generation was staged
// when the backup was made and that promoted another one since. The others, and
// those admitted since, have to be installed again; the log tells which.
//
// # Interrupted anywhere
//
// All of it happens to a copy beside the store. The last step is the rename
// that makes the copy the store; before it nothing has changed, and after it
// everything has. What was the store keeps the name FormerFile.
//
// The package must not know command lines.
package restore

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/bolt"
)

// FormerFile is what the store that was replaced is called.
const FormerFile = "plane.db.before-restore"

// SumSuffix is added to a backup's name for the file with its SHA-256.
const SumSuffix = ".sha256"

// Schema of Report.
const Schema = "fleet.plane-restored/v1"

// Report is what a restore did, and what it cannot know.
type Report struct {
	Schema   string         `json:"schema"`
	BackupAt *wire.Time     `json:"backup_at"` // null for one that does not say
	AgeS     *float64       `json:"age_s"`
	Head     wire.AuditHead `json:"audit_head"` // the backup's
	Checked  bool           `json:"checksum"`   // there was one beside it, and it fits
	// Replayed is null when lost deletions were accepted.
	Replayed    *Replayed `json:"replayed"`
	Sessions    int       `json:"void_sessions"`
	Invitations int       `json:"void_invitations"`
	Enrolments  int       `json:"void_enrolments"`
	Former      string    `json:"former"` // where the store that was replaced is; empty without one
}

// Replayed is what a copy of the audit log made of the backup.
type Replayed struct {
	Until      wire.AuditHead `json:"until"` // the copy's end: nothing after it is known
	At         *wire.Time     `json:"at"`    // of that entry
	Entries    int            `json:"entries"`
	Deleted    []string       `json:"deleted"`     // machines
	Locked     []string       `json:"locked"`      // persons
	Removed    []string       `json:"removed"`     // persons
	Keys       []string       `json:"keys"`        // fingerprints taken from persons
	Tokens     []string       `json:"tokens"`      // deleted
	Lost       []Lost         `json:"lost"`        // machines that do not come back by themselves
	NotApplied []NotApplied   `json:"not_applied"` // what a person has to see to
}

// Lost is a machine that the restored plane does not know any more.
type Lost struct {
	Machine string `json:"machine"`
	Name    string `json:"name"`
	Why     string `json:"why"`
}

// NotApplied is an entry that could not be re-applied.
type NotApplied struct {
	Seq     uint64 `json:"seq"`
	Action  string `json:"action"`
	Subject string `json:"subject"`
	Why     string `json:"why"`
}

// Options of Run.
type Options struct {
	Dir    string // the plane's data directory; no plane may be running
	Backup string // the file
	Audit  string // a copy of the audit log, one JSON entry a line
	Accept bool   // deletions that are lost are accepted; exactly one of the two is set
	Now    func() time.Time
}

// actor is who the log says did it.
const actor = "local:restore"

// Run restores. Whatever it refuses leaves the directory as it was.
func Run(ctx context.Context, o Options) (*Report, error) {
	unlock, err := idle(o.Dir)
	if err != nil {
		return nil, err
	}
	defer unlock()
	tmp, r, err := bring(o)
	if err != nil {
		return nil, err
	}
	defer os.Remove(tmp)
	if err := o.change(ctx, tmp, r); err != nil {
		return nil, err
	}
	return r, o.place(tmp, r)
}

// idle makes sure that nobody has the store open, for as long as it takes. The
// store itself may be missing or damaged: that is what restores are for.
func idle(dir string) (func(), error) {
	f, err := os.OpenFile(filepath.Join(dir, datadir.FileStore), os.O_RDWR, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return func() {}, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot look at the store: %w", err)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		f.Close()
		return nil, fault.New(fault.Refused, wire.CodeConflict, "the plane's store is in use").WithHint("stop planed first")
	}
	return func() { f.Close() }, nil
}

// bring copies the backup beside the store and compares its checksum.
func bring(o Options) (tmp string, r *Report, err error) {
	in, err := os.Open(o.Backup)
	if err != nil {
		return "", nil, fmt.Errorf("cannot read the backup: %w", err)
	}
	defer in.Close()
	out, err := os.CreateTemp(o.Dir, ".restore-*") // 0600
	if err != nil {
		return "", nil, fmt.Errorf("cannot copy the backup: %w", err)
	}
	defer func() {
		if err != nil {
			os.Remove(out.Name())
		}
	}()
	sum := sha256.New()
	_, err = io.Copy(io.MultiWriter(out, sum), in)
	if err := errors.Join(err, out.Close()); err != nil {
		return "", nil, fmt.Errorf("cannot copy the backup: %w", err)
	}
	r = &Report{Schema: Schema}
	want, err := os.ReadFile(o.Backup + SumSuffix)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return "", nil, fmt.Errorf("cannot read the backup's checksum: %w", err)
	default:
		hexed, _, _ := strings.Cut(string(want), " ")
		if hexed != hex.EncodeToString(sum.Sum(nil)) {
			return "", nil, fault.New(fault.Refused, "backup_altered", "%s does not have the checksum in %s", o.Backup, o.Backup+SumSuffix)
		}
		r.Checked = true
	}
	return out.Name(), r, nil
}

// change makes the copy what the store shall be.
func (o Options) change(ctx context.Context, path string, r *Report) (err error) {
	st, err := bolt.Open(path, bolt.Options{Offline: true, Backup: true, Now: o.Now})
	if err != nil {
		// The copy's name says nothing to anybody.
		return fault.New(fault.Refused, "backup_unusable", "%s cannot be restored: %s", o.Backup, strings.ReplaceAll(err.Error(), path, o.Backup))
	}
	defer func() { err = errors.Join(err, st.Close()) }()
	problems, err := st.Verify(ctx)
	if err != nil {
		return err
	}
	if len(problems) > 0 {
		return fault.New(fault.Refused, "backup_unusable", "%s is not consistent: %s", o.Backup, problems[0])
	}
	if r.Head, err = st.AuditHead(ctx); err != nil {
		return err
	}
	at, err := st.BackupAt()
	if err != nil {
		return err
	}
	if !at.IsZero() {
		age := o.Now().Sub(at).Seconds()
		r.BackupAt, r.AgeS = wire.TimeOf(at), &age
	}
	var entries []wire.AuditEntry
	if !o.Accept {
		if entries, err = o.read(ctx, st, r); err != nil {
			return err
		}
	}
	v, err := st.Unmark(ctx, actor, o.Now())
	if err != nil {
		return err
	}
	r.Sessions, r.Invitations, r.Enrolments = v.Sessions, v.Invitations, v.Enrolments
	if o.Accept {
		return nil
	}
	p := &replay{st: st, out: r.Replayed, machines: map[string]*fate{}}
	for _, e := range entries {
		if err := p.apply(ctx, e); err != nil {
			return fmt.Errorf("cannot re-apply audit entry %d: %w", e.Seq, err)
		}
	}
	return p.name(ctx)
}

const maxLine = 1 << 20

// read returns the entries after the backup's last one, each of which follows
// the one before it.
func (o Options) read(ctx context.Context, st store.Auditor, r *Report) ([]wire.AuditEntry, error) {
	f, err := os.Open(o.Audit)
	if err != nil {
		return nil, fmt.Errorf("cannot read the audit log: %w", err)
	}
	defer f.Close()
	refuse := func(format string, args ...any) error {
		return fault.New(fault.Refused, "audit_broken", "%s: "+format, append([]any{o.Audit}, args...)...).
			WithHint("it is a copy of the whole log, one JSON entry a line: the file of planed serve --audit-sink, or what fleet audit --jsonl printed")
	}
	c := chain{head: r.Head}
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, maxLine)
	for n := 1; lines.Scan(); n++ {
		line := bytes.TrimSpace(lines.Bytes())
		if len(line) == 0 {
			continue
		}
		var e wire.AuditEntry
		if err := json.Unmarshal(line, &e); err != nil || e.Seq == 0 {
			return nil, refuse("line %d is no audit entry", n)
		}
		if err := c.add(e); err != nil {
			return nil, refuse("line %d: %s", n, err)
		}
	}
	if err := lines.Err(); err != nil {
		return nil, refuse("%s", err)
	}
	if !c.met {
		return nil, refuse("it does not have entry %d, the backup's last", r.Head.Seq)
	}
	r.Replayed = &Replayed{Until: c.head, At: c.at, Entries: len(c.entries), Deleted: []string{}, Locked: []string{}, Removed: []string{}, Keys: []string{},
		Tokens: []string{}, Lost: []Lost{}, NotApplied: []NotApplied{}}
	return c.entries, ctx.Err()
}

// place makes the copy the store.
func (o Options) place(tmp string, r *Report) error {
	f, err := os.OpenFile(tmp, os.O_RDWR, 0)
	if err == nil {
		err = errors.Join(f.Sync(), f.Close())
	}
	if err != nil {
		return fmt.Errorf("cannot write the store: %w", err)
	}
	path, former := filepath.Join(o.Dir, datadir.FileStore), filepath.Join(o.Dir, FormerFile)
	now, err := os.Lstat(path)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return fmt.Errorf("cannot look at the store: %w", err)
	default:
		// An interrupted run may have got as far as this link.
		if old, err := os.Lstat(former); err == nil && !os.SameFile(old, now) {
			return fault.New(fault.Refused, wire.CodeConflict, "%s is there already, of a restore before", former).WithHint("move it away; nothing was changed")
		} else if err != nil {
			if err := os.Link(path, former); err != nil {
				return fmt.Errorf("cannot keep the store that is there: %w", err)
			}
		}
		r.Former = former
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("cannot place the store: %w", err)
	}
	return durable.SyncDir(o.Dir)
}
