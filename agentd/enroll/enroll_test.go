package enroll

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/approval"
	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/place"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

const id = "m_aaaaaaaaaaaaaaaaaaaaaaaaaa"

// fakePlane answers polls from a list, and the last of it for ever.
type fakePlane struct {
	asked   wire.EnrollRequest
	polls   []func() (wire.EnrollPollAnswer, error)
	at      []time.Time
	badPoll bool
}

func (p *fakePlane) Enroll(_ context.Context, r wire.EnrollRequest) (wire.EnrollAnswer, error) {
	p.asked = r
	return wire.EnrollAnswer{Code: "ABCD-EFGH", URL: "https://plane/approve", ExpiresS: 600, PollS: 5}, nil
}

func (p *fakePlane) PollEnroll(_ context.Context, poll secret.Text) (wire.EnrollPollAnswer, error) {
	p.at = append(p.at, time.Now())
	p.badPoll = p.badPoll || poll.Digest().Hex() != p.asked.PollDigest
	f := p.polls[0]
	if len(p.polls) > 1 {
		p.polls = p.polls[1:]
	}
	return f()
}

func waits() (wire.EnrollPollAnswer, error) {
	return wire.EnrollPollAnswer{Status: wire.EnrollWaiting}, nil
}
func yes() (wire.EnrollPollAnswer, error) {
	return wire.EnrollPollAnswer{Status: wire.EnrollApproved, Machine: id, Generation: 1, Name: "box"}, nil
}
func over() (wire.EnrollPollAnswer, error) {
	return wire.EnrollPollAnswer{}, fault.New(fault.NeedPerson, wire.CodeUnauthorized, "no such request")
}
func lost() (wire.EnrollPollAnswer, error) {
	return wire.EnrollPollAnswer{}, fault.New(fault.Unreachable, "plane_unreachable", "cannot reach the plane")
}

func await(ctx context.Context, p *fakePlane) (Approved, string, error) {
	var said strings.Builder
	a, err := Await(ctx, p, Request{Installation: secret.New(""), Show: func(a wire.EnrollAnswer) { fmt.Fprintln(&said, a.Code) },
		Notice: func(f string, args ...any) { fmt.Fprintf(&said, f+"\n", args...) }})
	return a, said.String(), err
}

func TestAnApprovalIsPickedUpWithWhatOnlyThisProcessHolds(t *testing.T) { // R7
	synctest.Test(t, func(t *testing.T) {
		p := &fakePlane{polls: []func() (wire.EnrollPollAnswer, error){waits, lost, lost, waits, yes}}
		a, said, err := await(t.Context(), p)
		if err != nil || a.Machine != id || a.Secret.Digest().Hex() != p.asked.CredentialDigest || p.badPoll {
			t.Fatal(a, err)
		}
		if p.asked.PollDigest == p.asked.CredentialDigest || strings.Contains(fmt.Sprintf("%+v %s", a, said), a.Secret.Reveal()) {
			t.Error("a secret is shown")
		}
		if strings.Count(said, "trying on") != 1 {
			t.Errorf("%q", said)
		}
		for i := 1; i < len(p.at); i++ {
			if d := p.at[i].Sub(p.at[i-1]); d != 5*time.Second {
				t.Errorf("a poll after %s", d)
			}
		}
		if doc := a.Document("https://plane", "system", nil); doc.Secret != a.Secret.Reveal() || doc.Machine != id || doc.Generation != 1 {
			t.Errorf("%+v", doc.Machine)
		}
	})
}

func TestWaitingEnds(t *testing.T) {
	for name, c := range map[string]struct {
		polls []func() (wire.EnrollPollAnswer, error)
		want  string
		exit  int
	}{
		"over":                      {[]func() (wire.EnrollPollAnswer, error){waits, over}, "the request is over", fault.NeedPerson},
		"over after a lost answer":  {[]func() (wire.EnrollPollAnswer, error){waits, lost, over}, "the request is over", fault.NeedPerson},
		"nobody comes":              {[]func() (wire.EnrollPollAnswer, error){waits}, "in time", fault.NeedPerson},
		"the plane never comes":     {[]func() (wire.EnrollPollAnswer, error){lost}, "in time", fault.NeedPerson},
		"an approval of no machine": {[]func() (wire.EnrollPollAnswer, error){func() (wire.EnrollPollAnswer, error) { return wire.EnrollPollAnswer{Status: wire.EnrollApproved}, nil }}, "named no machine", fault.Failure},
	} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			_, _, err := await(t.Context(), &fakePlane{polls: c.polls})
			if f := fault.Of(err); f == nil || f.Exit != c.exit || !strings.Contains(f.Msg, c.want) {
				t.Errorf("%s: %v", name, err)
			}
			if d := time.Since(start); d > 600*time.Second+approval.Overtime {
				t.Errorf("%s: %s", name, d)
			}
			lostOne := strings.Contains(name, "lost")
			if strings.Contains(fault.Of(err).Hint, "lost on the way") != lostOne {
				t.Errorf("%s: %s", name, fault.Of(err).Hint)
			}
		})
	}
}

func TestAnInterruptEndsTheWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(12*time.Second, cancel)
		if _, _, err := await(ctx, &fakePlane{polls: []func() (wire.EnrollPollAnswer, error){waits}}); !errors.Is(err, context.Canceled) {
			t.Fatal(err)
		}
	})
}

// bundle makes a signed bundle in a directory.
func bundle(t *testing.T) (dir string, signers artifact.Signers) {
	t.Helper()
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	signer, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	dir = t.TempDir()
	m := &artifact.Manifest{Schema: wire.SchemaArtifact, Version: "1", OS: runtime.GOOS, Arch: runtime.GOARCH,
		Archive: artifact.Archive{SHA256: strings.Repeat("0", 64), Size: 1}}
	for _, name := range []string{artifact.Agent, artifact.Probes, artifact.Shim, artifact.Plugins} {
		f := artifact.File{Path: name, Mode: 0o755, Size: int64(len(name)), SHA256: secret.Of(name).Digest().Hex()}
		if name == artifact.Probes {
			f = artifact.File{Path: name, Link: artifact.Plugins}
			err = os.Symlink(f.Link, filepath.Join(dir, name))
		} else {
			err = os.WriteFile(filepath.Join(dir, name), []byte(name), 0o755)
		}
		if err != nil {
			t.Fatal(err)
		}
		m.Files = append(m.Files, f)
	}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	sig, err := artifact.Sign(b, signer, wire.NamespaceArtifact)
	if err != nil {
		t.Fatal(err)
	}
	for name, content := range map[string][]byte{artifact.ManifestFile: b, artifact.SignatureFile: sig} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir, artifact.Signers{signer.PublicKey()}
}

func TestABundleIsPlacedAsItWasSigned(t *testing.T) { // R3
	dir, signers := bundle(t)
	data := t.TempDir()
	for range 2 { // again is the same
		b, err := OpenBundle(dir, signers)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.Place(data, signers); err != nil {
			t.Fatal(err)
		}
		if to, err := os.Readlink(filepath.Join(data, place.CurrentLink)); err != nil || to != "versions/"+b.ID {
			t.Fatal(to, err)
		}
		if err := b.intact(filepath.Join(data, "versions", b.ID)); err != nil {
			t.Fatal(err)
		}
		// What was altered there since is put right the second time.
		if err := os.WriteFile(filepath.Join(data, "versions", b.ID, artifact.Shim), []byte("x"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	left, err := filepath.Glob(filepath.Join(data, "versions", ".*"))
	if err != nil || len(left) > 0 {
		t.Error(left, err)
	}
}

func TestAnAlteredBundleIsRefused(t *testing.T) { // R3
	for name, alter := range map[string]func(dir string) error{
		"a file": func(d string) error { return os.WriteFile(filepath.Join(d, artifact.Agent), []byte("other!"), 0o755) },
		"a longer one": func(d string) error {
			return os.WriteFile(filepath.Join(d, artifact.Shim), []byte(artifact.Shim+"x"), 0o755)
		},
		"a missing one": func(d string) error { return os.Remove(filepath.Join(d, artifact.Plugins)) },
		"the manifest": func(d string) error {
			p := filepath.Join(d, artifact.ManifestFile)
			b, err := os.ReadFile(p)
			if err == nil {
				err = os.WriteFile(p, bytes.Replace(b, []byte(`"1"`), []byte(`"2"`), 1), 0o644)
			}
			return err
		},
		"no signature": func(d string) error { return os.Remove(filepath.Join(d, artifact.SignatureFile)) },
		"no manifest":  func(d string) error { return os.Remove(filepath.Join(d, artifact.ManifestFile)) },
	} {
		dir, signers := bundle(t)
		if err := alter(dir); err != nil {
			t.Fatal(err)
		}
		data := t.TempDir()
		b, err := OpenBundle(dir, signers)
		if err == nil {
			err = b.Place(data, signers)
		}
		if err == nil {
			t.Errorf("%s: it was placed", name)
		}
		if _, err := os.Lstat(filepath.Join(data, place.CurrentLink)); err == nil {
			t.Errorf("%s: current names it", name)
		}
	}
	dir, _ := bundle(t)
	_, others := bundle(t)
	if _, err := OpenBundle(dir, others); !errors.Is(err, artifact.ErrUntrusted) {
		t.Error(err)
	}
}

func TestAnInstallationIDIsMadeOnceAndNeverReplaced(t *testing.T) { // R6
	data := t.TempDir()
	a, err := Installation(data)
	if err != nil {
		t.Fatal(err)
	}
	b, err := Installation(data)
	if err != nil || a.Digest() != b.Digest() || len(a.Reveal()) != 32 {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(data, place.InstallationFile), []byte("torn"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Installation(data); fault.Of(err).Code != "installation_torn" {
		t.Fatal(err)
	}
}
