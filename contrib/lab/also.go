//go:build linux

package lab

import (
	"context"
	"crypto/ed25519"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/crypto/ssh"
)

// tinySocket and tinyUnit serve with a program that takes one connection as its standard input and output.
const (
	tinySocket = `[Socket]
ListenStream=%s
Accept=yes
`
	tinyUnit = `[Service]
ExecStart=%s -v /%s
KillMode=process
StandardInput=socket
StandardError=journal
SuccessExitStatus=111
`
)

// writeAlso sets up one more server, with the ed25519 key of the first.
func (h *Host) writeAlso(ctx context.Context, sshd string, s Server, keys []string) error {
	unit := fmt.Sprintf("ssh-%d", s.Port)
	enable := func(name string) error {
		wants := filepath.Join(h.root(), "etc/systemd/system/multi-user.target.wants")
		return os.Symlink("../"+name, filepath.Join(wants, name))
	}
	service := func(command string) error {
		text := strings.Replace(sshUnit, "RuntimeDirectory=sshd\n", "RuntimeDirectory=sshd\nRuntimeDirectoryPreserve=yes\n", 1)
		if err := h.replace("etc/systemd/system/"+unit+".service", fmt.Sprintf(text, command), 0o644); err != nil {
			return err
		}
		return enable(unit + ".service")
	}
	const first = "etc/ssh/ssh_host_ed25519_key"
	address := net.JoinHostPort(h.Addr(), strconv.Itoa(s.Port))
	switch s.Kind {
	case "":
		config := "etc/ssh/sshd_config_" + strconv.Itoa(s.Port)
		if err := h.replace(config, h.sshdConfig(s.Port, s.NoSFTP, s.SSHDConfig, keys), 0o644); err != nil {
			return err
		}
		return service(sshd + " -D -e -f /" + config)
	case Dropbear:
		dropbear, err := findTool("dropbear")
		if err != nil {
			return fmt.Errorf("%w (package dropbear-bin)", err)
		}
		const key = "etc/fleetlab-dropbear.key"
		if err := run(ctx, "", "dropbearconvert", "openssh", "dropbear", filepath.Join(h.root(), first), filepath.Join(h.root(), key)); err != nil {
			return err
		}
		return service(fmt.Sprintf("%s -F -E -P /run/%s.pid -p %s -r /%s", dropbear, unit, address, key))
	case TinySSH:
		tinysshd, err := findTool("tinysshd")
		if err != nil {
			return fmt.Errorf("%w (package tinysshd)", err)
		}
		const dir = "etc/fleetlab-tinyssh"
		if err := h.writeTinyKey(first, dir); err != nil {
			return err
		}
		if err := h.replace("etc/systemd/system/"+unit+".socket", fmt.Sprintf(tinySocket, address), 0o644); err != nil {
			return err
		}
		if err := h.replace("etc/systemd/system/"+unit+"@.service", fmt.Sprintf(tinyUnit, tinysshd, dir), 0o644); err != nil {
			return err
		}
		return enable(unit + ".socket")
	}
	return fmt.Errorf("unknown kind of server %q", s.Kind)
}

// writeTinyKey gives tinysshd a host key that OpenSSH has: its files are the bare public key, and seed and public key.
func (h *Host) writeTinyKey(openssh, dir string) error {
	data, err := os.ReadFile(filepath.Join(h.root(), openssh))
	if err != nil {
		return err
	}
	raw, err := ssh.ParseRawPrivateKey(data)
	if err != nil {
		return err
	}
	key, ok := raw.(*ed25519.PrivateKey)
	if !ok {
		return fmt.Errorf("%s is no ed25519 key", openssh)
	}
	if err := os.MkdirAll(filepath.Join(h.root(), dir), 0o700); err != nil {
		return err
	}
	if err := h.replace(dir+"/ed25519.pk", string(key.Public().(ed25519.PublicKey)), 0o644); err != nil {
		return err
	}
	return h.replace(dir+"/.ed25519.sk", string(*key), 0o600)
}
