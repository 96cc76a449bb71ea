package state

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func dirs(t *testing.T) Dirs {
	env := map[string]string{"HOME": t.TempDir(), "XDG_RUNTIME_DIR": ""}
	return Dirs{Getenv: func(k string) string { return env[k] }, UID: os.Getuid()}
}

func login(t *testing.T, d Dirs, url string, ends time.Time) *Plane {
	t.Helper()
	p, err := d.SaveLogin(t.Context(), url, "system", "SHA256:x", wire.LoginAnswer{Token: "fs_abc", Person: "dana", ExpiresAt: wire.Time{Time: ends}})
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestSessionIsPrivateAndEnds(t *testing.T) {
	d := dirs(t)
	if _, err := d.OpenPlane(""); !errors.Is(err, ErrNoPlane) || fault.Of(err).Exit != fault.NeedPerson {
		t.Fatalf("err = %v", err)
	}
	p := login(t, d, "https://a.example", time.Now().Add(time.Hour))
	st, err := os.Stat(p.file("session"))
	if err != nil || st.Mode().Perm() != 0o600 {
		t.Fatal(st, err)
	}
	p, err = d.OpenPlane("")
	if err != nil || p.URL() != "https://a.example" {
		t.Fatal(p, err)
	}
	if tok, err := p.Session(); err != nil || tok.Reveal() != "fs_abc" {
		t.Fatal(err)
	}
	p = login(t, d, "https://a.example", time.Now().Add(-time.Second))
	if _, err := p.Session(); fault.Of(err).Exit != fault.NeedPerson {
		t.Fatalf("an ended session was used: %v", err)
	}
	login(t, d, "https://a.example", time.Now().Add(time.Hour))
	if err := p.Logout(); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Session(); fault.Of(err).Exit != fault.NeedPerson {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(p.dir, "plane.json"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := d.OpenPlane(""); err == nil {
		t.Fatal("an open state file was read")
	}
}

func TestStateIsPerPlane(t *testing.T) {
	d := dirs(t)
	a := login(t, d, "https://a.example", time.Now().Add(time.Hour))
	if err := a.SaveLink(t.Context(), Link{Machine: "m_a", Name: "box"}); err != nil {
		t.Fatal(err)
	}
	b := login(t, d, "https://b.example:8443", time.Now().Add(time.Hour))
	if l, err := b.Links(); err != nil || len(l) != 0 {
		t.Fatal(l, err)
	}
	if p, err := d.OpenPlane("HTTPS://A.example:443/"); err == nil {
		if l, _ := p.Links(); len(l) != 1 {
			t.Fatal(l)
		}
	} else {
		t.Fatal(err)
	}
}

func TestConcurrentLinkUpdatesLoseNone(t *testing.T) {
	d := dirs(t)
	p := login(t, d, "https://a.example", time.Now().Add(time.Hour))
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			if err := p.SaveLink(context.Background(), Link{Machine: fmt.Sprint("m_", i)}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if l, err := p.Links(); err != nil || len(l) != 20 {
		t.Fatal(len(l), err)
	}
}

// One directory on a machine holds one machine, and whoever is found there is it.
func TestALinkReplacesWhatLedToTheSamePlace(t *testing.T) {
	p := login(t, dirs(t), "https://a.example", time.Now().Add(time.Hour))
	old := Link{Machine: "m_old", Name: "box", Host: "dana@box", DataDir: "/home/dana/d", SSHArgs: []string{"-p", "22"}}
	account, port, without := old, old, old
	account.Machine, account.Host = "m_account", "eve@box"
	port.Machine, port.SSHArgs = "m_port", []string{"-p", "23"}
	without.Machine, without.DataDir = "m_without", ""
	now := old
	now.Machine = "m_new"
	for _, l := range []Link{old, account, port, without, now, now} {
		if err := p.SaveLink(t.Context(), l); err != nil {
			t.Fatal(err)
		}
	}
	links, err := p.Links()
	var ids []string
	for _, l := range links {
		ids = append(ids, l.Machine)
	}
	if slices.Sort(ids); err != nil || !slices.Equal(ids, []string{"m_account", "m_new", "m_port", "m_without"}) {
		t.Error(ids, err)
	}
}

func TestFindLink(t *testing.T) {
	links := []Link{{Machine: "m_aaa", Name: "web"}, {Machine: "m_aab", Name: "web-1"}, {Machine: "m_b", Name: "db"}, {Machine: "m_c", Name: "db"}}
	for arg, want := range map[string]string{"m_aaa": "m_aaa", "web": "m_aaa", "web-": "m_aab", "m_b": "m_b", "nope": ""} {
		l, found, err := FindLink(links, arg, false)
		if err != nil || l.Machine != want || found != (want != "") {
			t.Errorf("%s: %v %v %v", arg, l, found, err)
		}
	}
	for _, arg := range []string{"db", "m_aa", "we"} {
		if _, _, err := FindLink(links, arg, false); fault.Of(err) == nil || fault.Of(err).Exit != fault.Usage {
			t.Errorf("%s: err = %v, want ambiguous", arg, err)
		}
	}
	for arg, want := range map[string]bool{"m_aaa": true, "web-1": true, "web-": false, "m_aa": false} {
		if _, found, err := FindLink(links, arg, true); found != want || err != nil {
			t.Errorf("exactly %s: %v %v", arg, found, err)
		}
	}
}

func TestDirsRefuseLinksAndOpenOnes(t *testing.T) {
	d := dirs(t)
	st, err := d.State()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(st, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, err := d.State(); err == nil {
		t.Error("an open state directory was used")
	}
	if err := os.Rename(st, st+"2"); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(st+"2", st); err != nil {
		t.Fatal(err)
	}
	if _, err := d.State(); err == nil {
		t.Error("a symbolic link was used")
	}
}

func TestNormalURL(t *testing.T) {
	for in, want := range map[string]string{"https://A.b:443/": "https://a.b", "https://10.0.0.1:8443": "https://10.0.0.1:8443", "https://[::1]:8443": "https://[::1]:8443"} {
		if got, err := NormalURL(in); err != nil || got != want {
			t.Errorf("%s: %s, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "http://a", "a.b", "https://u:p@a", "https://a/x", "https://a?x=1", "https://"} {
		if _, err := NormalURL(in); err == nil {
			t.Errorf("%q was taken", in)
		}
	}
}
