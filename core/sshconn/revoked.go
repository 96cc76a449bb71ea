package sshconn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconfig"
)

const (
	// krlMagic starts a key revocation list (OpenSSH's PROTOCOL.krl).
	krlMagic = "SSHKRL\n\x00"
	// maxRevoked bounds a file of revoked keys, in bytes.
	maxRevoked = 64 << 20
	// krlTimeout bounds how long ssh-keygen may look into one.
	krlTimeout = 10 * time.Second
)

// checkRevoked holds a host's key against RevokedHostKeys. As with ssh, a file
// that is missing or cannot be read refuses every key: it may hold this one.
func checkRevoked(c *sshconfig.Config, key ssh.PublicKey) error {
	for _, file := range c.RevokedHostKeys {
		is, err := revoked(file, key)
		switch {
		case err != nil:
			return fault.New(fault.HostKey, "host_key_revoked", "cannot connect to %s: RevokedHostKeys: %w", c, err)
		case is:
			return fault.New(fault.HostKey, "host_key_revoked", "host key revoked: %s revokes %s", file, hostkey.Describe(key))
		}
	}
	return nil
}

// revoked reports whether a file revokes the key, or the key or authority of a
// certificate.
func revoked(file string, key ssh.PublicKey) (bool, error) {
	f, err := os.Open(file)
	if err != nil {
		return false, err
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxRevoked+1))
	if err != nil {
		return false, err
	}
	if len(b) > maxRevoked {
		return false, fmt.Errorf("%s is longer than %d bytes", file, maxRevoked)
	}
	if bytes.HasPrefix(b, []byte(krlMagic)) {
		return inKRL(file, key)
	}
	for line := range bytes.Lines(b) {
		listed := parsePublic(bytes.TrimSpace(line))
		if listed == nil {
			continue
		}
		same := func(k ssh.PublicKey) bool {
			return bytes.Equal(hostkey.Plain(listed).Marshal(), hostkey.Plain(k).Marshal())
		}
		if cert, ok := key.(*ssh.Certificate); same(key) || ok && same(cert.SignatureKey) {
			return true, nil
		}
	}
	return false, nil
}

// inKRL has ssh-keygen look, which knows every kind of section.
func inKRL(file string, key ssh.PublicKey) (bool, error) {
	ctx, cancel := context.WithTimeout(context.Background(), krlTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, "ssh-keygen", "-Q", "-f", file, "/dev/stdin")
	cmd.Stdin = bytes.NewReader(ssh.MarshalAuthorizedKey(key))
	cmd.WaitDelay = time.Second
	out, err := cmd.CombinedOutput()
	var exit *exec.ExitError
	switch {
	case err == nil && bytes.Contains(out, []byte(": ok")):
		return false, nil
	case errors.As(err, &exit) && exit.ExitCode() == 1 && bytes.Contains(out, []byte("REVOKED")):
		return true, nil
	}
	return false, fmt.Errorf("ssh-keygen cannot look into %s: %w: %s", file, err, bytes.TrimSpace(out))
}
