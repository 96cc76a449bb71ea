package sshconn

import (
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconfig"
)

func TestRevokedHostKeysRefuse(t *testing.T) { // R2
	ed, big := signers(t)
	authority, _ := signers(t)
	cert := &ssh.Certificate{Key: ed.PublicKey(), CertType: ssh.HostCert, ValidPrincipals: []string{"box"}, ValidBefore: ssh.CertTimeInfinity}
	if err := cert.SignCert(rand.Reader, authority); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	file := func(name string, b []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, b, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	line := func(k ssh.PublicKey) []byte { return ssh.MarshalAuthorizedKey(k) }
	list := file("list", append([]byte("# comment\n\ngarbage\n"), line(ed.PublicKey())...))
	byAuthority := file("authority", line(authority.PublicKey()))
	krl := filepath.Join(dir, "krl")
	if out, err := exec.Command("ssh-keygen", "-q", "-k", "-f", krl, file("ed.pub", line(ed.PublicKey()))).CombinedOutput(); err != nil {
		t.Logf("ssh-keygen makes no revocation list here: %v %s", err, out)
		krl = ""
	}
	for what, c := range map[string]struct {
		files []string
		key   ssh.PublicKey
		ok    bool
	}{
		"nothing configured":            {nil, ed.PublicKey(), true},
		"in a list":                     {[]string{list}, ed.PublicKey(), false},
		"in the second list":            {[]string{byAuthority, list}, ed.PublicKey(), false},
		"not in a list":                 {[]string{list}, big.PublicKey(), true},
		"a certificate over a key":      {[]string{list}, cert, false},
		"a certificate by an authority": {[]string{byAuthority}, cert, false},
		"a list that is missing":        {[]string{filepath.Join(dir, "none")}, big.PublicKey(), false},
		"in a revocation list":          {[]string{krl}, ed.PublicKey(), false},
		"not in a revocation list":      {[]string{krl}, big.PublicKey(), true},
		"a broken revocation list":      {[]string{file("broken", []byte(krlMagic+"x"))}, big.PublicKey(), false},
	} {
		if len(c.files) == 1 && c.files[0] == "" {
			continue
		}
		err := checkRevoked(&sshconfig.Config{RevokedHostKeys: c.files}, c.key)
		if (err == nil) != c.ok || err != nil && fault.Of(err).Exit != fault.HostKey {
			t.Errorf("%s: %v", what, err)
		}
	}
}
