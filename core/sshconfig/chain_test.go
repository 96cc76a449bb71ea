package sshconfig

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleet.example/fleet/core/fault"
)

func chainOf(t *testing.T, config, dest string) (*Chain, error) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "config")
	if err := os.WriteFile(file, []byte(config), 0o600); err != nil {
		t.Fatal(err)
	}
	r := Resolver{Getenv: func(k string) string { return map[string]string{"SSH_AUTH_SOCK": "/run/agent"}[k] }}
	return r.Chain(t.Context(), dest, Flags{ConfigFile: file})
}

func hops(c *Chain) string {
	var out []string
	for _, j := range c.Jumps {
		out = append(out, j.String())
	}
	return strings.Join(append(out, c.Target.String()), " → ")
}

func TestEachHopHasItsOwnConfiguration(t *testing.T) {
	needSSH(t)
	for what, c := range map[string]struct{ config, dest, want string }{
		"none":             {"Host *\n  User me\n", "box", "me@box:22"},
		"literal":          {"Host *\n  User me\nHost box\n  ProxyJump you@gate.example:2200\n", "box", "you@gate.example:2200 → me@box:22"},
		"alias":            {"Host gate\n  HostName gate.example\n  User keeper\n  Port 23\nHost *\n  User me\nHost box\n  ProxyJump gate\n", "box", "keeper@gate.example:23 → me@box:22"},
		"several":          {"Host *\n  User me\nHost box\n  ProxyJump a,b:2,c@[2001:db8::1]:3\n", "box", "me@a:22 → me@b:2 → c@[2001:db8::1]:3 → me@box:22"},
		"jump of the jump": {"Host *\n  User me\nHost box\n  ProxyJump in\nHost in\n  ProxyJump out\nHost out\n  Port 24\n", "box", "me@out:24 → me@in:22 → me@box:22"},
		// The jumps before it are what leads to a later jump, whatever it says.
		"only the first jump's jump": {"Host *\n  User me\nHost box\n  ProxyJump a,b\nHost b\n  ProxyJump never\nHost a\n  ProxyJump z\n", "box", "me@z:22 → me@a:22 → me@b:22 → me@box:22"},
		"tokens":                     {"Host *\n  User me\nHost box\n  HostName box.rack\n  ProxyJump gate\nHost gate\n  HostName gate-of-%h\n", "box", "me@gate-of-gate:22 → me@box.rack:22"},
		"uri":                        {"Host *\n  User me\nHost box\n  ProxyJump ssh://a@gate:99\n", "box", "a@gate:99 → me@box:22"},
	} {
		got, err := chainOf(t, c.config, c.dest)
		if err != nil || hops(got) != c.want {
			t.Errorf("%s: %v, want %s", what, err, c.want)
			if err == nil {
				t.Error(hops(got))
			}
		}
	}
}

func TestAJumpWithoutLoginUsesTheTargets(t *testing.T) { // R32
	needSSH(t)
	c, err := chainOf(t, `
Host box
  User me
  IdentityFile /k/target
  IdentityAgent /run/target
  IdentitiesOnly yes
  CertificateFile /k/target-cert.pub
  ProxyJump plain,keyed,agented,noagent
Host plain
  User p
Host keyed
  IdentityFile /k/keyed
Host agented
  IdentityAgent /run/agented
Host noagent
  IdentityAgent none
`, "box")
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"plain":   "[/k/target] true /run/target true [/k/target-cert.pub]",
		"keyed":   "[/k/keyed] true /run/agent false []",
		"agented": "default false /run/agented false []",
		"noagent": "default false  false []",
		"box":     "[/k/target] true /run/target true [/k/target-cert.pub]",
	}
	for _, h := range append(c.Jumps, c.Target) {
		files := fmt.Sprint(h.IdentityFiles)
		if !h.IdentityFileSet {
			files = "default"
		}
		if got := fmt.Sprint(files, " ", h.IdentityFileSet, " ", h.IdentityAgent, " ", h.IdentitiesOnly, " ", h.CertificateFiles); got != want[h.Alias] {
			t.Errorf("%s: %s, want %s", h.Alias, got, want[h.Alias])
		}
	}
}

func TestLoopsAreFound(t *testing.T) {
	needSSH(t)
	for what, config := range map[string]string{
		"two that lead to each other": "Host *\n  User me\nHost a\n  ProxyJump b\nHost b\n  ProxyJump a\n",
		"through an alias":            "Host *\n  User me\nHost a\n  ProxyJump b\nHost b\n  ProxyJump c\nHost c\n  HostName a\n",
		"twice in a list":             "Host *\n  User me\nHost a\n  ProxyJump b,c,b\n",
		"itself":                      "Host *\n  User me\n  ProxyJump a\n",
	} {
		c, err := chainOf(t, config, "a")
		if err == nil {
			t.Errorf("%s: %s", what, hops(c))
		} else if f := fault.Of(err); !strings.Contains(f.Msg, "twice") && !strings.Contains(f.Msg, "loop") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestFirstHopIsDialledFromHere(t *testing.T) {
	needSSH(t)
	c, err := chainOf(t, "Host *\n  User me\nHost box\n  ProxyJump gate\nHost gate\n  ProxyCommand relay %h %p\n", "box")
	if err != nil || c.First().Alias != "gate" || c.First().ProxyCommand != "relay gate 22" || c.Target.ProxyCommand != "" {
		t.Fatal(c, err)
	}
	if c, err = chainOf(t, "Host *\n  User me\n", "box"); err != nil || c.First() != c.Target {
		t.Fatal(c, err)
	}
}
