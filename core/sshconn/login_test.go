package sshconn_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/contrib/lab/loopback"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/sshconn"
)

// agentOf starts an ssh-agent that holds the key files and then strangers more.
func agentOf(t *testing.T, strangers int, files ...string) string {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fa")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	sock := filepath.Join(dir, "a")
	cmd := exec.Command("ssh-agent", "-D", "-a", sock)
	if err := cmd.Start(); err != nil {
		t.Skipf("no ssh-agent: %v", err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() })
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		if conn, err := net.Dial("unix", sock); err == nil {
			conn.Close()
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("ssh-agent does not listen")
		}
	}
	var all []string
	for i := range strangers {
		f := filepath.Join(t.TempDir(), fmt.Sprint(i))
		keygen(t, "-t", "ed25519", "-N", "", "-f", f)
		all = append(all, f)
	}
	files = append(all, files...)
	for _, f := range files {
		add := exec.Command("ssh-add", "-q", f)
		add.Env = append(os.Environ(), "SSH_AUTH_SOCK="+sock)
		if out, err := add.CombinedOutput(); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	return sock
}

// TestAFullAgentDoesNotLockTheConfiguredKeyOut offers the key that the
// configuration names before the agent's eight others.
func TestAFullAgentDoesNotLockTheConfiguredKeyOut(t *testing.T) {
	for _, tries := range []int{6, 2, 1} {
		s := server(t, fmt.Sprintf("MaxAuthTries %d", tries))
		o := operator(t, s)
		full := agentOf(t, 8)
		o.with(func(c *sshconfig.Config) { c.IdentityAgent = full }).dial(t)
		// The agent has it too, behind the others.
		last := agentOf(t, 8, s.KeyPath())
		o.with(func(c *sshconfig.Config) { c.IdentityAgent = last }).dial(t)
		// It stands among ssh's defaults, and the agent has it.
		o.with(func(c *sshconfig.Config) { c.IdentityAgent, c.IdentityFileSet = last, false }).dial(t)
	}
	// With the agent alone, a server that hangs up is one sentence with a way out.
	o := operator(t, server(t, "MaxAuthTries 2")).with(func(c *sshconfig.Config) {
		c.IdentityAgent, c.IdentityFiles, c.IdentityFileSet = agentOf(t, 8), nil, false
	})
	_, err := sshconn.Dial(t.Context(), o.params)
	if f := fault.Of(err); f == nil || f.Exit != fault.Unreachable || f.Code != "auth_failed" || !strings.Contains(f.Msg, "Too many authentication failures") || !strings.Contains(f.Hint, "IdentitiesOnly") {
		t.Errorf("%v", err)
	}
}

func TestIdentitiesOnlyKeepsTheAgentsOthersBack(t *testing.T) {
	s := server(t, "LogLevel VERBOSE\nMaxAuthTries 2")
	wrong := filepath.Join(t.TempDir(), "wrong")
	keygen(t, "-t", "ed25519", "-N", "", "-f", wrong)
	o := operator(t, s).with(func(c *sshconfig.Config) {
		c.IdentityAgent, c.IdentityFiles, c.IdentitiesOnly = agentOf(t, 8, s.KeyPath()), []string{wrong}, true
	})
	_, err := sshconn.Dial(t.Context(), o.params)
	if f := fault.Of(err); f == nil || !strings.Contains(f.Msg, "Permission denied (publickey)") {
		t.Errorf("%v", err)
	}
}

