package planed_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/restore"
)

// rotated has the machine go on by a generation, and returns the secret before.
func (b *box) rotated(generation int) (before secret.Text) {
	b.p.t.Helper()
	next := secret.New("fm_")
	body := fmt.Sprintf(`{"generation":%d,"digest":%q}`, generation, next.Digest().Hex())
	if status, out, err := b.post(wire.PathRotate, b.secret, body); err != nil || status != http.StatusOK {
		b.p.t.Fatal(status, string(out), err)
	}
	before, b.secret = b.secret, next
	b.mustCheck(running)
	return before
}

// log writes a copy of the audit log, as fleet audit --jsonl prints it.
func (p *plane) auditCopy(c *planeclient.Client, name string) string {
	p.t.Helper()
	a, err := c.Audit(p.t.Context(), planeclient.AuditFilter{})
	if err != nil {
		p.t.Fatal(err)
	}
	var out strings.Builder
	for _, e := range a.Entries {
		b, err := json.Marshal(e)
		if err != nil {
			p.t.Fatal(err)
		}
		out.Write(append(b, '\n'))
	}
	path := filepath.Join(p.t.TempDir(), name)
	if err := os.WriteFile(path, []byte(out.String()), 0o600); err != nil {
		p.t.Fatal(err)
	}
	return path
}

