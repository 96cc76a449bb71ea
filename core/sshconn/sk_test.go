package sshconn_test

import (
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"net"
	"os"
	"strings"
	"testing"

	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/contrib/lab/loopback"
	"fleet.example/fleet/core/sshconfig"
)

// token is an agent that holds one key of a hardware token, as OpenSSH's
// PROTOCOL.u2f has it, without the hardware.
type token struct {
	sshagent.Agent // refuses the rest
	private        ed25519.PrivateKey
	public         ssh.PublicKey
}

const application = "ssh:"

func newToken(t *testing.T) *token {
	t.Helper()
	pub, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	k, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Name        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, pub, application}))
	if err != nil {
		t.Fatal(err)
	}
	return &token{private: private, public: k}
}

func (k *token) List() ([]*sshagent.Key, error) {
	return []*sshagent.Key{{Format: k.public.Type(), Blob: k.public.Marshal(), Comment: "token"}}, nil
}

func (k *token) Sign(pub ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	if string(pub.Marshal()) != string(k.public.Marshal()) {
		return nil, errors.New("not this key")
	}
	app, message := sha256.Sum256([]byte(application)), sha256.Sum256(data)
	rest := binary.BigEndian.AppendUint32([]byte{1}, 7) // user present, counter
	signed := append(append(app[:], rest...), message[:]...)
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Blob: ed25519.Sign(k.private, signed), Rest: rest}, nil
}

func TestAHardwareKeyLogsInThroughItsAgent(t *testing.T) {
	k := newToken(t)
	s, err := loopback.Start(t.Context(), loopback.Options{AuthorizedKeys: []string{strings.TrimSpace(string(ssh.MarshalAuthorizedKey(k.public)))}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	dir, err := os.MkdirTemp("/tmp", "fs")
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
			go sshagent.ServeAgent(k, c)
		}
	}()
	operator(t, s).with(func(c *sshconfig.Config) {
		c.IdentityFiles, c.IdentityFileSet, c.IdentityAgent = nil, false, dir+"/a"
	}).dial(t)
}