func keygen(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command("ssh-keygen", append([]string{"-q"}, args...)...).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestAnEncryptedKeyWithoutAnAgentIsRefusedInWords(t *testing.T) { // R32
	for _, format := range []string{"openssh", "PEM"} {
		file := filepath.Join(t.TempDir(), "encrypted")
		keygen(t, "-t", "rsa", "-b", "2048", "-m", map[string]string{"openssh": "RFC4716", "PEM": "PEM"}[format], "-N", "secret", "-f", file)
		pub, err := os.ReadFile(file + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		s, err := loopback.Start(t.Context(), loopback.Options{AuthorizedKeys: []string{strings.TrimSpace(string(pub))}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		o := operator(t, s).with(func(c *sshconfig.Config) { c.IdentityFiles = []string{file} })
		_, err = sshconn.Dial(t.Context(), o.params)
		if f := fault.Of(err); f == nil || !strings.Contains(f.Hint, "load this key into ssh-agent first (ssh-add "+file+")") {
			t.Errorf("%s: %v", format, err)
		}
	}
}

func TestKeysOfEveryFormatLogIn(t *testing.T) {
	for what, args := range map[string][]string{
		"ed25519":    {"-t", "ed25519"},
		"ecdsa":      {"-t", "ecdsa", "-b", "384"},
		"rsa":        {"-t", "rsa", "-b", "2048"},
		"rsa in PEM": {"-t", "rsa", "-b", "2048", "-m", "PEM"},
		"ecdsa PEM":  {"-t", "ecdsa", "-m", "PEM"},
	} {
		file := filepath.Join(t.TempDir(), "key")
		keygen(t, append(args, "-N", "", "-f", file)...)
		pub, err := os.ReadFile(file + ".pub")
		if err != nil {
			t.Fatal(err)
		}
		s, err := loopback.Start(t.Context(), loopback.Options{AuthorizedKeys: []string{strings.TrimSpace(string(pub))}})
		if err != nil {
			t.Fatal(err)
		}
		t.Run(what, func(t *testing.T) {
			operator(t, s).with(func(c *sshconfig.Config) { c.IdentityFiles = []string{file} }).dial(t)
			// The agent signs with it, RSA with SHA-2.
			sock := agentOf(t, 0, file)
			operator(t, s).with(func(c *sshconfig.Config) { c.IdentityFiles, c.IdentityFileSet, c.IdentityAgent = nil, false, sock }).dial(t)
		})
		s.Close()
	}
}

// TestCertificatesLogIn is about a certificate beside its key, and about one
// that CertificateFile names, whose key an agent holds.
func TestCertificatesLogIn(t *testing.T) {
	dir := t.TempDir()
	ca, key := filepath.Join(dir, "ca"), filepath.Join(dir, "key")
	for _, kind := range [][]string{{"-t", "ed25519"}, {"-t", "rsa", "-b", "2048"}} {
		os.Remove(ca)
		os.Remove(key)
		keygen(t, append(kind, "-N", "", "-f", ca)...)
		keygen(t, append(kind, "-N", "", "-f", key)...)
		s := server(t, "TrustedUserCAKeys "+ca+".pub\nAuthorizedKeysFile none")
		keygen(t, "-s", ca, "-I", "me", "-n", s.User(), "-V", "+1h", key+".pub")
		o := operator(t, s)
		o.with(func(c *sshconfig.Config) { c.IdentityFiles = []string{key} }).dial(t)
		elsewhere := filepath.Join(dir, "elsewhere")
		if err := os.Rename(key+"-cert.pub", elsewhere); err != nil {
			t.Fatal(err)
		}
		sock := agentOf(t, 0, key)
		o.with(func(c *sshconfig.Config) {
			c.IdentityFiles, c.IdentityFileSet, c.IdentityAgent, c.CertificateFiles = nil, false, sock, []string{elsewhere}
		}).dial(t)
	}
}

// other is an SSH server in this process that takes what OpenSSH's here cannot
// be made to.
func other(t *testing.T, conf *ssh.ServerConfig) *sshconfig.Config {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	host, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	conf.AddHostKey(host)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(func() { l.Close(); wg.Wait() })
	wg.Go(func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer c.Close()
				ssh.NewServerConn(c, conf)
			})
		}
	})
	return &sshconfig.Config{Alias: "other", HostName: "127.0.0.1", Port: l.Addr().(*net.TCPAddr).Port, User: "dana"}
}

