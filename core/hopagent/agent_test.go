package hopagent

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/rsa"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"
)

func newSigner(t testing.TB) ssh.Signer {
	t.Helper()
	_, k, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// login is what a client signs, as RFC 4252 section 7 puts it together.
type login struct {
	session                 []byte
	kind                    byte
	user, service, method   string
	signed                  byte
	algorithm, key, hostKey string
	after                   string
}

func good(key ssh.PublicKey) login {
	return login{session: bytes.Repeat([]byte{7}, 32), kind: 50, user: "dana", service: "ssh-connection", method: "publickey", signed: 1,
		algorithm: key.Type(), key: string(key.Marshal())}
}

func (l login) bytes() []byte {
	b := appendString(nil, l.session)
	b = append(b, l.kind)
	for _, s := range []string{l.user, l.service, l.method} {
		b = appendString(b, []byte(s))
	}
	b = append(b, l.signed)
	b = appendString(appendString(b, []byte(l.algorithm)), []byte(l.key))
	if l.hostKey != "" {
		b = appendString(b, []byte(l.hostKey))
	}
	return append(b, l.after...)
}

// served starts an agent for dana and returns a client of it.
func served(t *testing.T, accepted ssh.PublicKey, keys ...ssh.Signer) (*Server, agent.ExtendedAgent) {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "fa")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "a")
	s, err := Listen(path, Hop{User: "dana", Keys: func() ([]ssh.Signer, error) { return keys, nil },
		Accepted: func() ssh.PublicKey { return accepted }, Refused: func(err error) { t.Log(err) }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if _, err := os.Lstat(path); err == nil {
			t.Error("the socket is left behind")
		}
	})
	if st, err := os.Stat(path); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st.Mode(), err)
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return s, agent.NewClient(c)
}

func TestSignsNothingButTheHopsOwnLogin(t *testing.T) { // R40
	key, other, host := newSigner(t), newSigner(t), newSigner(t)
	_, a := served(t, host.PublicKey(), key)
	pub := key.PublicKey()
	sig, err := a.Sign(pub, good(pub).bytes())
	if err != nil || pub.Verify(good(pub).bytes(), sig) != nil {
		t.Fatal(err)
	}
	bound := good(pub)
	bound.method, bound.hostKey = "publickey-hostbound-v00@openssh.com", string(host.PublicKey().Marshal())
	if _, err := a.Sign(pub, bound.bytes()); err != nil {
		t.Error("bound to the accepted host key:", err)
	}
	for what, change := range map[string]func(*login){
		"another user":                func(l *login) { l.user = "root" },
		"no user":                     func(l *login) { l.user = "" },
		"another service":             func(l *login) { l.service = "ssh-userauth" },
		"another method":              func(l *login) { l.method = "hostbased" },
		"another message":             func(l *login) { l.kind = 51 },
		"a query":                     func(l *login) { l.signed = 0 },
		"true by another byte":        func(l *login) { l.signed = 2 },
		"another key":                 func(l *login) { l.key = string(other.PublicKey().Marshal()) },
		"another algorithm":           func(l *login) { l.algorithm = ssh.KeyAlgoRSASHA256 },
		"no session":                  func(l *login) { l.session = nil },
		"a long session":              func(l *login) { l.session = make([]byte, 65) },
		"something after it":          func(l *login) { l.after = "x" },
		"a host key nobody asked for": func(l *login) { l.hostKey = "x" },
		"bound to another host": func(l *login) {
			l.method, l.hostKey = methodHostBound, string(other.PublicKey().Marshal())
		},
		"bound to no host": func(l *login) { l.method = methodHostBound },
	} {
		l := good(pub)
		change(&l)
		if _, err := a.Sign(pub, l.bytes()); err == nil {
			t.Errorf("%s is signed", what)
		}
	}
	for what, data := range map[string][]byte{
		"nothing": {},
		"SSHSIG":  append([]byte("SSHSIG"), appendString(appendString(appendString(appendString(nil, []byte("fleet-login@v1")), nil), []byte("sha512")), make([]byte, 64))...),
	} {
		if _, err := a.Sign(pub, data); err == nil {
			t.Errorf("%s is signed", what)
		}
	}
	if _, err := a.Sign(other.PublicKey(), good(other.PublicKey()).bytes()); err == nil {
		t.Error("a key that is not offered signs")
	}
}

