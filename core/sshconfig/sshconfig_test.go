package sshconfig

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"fleet.example/fleet/core/fault"
)

func TestParseDestination(t *testing.T) {
	for in, want := range map[string]Destination{
		"prod":                     {Host: "prod"},
		"dana@prod":                {Host: "prod", User: "dana"},
		"dana@10.0.0.1:2222":       {Host: "10.0.0.1", User: "dana", Port: 2222},
		"[fe80::1]:22":             {Host: "fe80::1", Port: 22},
		"fe80::1":                  {Host: "fe80::1"},
		"dana@[::1]":               {Host: "::1", User: "dana"},
		"ssh://dana@prod:2222":     {Host: "prod", User: "dana", Port: 2222},
		"ssh://[::1]:2222/":        {Host: "::1", Port: 2222},
		"corp\\dana@prod":          {Host: "prod", User: "corp\\dana"},
		"dana@example.org@bastion": {Host: "bastion", User: "dana@example.org"},
	} {
		got, err := ParseDestination(in)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v", in, got, err)
		}
	}
	for _, in := range []string{"", "-oProxyCommand=x", "a b", "a:0", "a:x", "a:70000", "@a", "u@", "[::1", "[::1]x", "ssh://u:p@a", "ssh://", "a;b", "$(x)", "-l@a", "a\nb"} {
		if d, err := ParseDestination(in); err == nil {
			t.Errorf("%q was taken as %+v", in, d)
		} else if fault.Of(err).Exit != fault.Usage {
			t.Errorf("%q: exit %d", in, fault.Of(err).Exit)
		}
	}
}

func FuzzParseDestination(f *testing.F) {
	f.Add("dana@[::1]:22")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDestination(s)
		if err == nil && (d.Host == "" || strings.HasPrefix(d.Host, "-") || strings.HasPrefix(d.User, "-") || d.Port < 0 || d.Port > 65535) {
			t.Fatalf("%q → %+v", s, d)
		}
	})
}

func resolver(home string) Resolver {
	env := map[string]string{"HOME": home, "SSH_AUTH_SOCK": "/run/agent.sock", "KEYS": "/keys"}
	return Resolver{Getenv: func(k string) string { return env[k] }}
}

func TestResolveMeansWhatSSHMeans(t *testing.T) {
	needSSH(t)
	dir := t.TempDir()
	file := filepath.Join(dir, "config")
	if err := os.WriteFile(file, []byte(`
Host prod
  HostName 10.9.8.7
  User deploy
  Port 2200
  IdentityFile ~/.ssh/%r_%h
  IdentityFile ${KEYS}/two
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile ~/kh /x/kh2
  GlobalKnownHostsFile none
  HostKeyAlias prod-key
  ConnectTimeout 7
  HostKeyAlgorithms ssh-ed25519
Host jumpy
  ProxyJump bastion
`), 0o600); err != nil {
		t.Fatal(err)
	}
	c, err := resolver(dir).Resolve(t.Context(), "prod", Flags{ConfigFile: file})
	if err != nil {
		t.Fatal(err)
	}
	_, home := account()
	want := &Config{Alias: "prod", HostName: "10.9.8.7", User: "deploy", Port: 2200,
		IdentityFiles: []string{home + "/.ssh/deploy_10.9.8.7", "/keys/two"}, IdentityFileSet: true, IdentitiesOnly: true,
		IdentityAgentSet: true, HostKeyAlias: "prod-key", HostKeyAlgorithms: []string{"ssh-ed25519"},
		UserKnownHostsFiles: []string{home + "/kh", "/x/kh2"}, AddressFamily: "any", TCPKeepAlive: true,
		ConnectTimeout: 7 * time.Second, ServerAliveCountMax: 3, RequiredRSASize: c.RequiredRSASize}
	if d := cmp.Diff(want, c, cmpopts.IgnoreUnexported(Config{})); d != "" {
		t.Error(d)
	}
	if c.HostKeyName() != "prod-key" || c.String() != "deploy@10.9.8.7:2200" {
		t.Error(c.HostKeyName(), c.String())
	}
	c, err = resolver(dir).Resolve(t.Context(), "dana@jumpy:2222", Flags{ConfigFile: file})
	if err != nil || c.ProxyJump != "bastion" || c.Port != 2222 || c.User != "dana" || c.IdentityFileSet || c.IdentityAgent != "/run/agent.sock" {
		t.Errorf("%+v, %v", c, err)
	}
	if c.HostKeyName() != "[jumpy]:2222" {
		t.Error(c.HostKeyName())
	}
	bad := filepath.Join(dir, "bad")
	if err := os.WriteFile(bad, []byte("Nonsense yes\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err = resolver(dir).Resolve(t.Context(), "x", Flags{ConfigFile: bad}); err == nil || !strings.Contains(err.Error(), "Bad configuration option") {
		t.Errorf("err = %v, want ssh's own words", err)
	}
}

func TestWithoutSSHPlainDestinationsWork(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	r := resolver("/home/x")
	c, err := r.Resolve(context.Background(), "dana@10.0.0.1:2222", Flags{})
	if err != nil || c.Port != 2222 || len(c.IdentityFiles) == 0 {
		t.Fatal(c, err)
	}
	if _, err := r.Resolve(context.Background(), "prod", Flags{}); !errors.Is(err, ErrNoSSH) {
		t.Fatal(err)
	}
}

func TestFlagsRoundTrip(t *testing.T) {
	f := Flags{ConfigFile: "c", Identities: []string{"a", "b"}, Jump: "j", Port: 5, User: "u", Options: []string{"X=y"}}
	back, err := FlagsOf(f.Args())
	if err != nil || cmp.Diff(f, back) != "" {
		t.Fatal(back, err)
	}
}
