package sshconn_test

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
)

// with returns the operator's side with another configuration.
func (o side) with(change func(*sshconfig.Config)) side {
	conf := *o.params.Config
	change(&conf)
	o.params.Config = &conf
	return o
}

func TestPickyServersAreMet(t *testing.T) {
	for what, sshd := range map[string]string{
		"large groups":   "KexAlgorithms diffie-hellman-group16-sha512",
		"group exchange": "KexAlgorithms diffie-hellman-group-exchange-sha256",
		"one cipher":     "Ciphers aes256-gcm@openssh.com",
		"one MAC":        "Ciphers aes128-ctr\nMACs hmac-sha2-512-etm@openssh.com",
	} {
		t.Run(what, func(t *testing.T) { operator(t, server(t, sshd)).dial(t) })
	}
}

func TestConfiguredAlgorithmsAreUsed(t *testing.T) {
	s := server(t, "Ciphers aes128-cbc,aes256-ctr\nKexAlgorithms curve25519-sha256,diffie-hellman-group14-sha1")
	o := operator(t, s)
	o.with(func(c *sshconfig.Config) { c.Ciphers = []string{"aes128-cbc"} }).dial(t)
	o.with(func(c *sshconfig.Config) { c.KexAlgorithms = []string{"diffie-hellman-group14-sha1"} }).dial(t)
	_, err := sshconn.Dial(t.Context(), o.with(func(c *sshconfig.Config) { c.Ciphers = []string{"aes128-gcm@openssh.com"} }).params)
	if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, "aes128-gcm@openssh.com") {
		t.Error(err)
	}
}

func TestAPublicKeyFileAloneNamesAnAgentsKey(t *testing.T) {
	s := server(t, "")
	sock := filepath.Join(t.TempDir(), "a")
	agent := exec.CommandContext(t.Context(), "ssh-agent", "-D", "-a", sock)
	if err := agent.Start(); err != nil {
		t.Skipf("no ssh-agent: %v", err)
	}
	t.Cleanup(func() { agent.Process.Kill(); agent.Wait() })
	deadline := time.Now().Add(10 * time.Second)
	for {
		if c, err := net.Dial("unix", sock); err == nil {
			c.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("ssh-agent does not listen")
		}
		time.Sleep(5 * time.Millisecond)
	}
	add := exec.CommandContext(t.Context(), "ssh-add", "-q", s.KeyPath())
	add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+sock)
	if out, err := add.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	pub, err := os.ReadFile(s.KeyPath() + ".pub")
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "named-as-i-like")
	if err := os.WriteFile(file, pub, 0o600); err != nil {
		t.Fatal(err)
	}
	operator(t, s).with(func(c *sshconfig.Config) {
		c.IdentityFiles, c.IdentitiesOnly, c.IdentityAgent = []string{file}, true, sock
	}).dial(t)
}

// A server that accepts and says nothing takes as long as ConnectTimeout says.
func TestConnectTimeoutCoversTheKeyExchange(t *testing.T) {
	o := operator(t, server(t, ""))
	near, far := net.Pipe()
	defer far.Close()
	o = o.with(func(c *sshconfig.Config) { c.ConnectTimeout = 50 * time.Millisecond })
	o.params.Dial = func(context.Context, *sshconfig.Config) (net.Conn, error) { return near, nil }
	_, err := sshconn.Dial(t.Context(), o.params)
	if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || !strings.Contains(f.Msg, "50ms") {
		t.Fatal(err)
	}
}
