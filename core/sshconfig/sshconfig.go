// Package sshconfig tells how the person's own OpenSSH would reach a host: it
// asks `ssh -G`, so that Match, Include and Match exec mean exactly what they
// mean at the terminal, and expands the tokens that ssh leaves literal there.
// It reads the person's files through ssh alone and writes none.
//
// It knows nothing of connections.
package sshconfig

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/core/fault"
)

// Flags are the options of ssh's that every command with a HOST takes.
type Flags struct {
	ConfigFile string   // -F
	Identities []string // -i
	Jump       string   // -J
	Port       int      // -p
	Options    []string // -o
}

// Args are the flags as ssh's arguments.
func (f Flags) Args() []string {
	var a []string
	if f.ConfigFile != "" {
		a = append(a, "-F", f.ConfigFile)
	}
	for _, i := range f.Identities {
		a = append(a, "-i", i)
	}
	if f.Jump != "" {
		a = append(a, "-J", f.Jump)
	}
	if f.Port != 0 {
		a = append(a, "-p", strconv.Itoa(f.Port))
	}
	for _, o := range f.Options {
		a = append(a, "-o", o)
	}
	return a
}

// FlagsOf is the inverse of Args.
func FlagsOf(args []string) (Flags, error) {
	var f Flags
	for i := 0; i+1 < len(args); i += 2 {
		v := args[i+1]
		switch args[i] {
		case "-F":
			f.ConfigFile = v
		case "-i":
			f.Identities = append(f.Identities, v)
		case "-J":
			f.Jump = v
		case "-p":
			n, err := strconv.Atoi(v)
			if err != nil {
				return f, fmt.Errorf("cannot read recorded ssh flags: port %q", v)
			}
			f.Port = n
		case "-o":
			f.Options = append(f.Options, v)
		default:
			return f, fmt.Errorf("cannot read recorded ssh flags: %q", args[i])
		}
	}
	return f, nil
}

// Config is the effective configuration of one destination. Fields carry the
// meaning of ssh_config(5); tokens and ~ are expanded.
type Config struct {
	Alias    string // what was asked for
	HostName string
	User     string
	Port     int

	IdentityFiles   []string // in ssh's order; none means defaults were removed
	IdentityFileSet bool     // configured, as opposed to ssh's defaults
	IdentitiesOnly  bool
	IdentityAgent   string // socket path, or "" for none
	CertificateFile []string

	HostKeyAlias      string
	HostKeyAlgorithms []string // only where configured
	KnownHosts        []string // user and global files
	ProxyJump         string
	ProxyCommand      string
	AddressFamily     string
	BindAddress       string
	ConnectTimeout    time.Duration

	// Values are all lines of `ssh -G`, keyword → values in order.
	Values map[string][]string
}

// Resolver finds configurations. The zero value uses `ssh` from PATH.
type Resolver struct {
	Getenv func(string) string
}

// resolveTimeout bounds `ssh -G`; a Match exec may take its time.
const resolveTimeout = 20 * time.Second

// maxOutput bounds what is read of `ssh -G`, in bytes.
const maxOutput = 1 << 20

// ErrNoSSH is in the chain when there is no ssh binary and the destination
// needs one.
var ErrNoSSH = errors.New("no ssh program in PATH")

// Resolve tells how ssh would reach the destination.
func (r Resolver) Resolve(ctx context.Context, dest string, f Flags) (*Config, error) {
	d, err := ParseDestination(dest)
	if err != nil {
		return nil, err
	}
	if d.Port != 0 && f.Port == 0 {
		f.Port = d.Port
	}
	// Whether keys and algorithms are the person's choice or ssh's default
	// shows only beside a configuration that sets nothing.
	type answer struct {
		values map[string][]string
		err    error
	}
	plain := make(chan answer, 1)
	go func() { // ends with ssh -G, which has its own deadline
		v, err := r.query(ctx, Destination{Host: d.Host}, Flags{ConfigFile: "/dev/null"})
		plain <- answer{v, err}
	}()
	values, err := r.query(ctx, d, f)
	defaults := <-plain
	if errors.Is(err, exec.ErrNotFound) {
		return r.withoutSSH(d, f)
	}
	if err != nil {
		return nil, err
	}
	if defaults.err != nil {
		return nil, defaults.err
	}
	return r.configOf(d, f, values, defaults.values)
}

func (r Resolver) query(ctx context.Context, d Destination, f Flags) (map[string][]string, error) {
	ctx, cancel := context.WithTimeout(ctx, resolveTimeout)
	defer cancel()
	args := append([]string{"-G"}, f.Args()...)
	if d.User != "" {
		args = append(args, "-l", d.User)
	}
	args = append(args, "--", d.Host)
	cmd := exec.CommandContext(ctx, "ssh", args...)
	cmd.WaitDelay = time.Second
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &limited{buf: &out, left: maxOutput}, &limited{buf: &errOut, left: 64 << 10}
	err := cmd.Run()
	switch {
	case errors.Is(err, exec.ErrNotFound):
		return nil, err
	case ctx.Err() != nil:
		return nil, fmt.Errorf("cannot resolve %s: ssh -G gave no answer in %s", d.Host, resolveTimeout)
	case err != nil:
		return nil, fault.New(fault.Failure, "ssh_config", "cannot resolve %s: %s", d.Host, firstLine(errOut.String(), err.Error()))
	}
	return parseValues(out.String()), nil
}