// TestARestoreRevivesNothing: what was deleted or locked after the backup stays
// so, machines that rotated once come back by themselves, and the others are
// named.
func TestARestoreRevivesNothing(t *testing.T) { // R21, R23
	p := newPlane(t)
	owner := p.owner()
	boxes := map[string]*box{}
	for _, name := range []string{"stays", "deleted", "rotated", "twice"} {
		b := p.newBox()
		b.admit(owner, name)
		b.mustCheck(running)
		boxes[name] = b
	}
	inv, err := owner.Invite(t.Context(), wire.PersonRequest{Name: "mo", Role: wire.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	mo := newKey(t)
	if _, err := p.login(mo, inv.Invitation); err != nil {
		t.Fatal(err)
	}
	waiting, err := owner.Invite(t.Context(), wire.PersonRequest{Name: "eve", Role: wire.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	ci, err := owner.CreateToken(t.Context(), wire.TokenRequest{Name: "ci", Scopes: []string{"read"}, ExpiresS: 3600})
	if err != nil {
		t.Fatal(err)
	}
	backup := filepath.Join(t.TempDir(), "backup.db")
	if _, errOut, exit := planed(t, "backup", "--data", p.dir, backup); exit != 0 {
		t.Fatal(errOut)
	}

	if _, err := owner.Delete(t.Context(), boxes["deleted"].id); err != nil {
		t.Fatal(err)
	}
	before := boxes["rotated"].rotated(2)
	boxes["twice"].rotated(2)
	boxes["twice"].rotated(3)
	late := p.newBox()
	late.admit(owner, "late")
	late.mustCheck(running)
	if _, err := owner.LockPerson(t.Context(), "mo"); err != nil {
		t.Fatal(err)
	}
	if err := owner.DeleteToken(t.Context(), "ci"); err != nil {
		t.Fatal(err)
	}
	log := p.auditCopy(owner, "audit.jsonl")

	if _, errOut, exit := planed(t, "restore", "--data", p.dir, backup, "--replay-audit", log); exit != fault.Refused || !strings.Contains(errOut, "stop planed") {
		t.Fatal("a running plane's store was replaced:", exit, errOut)
	}
	p.term()
	was, err := os.ReadFile(filepath.Join(p.dir, "plane.db"))
	if err != nil {
		t.Fatal(err)
	}
	refusals(t, p, backup, log)
	if now, err := os.ReadFile(filepath.Join(p.dir, "plane.db")); err != nil || string(now) != string(was) {
		t.Fatal("a restore that was refused changed the store", err)
	}

	out, errOut, exit := planed(t, "restore", "--data", p.dir, backup, "--replay-audit", log, "--json")
	var r restore.Report
	if err := json.Unmarshal([]byte(out), &r); err != nil || exit != 0 {
		t.Fatal(out, errOut, err)
	}
	if !r.Checked || r.BackupAt == nil || r.Sessions != 2 || r.Invitations != 1 || r.Former == "" {
		t.Errorf("%+v", r)
	}
	if got := r.Replayed; !slices.Equal(got.Deleted, []string{boxes["deleted"].id}) || !slices.Equal(got.Locked, []string{"mo"}) ||
		!slices.Equal(got.Tokens, []string{"ci"}) || len(got.NotApplied) != 0 || len(got.Lost) != 2 ||
		got.Lost[0].Machine != boxes["twice"].id || got.Lost[1].Machine != late.id {
		t.Errorf("%+v", got)
	}
	if _, errOut, exit := planed(t, "check", "--data", p.dir); exit != 0 {
		t.Error(errOut)
	}

	p.start()
	boxes["stays"].mustCheck(running)
	if status, _, e := boxes["deleted"].check(running); status != http.StatusGone || e.Error.Code != wire.CodeRevoked {
		t.Error("a deleted machine lives again:", status, e)
	}
	if status, _, _ := boxes["rotated"].check(running); status != http.StatusUnauthorized {
		t.Error(status)
	}
	boxes["rotated"].secret = before // what the machine falls back to
	boxes["rotated"].mustCheck(running)
	for _, b := range []*box{boxes["twice"], late} {
		if status, _, _ := b.check(running); status != http.StatusUnauthorized {
			t.Error(status)
		}
	}
	if _, err := owner.Whoami(t.Context()); fault.Of(err).Exit != fault.NeedPerson {
		t.Error("a session from before lives:", err)
	}
	if _, err := p.client(secret.Of(ci.Secret)).Machines(t.Context(), wire.MachineFilter{}); fault.Of(err) == nil || fault.Of(err).Exit != fault.NeedPerson {
		t.Error("a deleted token works:", err)
	}
	if _, err := p.login(mo, ""); fault.Of(err).Exit != fault.NeedPerson {
		t.Error("a locked person logs in:", err)
	}
	if _, err := p.login(newKey(t), waiting.Invitation); err == nil {
		t.Error("an invitation from before the backup is good")
	}
}

// refusals are restores that change nothing.
func refusals(t *testing.T, p *plane, backup, log string) {
	t.Helper()
	copyOf := func(name string, change func([]byte) []byte) string {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		path := filepath.Join(t.TempDir(), filepath.Base(name))
		if err := os.WriteFile(path, change(b), 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	lines := func(f func([]string) []string) func([]byte) []byte {
		return func(b []byte) []byte { return []byte(strings.Join(f(strings.SplitAfter(string(b), "\n")), "")) }
	}
	altered := copyOf(backup, func(b []byte) []byte { b[len(b)/2] ^= 1; return b })
	sum, err := os.ReadFile(backup + restore.SumSuffix)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(altered+restore.SumSuffix, sum, 0o600); err != nil {
		t.Fatal(err)
	}
	other := newPlane(t)
	otherLog := other.auditCopy(other.owner(), "other.jsonl")
	for name, c := range map[string]struct {
		args []string
		exit int
		says string
	}{
		"without a word about deletions": {[]string{backup}, fault.Usage, "--accept-lost-deletions"},
		"with both words":                {[]string{backup, "--replay-audit", log, "--accept-lost-deletions"}, fault.Usage, "not both"},
		"altered":                        {[]string{altered, "--accept-lost-deletions"}, fault.Refused, "checksum"},
		"no backup":                      {[]string{log, "--accept-lost-deletions"}, fault.Refused, "cannot be restored"},
		"missing":                        {[]string{backup + "x", "--accept-lost-deletions"}, fault.Failure, "no such file"},
		"another plane's log":            {[]string{backup, "--replay-audit", otherLog}, fault.Refused, ""},
		"a log with a gap": {[]string{backup, "--replay-audit", copyOf(log, lines(func(l []string) []string {
			return slices.Delete(l, len(l)-3, len(l)-2)
		}))}, fault.Refused, "follows entry"},
		"a log with an altered entry": {[]string{backup, "--replay-audit", copyOf(log, lines(func(l []string) []string {
			l[len(l)-2] = strings.Replace(l[len(l)-2], "token.delete", "token.create", 1)
			return l
		}))}, fault.Refused, "altered"},
		"a log from before the backup": {[]string{backup, "--replay-audit", copyOf(log, lines(func(l []string) []string { return l[:2] }))}, fault.Refused, "the backup's last"},
		"a log of something else":      {[]string{backup, "--replay-audit", copyOf(log, func([]byte) []byte { return []byte("hello\n") })}, fault.Refused, "line 1"},
	} {
		_, errOut, exit := planed(t, append([]string{"restore", "--data", p.dir}, c.args...)...)
		if exit != c.exit || !strings.Contains(errOut, c.says) {
			t.Errorf("%s: exit %d, %s", name, exit, errOut)
		}
	}
}

// TestABackupIsNoStore: a copy that somebody puts in place by hand is not worked
// on, and a restore says in words what it cannot know.
func TestABackupIsNoStore(t *testing.T) { // R23
	p := newPlane(t)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	b.mustCheck(running)
	backup := filepath.Join(t.TempDir(), "backup.db")
	if _, errOut, exit := planed(t, "backup", "--data", p.dir, backup); exit != 0 {
		t.Fatal(errOut)
	}
	p.kill()
	db := filepath.Join(p.dir, "plane.db")
	raw, err := os.ReadFile(backup)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(db, raw, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, errOut, exit := planed(t, "serve", "--data", p.dir, "--listen", "127.0.0.1:0"); exit == 0 || !strings.Contains(errOut, "is a backup of") {
		t.Fatal(exit, errOut)
	}
	if err := os.Remove(db); err != nil { // the store is lost altogether
		t.Fatal(err)
	}
	out, errOut, exit := planed(t, "restore", "--data", p.dir, backup, "--accept-lost-deletions")
	if exit != 0 || !strings.Contains(out, "lives again") || !strings.Contains(out, "ago, audit entry") {
		t.Fatal(out, errOut, exit)
	}
	p.start()
	b.mustCheck(running)
	if left, _ := filepath.Glob(filepath.Join(p.dir, ".restore-*")); len(left) > 0 {
		t.Error(left)
	}
}