func TestAServerThatInsistsOnAPasswordIsRefusedInWords(t *testing.T) {
	asked := func() *ssh.ServerConfig {
		return &ssh.ServerConfig{
			PasswordCallback: func(ssh.ConnMetadata, []byte) (*ssh.Permissions, error) {
				t.Error("a password was offered")
				return nil, fmt.Errorf("no")
			},
			KeyboardInteractiveCallback: func(ssh.ConnMetadata, ssh.KeyboardInteractiveChallenge) (*ssh.Permissions, error) {
				t.Error("keyboard-interactive was begun")
				return nil, fmt.Errorf("no")
			},
		}
	}
	key := filepath.Join(t.TempDir(), "key")
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	block, err := ssh.MarshalPrivateKey(k, "")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(key, pem.EncodeToMemory(block), 0o600); err != nil {
		t.Fatal(err)
	}
	both, one, twofold, never := asked(), asked(), asked(), asked()
	one.PasswordCallback = nil
	twofold.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) {
		return nil, &ssh.PartialSuccessError{Next: ssh.ServerAuthCallbacks{KeyboardInteractiveCallback: twofold.KeyboardInteractiveCallback}}
	}
	never.PublicKeyCallback = func(ssh.ConnMetadata, ssh.PublicKey) (*ssh.Permissions, error) { return nil, fmt.Errorf("no") }
	for what, c := range map[string]struct {
		conf  *ssh.ServerConfig
		words []string
	}{
		"two methods":        {both, []string{"password", "keyboard-interactive", "takes no public key"}},
		"one method":         {one, []string{"(keyboard-interactive)", "takes no public key"}},
		"a second factor":    {twofold, []string{"(keyboard-interactive)", "took the key and wants more"}},
		"a key it knows not": {never, []string{"Permission denied (", "publickey", "password", "keyboard-interactive"}},
	} {
		conf := other(t, c.conf)
		conf.IdentityFiles, conf.IdentityFileSet = []string{key}, true
		p := operator(t, nilServer(t)).params
		p.Config = conf
		_, err := sshconn.Dial(t.Context(), p)
		f := fault.Of(err)
		if f == nil || f.Exit != fault.Unreachable || f.Code != "auth_failed" {
			t.Errorf("%s: %v", what, err)
			continue
		}
		for _, w := range c.words {
			if !strings.Contains(f.Msg, w) {
				t.Errorf("%s: %q is not in %q", what, w, f.Msg)
			}
		}
	}
	// Nobody has a key.
	conf := other(t, never)
	conf.IdentityFiles = []string{filepath.Join(t.TempDir(), "id_ed25519")}
	p := operator(t, nilServer(t)).params
	p.Config = conf
	_, err = sshconn.Dial(t.Context(), p)
	if f := fault.Of(err); f == nil || !strings.Contains(f.Msg, "there is no key to offer") || !strings.Contains(f.Hint, "ssh-keygen") {
		t.Errorf("%v", err)
	}
}

// nilServer is one whose address is not used.
func nilServer(t *testing.T) *loopback.Server { return server(t, "") }

// TestAKeyThatDoesNotSignLeavesTheOthersTheirTurn has a first key that the
// server knows and whose agent refuses, as one does whose touch was not given.
func TestAKeyThatDoesNotSignLeavesTheOthersTheirTurn(t *testing.T) {
	ring := sshagent.NewKeyring()
	_, bad, _ := ed25519.GenerateKey(rand.Reader)
	signer, err := ssh.NewSignerFromKey(bad)
	if err != nil {
		t.Fatal(err)
	}
	second, err := loopback.Start(t.Context(), loopback.Options{AuthorizedKeys: []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(signer.PublicKey())))}})
	if err != nil {
		t.Fatal(err)
	}
	defer second.Close()
	if err := ring.Add(sshagent.AddedKey{PrivateKey: bad}); err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("/tmp", "fa")
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	l, err := net.Listen("unix", dir+"/a")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go sshagent.ServeAgent(refusing{ring}, c)
		}
	}()
	o := operator(t, second).with(func(c *sshconfig.Config) { c.IdentityAgent, c.IdentityFileSet = dir+"/a", false })
	o.dial(t) // the agent's key is first and does not sign; the file's is second
	o = o.with(func(c *sshconfig.Config) { c.IdentityFiles = nil })
	_, err = sshconn.Dial(t.Context(), o.params)
	if f := fault.Of(err); f == nil || !strings.Contains(f.Msg, "did not sign") {
		t.Errorf("%v", err)
	}
}

type refusing struct{ sshagent.Agent }

func (refusing) Sign(ssh.PublicKey, []byte) (*ssh.Signature, error) {
	return nil, fmt.Errorf("touch not given")
}

func TestAnnouncedHostKeysAreShownAndNotTaken(t *testing.T) { // R2
	dir := t.TempDir()
	extra := filepath.Join(dir, "ecdsa")
	keygen(t, "-t", "ecdsa", "-N", "", "-f", extra)
	s := server(t, "HostKey "+extra)
	o := operator(t, s)
	o.confirmed(t)
	var mu sync.Mutex
	var said []string
	o.params.Notef = func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		said = append(said, fmt.Sprintf(format, args...))
	}
	o.dial(t)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		mu.Lock()
		all := strings.Join(said, "\n")
		mu.Unlock()
		if strings.Contains(all, "announces another host key: ecdsa-sha2-nistp256 SHA256:") {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("nothing was said: %s", all)
		}
	}
	entries, err := o.pins.List()
	if err != nil || len(entries) != 1 || len(entries[0].Keys) != 1 || entries[0].Keys[0].Type != ssh.KeyAlgoED25519 {
		t.Errorf("%+v, %v", entries, err)
	}
}
