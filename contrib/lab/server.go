//go:build linux

package lab

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// sshUnit is the host's SSH server, whichever it is. Sessions outlive a restart of it, as on Debian.
const sshUnit = `[Unit]
Description=SSH server
After=network.target systemd-user-sessions.service

[Service]
Type=exec
RuntimeDirectory=sshd
RuntimeDirectoryMode=0755
ExecStart=%s
ExecReload=/bin/kill -HUP $MAINPID
KillMode=process
Restart=on-failure
`

// writeServer makes host keys, configuration and unit, and notes the public keys in h.hostKeys.
func (h *Host) writeServer(ctx context.Context) error {
	if h.spec.Dropbear {
		return h.writeDropbear(ctx)
	}
	sshd, err := findTool("sshd")
	if err != nil {
		return err
	}
	var keys []string
	for _, kind := range []string{"ed25519", "ecdsa"} {
		name := "etc/ssh/ssh_host_" + kind + "_key"
		path := filepath.Join(h.root(), name)
		if err := run(ctx, "", "ssh-keygen", "-q", "-t", kind, "-N", "", "-C", h.spec.Name, "-f", path); err != nil {
			return err
		}
		data, err := os.ReadFile(path + ".pub")
		if err != nil {
			return err
		}
		h.addHostKey(string(data))
		keys = append(keys, "HostKey /"+name)
	}
	config := h.sshdConfig(0, h.spec.NoSFTP, h.spec.SSHDConfig, keys)
	if err := h.replace("etc/ssh/sshd_config", config, 0o644); err != nil {
		return err
	}
	if err := h.replace("etc/systemd/system/ssh.service", fmt.Sprintf(sshUnit, sshd+" -D -e"), 0o644); err != nil {
		return err
	}
	for _, s := range h.spec.Also {
		if err := h.writeAlso(ctx, sshd, s, keys); err != nil {
			return fmt.Errorf("port %d: %w", s.Port, err)
		}
	}
	return nil
}

// sshdConfig is the text of an sshd_config; port 0 is left to sshd and to more.
func (h *Host) sshdConfig(port int, noSFTP bool, more string, keys []string) string {
	lines := []string{
		"ListenAddress " + h.Addr(),
		"UsePAM yes",
		"PrintMotd no",
		"KbdInteractiveAuthentication no",
		"X11Forwarding no",
		"UseDNS no",
	}
	if port != 0 {
		lines = append(lines, fmt.Sprintf("Port %d", port), fmt.Sprintf("PidFile /run/sshd-%d.pid", port))
	}
	if !noSFTP {
		lines = append(lines, "Subsystem sftp internal-sftp")
	}
	return mergeConfig(append(lines, keys...), more)
}

// mergeConfig appends extra to base, without the lines of base whose keyword extra sets outside of a Match block:
// sshd_config(5) takes the first value of a keyword, and takes some keywords outside of Match only.
func mergeConfig(base []string, extra string) string {
	set := map[string]bool{}
	for line := range strings.Lines(extra) {
		keyword := keywordOf(line)
		if keyword == "match" {
			break
		}
		set[keyword] = true
	}
	var out strings.Builder
	for _, line := range base {
		if !set[keywordOf(line)] {
			out.WriteString(line + "\n")
		}
	}
	out.WriteString(extra)
	return strings.TrimRight(out.String(), "\n") + "\n"
}

func keywordOf(line string) string {
	fields := strings.FieldsFunc(line, func(r rune) bool { return strings.ContainsRune(" \t\n=", r) })
	if len(fields) == 0 {
		return ""
	}
	return strings.ToLower(fields[0])
}

func (h *Host) writeDropbear(ctx context.Context) error {
	dropbear, err := findTool("dropbear")
	if err != nil {
		return fmt.Errorf("%w (package dropbear-bin)", err)
	}
	keygen, err := findTool("dropbearkey")
	if err != nil {
		return fmt.Errorf("%w (package dropbear-bin)", err)
	}
	const name = "etc/fleetlab-dropbear.key"
	out, err := exec.CommandContext(ctx, keygen, "-t", "ed25519", "-f", filepath.Join(h.root(), name)).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot make host key: %w: %s", err, out)
	}
	for line := range strings.Lines(string(out)) {
		if strings.HasPrefix(line, "ssh-ed25519 ") {
			h.addHostKey(line)
		}
	}
	command := fmt.Sprintf("%s -F -E -p %s:22 -r /%s", dropbear, h.Addr(), name)
	return h.replace("etc/systemd/system/ssh.service", fmt.Sprintf(sshUnit, command), 0o644)
}

// addHostKey notes a public key line, without its comment.
func (h *Host) addHostKey(line string) {
	if f := strings.Fields(line); len(f) >= 2 {
		h.hostKeys = append(h.hostKeys, f[0]+" "+f[1])
	}
}