// parseValues takes the output of `ssh -G` apart.
func parseValues(out string) map[string][]string {
	values := map[string][]string{}
	for line := range strings.Lines(out) {
		k, v, ok := strings.Cut(strings.TrimRight(line, "\r\n"), " ")
		if ok && k != "" {
			values[k] = append(values[k], v)
		}
	}
	return values
}

func (r Resolver) configOf(d Destination, f Flags, v, plain map[string][]string) (*Config, error) {
	c := &Config{Alias: d.Host, Values: v}
	c.HostName, c.User = one(v, "hostname"), one(v, "user")
	c.Port, _ = strconv.Atoi(one(v, "port"))
	if c.HostName == "" || c.User == "" || c.Port == 0 {
		return nil, fmt.Errorf("cannot resolve %s: ssh -G named no host, user or port", d.Host)
	}
	c.IdentitiesOnly = one(v, "identitiesonly") == "yes"
	c.HostKeyAlias = none(one(v, "hostkeyalias"))
	c.ProxyJump, c.ProxyCommand = none(one(v, "proxyjump")), none(one(v, "proxycommand"))
	c.AddressFamily, c.BindAddress = one(v, "addressfamily"), none(one(v, "bindaddress"))
	if n, err := strconv.Atoi(one(v, "connecttimeout")); err == nil {
		c.ConnectTimeout = time.Duration(n) * time.Second
	}
	x, err := r.expander(c)
	if err != nil {
		return nil, err
	}
	for _, k := range []string{"userknownhostsfile", "globalknownhostsfile"} {
		for _, p := range strings.Fields(one(v, k)) {
			if p == "none" {
				continue
			}
			if p, err = x.path(p); err != nil {
				return nil, err
			}
			c.KnownHosts = append(c.KnownHosts, p)
		}
	}
	for _, p := range v["certificatefile"] {
		if p, err = x.path(p); err != nil {
			return nil, err
		}
		c.CertificateFile = append(c.CertificateFile, p)
	}
	c.IdentityFileSet = len(f.Identities) > 0 || !equal(v["identityfile"], plain["identityfile"])
	for _, p := range v["identityfile"] {
		if p == "none" {
			continue
		}
		if p, err = x.path(p); err != nil {
			return nil, err
		}
		c.IdentityFiles = append(c.IdentityFiles, p)
	}
	if a := one(v, "hostkeyalgorithms"); a != one(plain, "hostkeyalgorithms") {
		c.HostKeyAlgorithms = strings.Split(a, ",")
	}
	c.IdentityAgent, err = x.agent(one(v, "identityagent"))
	return c, err
}

// withoutSSH is what can be done where there is no ssh program: a plain
// destination, no aliases.
func (r Resolver) withoutSSH(d Destination, f Flags) (*Config, error) {
	if f.ConfigFile != "" || f.Jump != "" || len(f.Options) > 0 {
		return nil, fault.New(fault.Failure, "no_ssh", "cannot read an ssh configuration: %w", ErrNoSSH)
	}
	if d.User == "" {
		return nil, fault.New(fault.Failure, "no_ssh", "cannot resolve the alias %s: %w", d.Host, ErrNoSSH).
			WithHint("install OpenSSH's client, or write user@host:port")
	}
	c := &Config{Alias: d.Host, HostName: d.Host, User: d.User, Port: 22, Values: map[string][]string{},
		IdentityFiles: f.Identities, IdentityFileSet: len(f.Identities) > 0, IdentityAgent: r.Getenv("SSH_AUTH_SOCK")}
	if f.Port != 0 {
		c.Port = f.Port
	}
	if home := r.Getenv("HOME"); home != "" {
		if !c.IdentityFileSet {
			for _, n := range []string{"id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"} {
				c.IdentityFiles = append(c.IdentityFiles, filepath.Join(home, ".ssh", n))
			}
		}
		c.KnownHosts = []string{filepath.Join(home, ".ssh", "known_hosts")}
	}
	c.KnownHosts = append(c.KnownHosts, "/etc/ssh/ssh_known_hosts")
	return c, nil
}

// HostKeyName is the name under which host keys of the destination are known:
// HostKeyAlias, else the host name, with the port where it is not 22.
func (c *Config) HostKeyName() string {
	if c.HostKeyAlias != "" {
		return c.HostKeyAlias
	}
	if c.Port == 22 {
		return strings.ToLower(c.HostName)
	}
	return "[" + strings.ToLower(c.HostName) + "]:" + strconv.Itoa(c.Port)
}

func one(v map[string][]string, k string) string {
	if len(v[k]) == 0 {
		return ""
	}
	return v[k][0]
}

func none(s string) string {
	if s == "none" {
		return ""
	}
	return s
}

func equal(a, b []string) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func firstLine(s, fallback string) string {
	for line := range strings.Lines(s) {
		if line = strings.TrimSpace(line); line != "" {
			return line
		}
	}
	return fallback
}

// limited keeps the first bytes written to it and drops the rest.
type limited struct {
	buf  *bytes.Buffer
	left int
}

func (l *limited) Write(p []byte) (int, error) {
	n := min(len(p), l.left)
	l.buf.Write(p[:n])
	l.left -= n
	return len(p), nil
}

func currentUser() (name, home string, uid int) {
	uid = os.Getuid()
	if u, err := user.Current(); err == nil {
		return u.Username, u.HomeDir, uid
	}
	return os.Getenv("USER"), os.Getenv("HOME"), uid
}