// TestNothingSigns what ssh-keygen makes with its own agent protocol.
func TestSSHKeygenGetsNoSignature(t *testing.T) { // R40
	key := newSigner(t)
	s, _ := served(t, key.PublicKey(), key)
	pub := filepath.Join(t.TempDir(), "k.pub")
	if err := os.WriteFile(pub, ssh.MarshalAuthorizedKey(key.PublicKey()), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command("ssh-keygen", "-Y", "sign", "-f", pub, "-n", "fleet-order@v1")
	cmd.Env = append(os.Environ(), "SSH_AUTH_SOCK="+s.l.Addr().String())
	cmd.Stdin = strings.NewReader("an order")
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	if !errors.As(err, &exit) || bytes.Contains(out, []byte("BEGIN SSH SIGNATURE")) {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestNothingIsSignedBeforeTheHostsKeyIsAccepted(t *testing.T) { // R2
	key := newSigner(t)
	_, a := served(t, nil, key)
	if keys, err := a.List(); err != nil || len(keys) != 1 {
		t.Error(keys, err)
	}
	if _, err := a.Sign(key.PublicKey(), good(key.PublicKey()).bytes()); err == nil {
		t.Error("signed")
	}
}

func TestRSASignsWithSHA2Alone(t *testing.T) {
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	key, err := ssh.NewSignerFromKey(k)
	if err != nil {
		t.Fatal(err)
	}
	_, a := served(t, key.PublicKey(), key)
	for flags, want := range map[agent.SignatureFlags]string{0: "", agent.SignatureFlagRsaSha256: ssh.KeyAlgoRSASHA256, agent.SignatureFlagRsaSha512: ssh.KeyAlgoRSASHA512} {
		l := good(key.PublicKey())
		if l.algorithm = want; want == "" {
			l.algorithm = ssh.KeyAlgoRSA
		}
		sig, err := a.SignWithFlags(key.PublicKey(), l.bytes(), flags)
		switch {
		case want == "" && err == nil:
			t.Error("signed with SHA-1")
		case want != "" && (err != nil || sig.Format != want || key.PublicKey().Verify(l.bytes(), sig) != nil):
			t.Errorf("%s: %v", want, err)
		}
	}
}

// TestACertificateLogsIn signs with a certificate's key, under the certificate's name.
func TestACertificateSigns(t *testing.T) {
	key, ca := newSigner(t), newSigner(t)
	cert := &ssh.Certificate{Key: key.PublicKey(), CertType: ssh.UserCert, ValidPrincipals: []string{"dana"}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, ca); err != nil {
		t.Fatal(err)
	}
	cs, err := ssh.NewCertSigner(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	_, a := served(t, ca.PublicKey(), cs)
	data := good(cert).bytes()
	sig, err := a.Sign(cert, data)
	if err != nil || key.PublicKey().Verify(data, sig) != nil {
		t.Fatal(err)
	}
}

func TestEverythingElseFails(t *testing.T) {
	key := newSigner(t)
	_, a := served(t, key.PublicKey(), key)
	_, private, _ := ed25519.GenerateKey(rand.Reader)
	if a.Add(agent.AddedKey{PrivateKey: private}) == nil || a.RemoveAll() == nil || a.Remove(key.PublicKey()) == nil || a.Lock([]byte("x")) == nil {
		t.Error("a request is served that is none of the hop's business")
	}
	if _, err := a.Extension("session-bind@openssh.com", nil); err == nil {
		t.Error("an extension is served")
	}
	if keys, err := a.List(); err != nil || len(keys) != 1 {
		t.Error("the agent does not go on:", keys, err)
	}
}

func TestSignaturesAndMessagesAreBounded(t *testing.T) {
	key := newSigner(t)
	s, a := served(t, key.PublicKey(), key)
	failed := false
	for range maxSignatures + 1 {
		_, err := a.Sign(key.PublicKey(), good(key.PublicKey()).bytes())
		failed = err != nil
	}
	if !failed {
		t.Error("any number of signatures")
	}
	c, err := net.Dial("unix", s.l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.Write(binary.BigEndian.AppendUint32(nil, maxMessage+1))
	if n, err := c.Read(make([]byte, 1)); n != 0 || err == nil {
		t.Error("a message that is too long is read")
	}
}

func FuzzParseRequest(f *testing.F) {
	key := newSigner(f)
	f.Add(good(key.PublicKey()).bytes())
	l := good(key.PublicKey())
	l.method, l.hostKey = methodHostBound, "x"
	f.Add(l.bytes())
	f.Add([]byte("SSHSIG\x00\x00\x00\x0efleet-login@v1"))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := parseRequest(data)
		if bytes.HasPrefix(data, []byte("SSHSIG")) && err == nil {
			t.Fatal("a file's signature passes for a login")
		}
		if err != nil {
			return
		}
		// What passes is what a client puts together, byte for byte.
		l := login{session: data[4 : 4+binary.BigEndian.Uint32(data)], kind: 50, user: r.user, service: service, method: methodPublicKey, signed: 1,
			algorithm: r.algorithm, key: r.key, hostKey: r.hostKey}
		if r.hostKey != "" {
			l.method = methodHostBound
		}
		if !bytes.Equal(l.bytes(), data) {
			t.Fatalf("%q passes for %q", data, l.bytes())
		}
	})
}

func FuzzAnswer(f *testing.F) {
	key := newSigner(f)
	s := &Server{hop: Hop{User: "dana", Accepted: func() ssh.PublicKey { return key.PublicKey() }}, keys: func() ([]ssh.Signer, error) { return []ssh.Signer{key}, nil }}
	f.Add([]byte{requestList})
	f.Add(binary.BigEndian.AppendUint32(appendString(appendString([]byte{requestSign}, key.PublicKey().Marshal()), good(key.PublicKey()).bytes()), 0))
	private, err := ssh.MarshalPrivateKey(ed25519.NewKeyFromSeed(make([]byte, 32)), "")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(pem.EncodeToMemory(private))
	f.Fuzz(func(t *testing.T, message []byte) {
		s.signed = 0
		b, err := s.answer(message)
		if err == nil && b[0] == answerSign && !bytes.Contains(message, []byte("dana")) {
			t.Fatal("signed for somebody else")
		}
	})
}
