//go:build linux

package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Exec runs a command on the host as one of its accounts, or as root, in the account's home directory and with the
// environment of a login; it does not pass through SSH, a shell or PAM. It returns what the command wrote on
// standard output, and puts standard error into the error.
func (h *Host) Exec(ctx context.Context, account string, argv ...string) (string, error) {
	return h.ExecInput(ctx, account, nil, argv...)
}

// ExecInput is Exec with standard input.
func (h *Host) ExecInput(ctx context.Context, account string, stdin io.Reader, argv ...string) (string, error) {
	pid := h.PID()
	if pid == 0 {
		return "", fmt.Errorf("cannot run %s on %s: the host is off", argv[0], h.spec.Name)
	}
	a, err := h.account(account)
	if err != nil {
		return "", err
	}
	var stdout, stderr bytes.Buffer
	cmd := command(ctx, pid, a, argv)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = stdin, &stdout, &stderr
	if err := cmd.Run(); err != nil {
		if cause := context.Cause(ctx); cause != nil {
			err = errors.Join(err, cause)
		}
		return stdout.String(), fmt.Errorf("cannot run %s on %s: %w: %s", argv[0], h.spec.Name, err,
			strings.TrimSpace(stderr.String()))
	}
	return stdout.String(), nil
}

// Command returns a command that runs on a host of a record, for a caller that sets its input and output: the way
// into a host of another process's lab.
func Command(ctx context.Context, host HostInfo, account string, argv ...string) (*exec.Cmd, error) {
	if !host.Up {
		return nil, fmt.Errorf("cannot run %s on %s: the host is off", argv[0], host.Name)
	}
	a, err := findAccount(host.Accounts, host.Name, account)
	if err != nil {
		return nil, err
	}
	return command(ctx, host.PID, a, argv), nil
}

func (h *Host) account(name string) (Account, error) {
	return findAccount(h.spec.Accounts, h.spec.Name, name)
}

func findAccount(accounts []Account, host, name string) (Account, error) {
	i := slices.IndexFunc(accounts, func(a Account) bool { return a.Name == name })
	switch {
	case i >= 0:
		return accounts[i], nil
	case name == "root":
		return Account{Name: "root", Home: "/root", Shell: "/bin/bash"}, nil
	}
	return Account{}, fmt.Errorf("host %s has no account %q", host, name)
}

// command enters all namespaces of the process and takes on the account.
func command(ctx context.Context, pid int, a Account, argv []string) *exec.Cmd {
	uid := strconv.Itoa(a.UID)
	args := []string{
		"-t", strconv.Itoa(pid), "-m", "-u", "-i", "-n", "-p", "-C", "--",
		"/usr/bin/env", "-i", "-C", a.Home,
		"HOME=" + a.Home, "USER=" + a.Name, "LOGNAME=" + a.Name, "SHELL=" + a.Shell,
		"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "LANG=C.UTF-8",
		"XDG_RUNTIME_DIR=/run/user/" + uid, "DBUS_SESSION_BUS_ADDRESS=unix:path=/run/user/" + uid + "/bus",
		"setpriv", "--pdeathsig", "KILL", "--reuid", uid, "--regid", uid, "--init-groups", "--",
	}
	cmd := exec.CommandContext(ctx, "nsenter", append(args, argv...)...)
	// The context kills nsenter, and the death signal what it started; further children may hold the output open.
	cmd.WaitDelay = time.Second
	return cmd
}
