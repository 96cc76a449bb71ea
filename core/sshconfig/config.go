package sshconfig

import (
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config is the effective configuration of one destination. Fields carry the
// meaning of ssh_config(5); tokens, variables and ~ are expanded. A list of
// algorithms is nil where the person configured none, and then whoever connects
// uses its own; +, - and ^ are resolved.
type Config struct {
	Alias    string // what was asked for
	HostName string
	User     string
	Port     int

	// Keys and how they are offered.
	IdentityFiles            []string // in ssh's order; none means that defaults were removed
	IdentityFileSet          bool     // configured, as opposed to ssh's defaults
	CertificateFiles         []string
	IdentitiesOnly           bool
	IdentityAgent            string // socket path, or "" for none
	IdentityAgentSet         bool   // configured, as opposed to SSH_AUTH_SOCK
	PreferredAuthentications []string
	// NoPubkeyAuthentication is PubkeyAuthentication no.
	NoPubkeyAuthentication   bool
	PubkeyAcceptedAlgorithms []string
	RequiredRSASize          int // bits; 0 means the default

	// The host's key.
	HostKeyAlias          string
	HostKeyAlgorithms     []string
	CASignatureAlgorithms []string
	UserKnownHostsFiles   []string
	GlobalKnownHostsFiles []string
	RevokedHostKeys       []string // files: lists of public keys, or key revocation lists

	// The way there.
	ProxyJump     string // as written; see Chain
	ProxyCommand  string // tokens expanded, for sh -c with exec before it
	ProxyFD       bool   // ProxyUseFdpass
	AddressFamily string // any | inet | inet6
	BindAddress   string
	BindInterface string
	TCPKeepAlive  bool

	// The transport protocol.
	KexAlgorithms []string
	Ciphers       []string
	MACs          []string
	RekeyLimit    uint64 // bytes; 0 means the cipher's default

	ConnectTimeout      time.Duration // 0: not configured
	ServerAliveInterval time.Duration // 0: not configured, or off
	ServerAliveCountMax int

	dump     dump
	defaults dump
	place    *place
	expands  bool // ssh expanded what it expands before it prints
	origin   string
	warnings []string
	broken   error // what could not be expanded
}

// configOf gives ssh's answer its types.
func configOf(alias string, a *answer, getenv func(string) string) (*Config, error) {
	v, plain := a.dump, a.defaults.dump
	c := &Config{Alias: alias, dump: v, defaults: plain, origin: a.origin, warnings: a.warnings}
	c.HostName, c.User = v.one("hostname"), v.one("user")
	c.Port, _ = strconv.Atoi(v.one("port"))
	if c.HostName == "" || c.User == "" || c.Port < 1 || c.Port > 65535 {
		return nil, fmt.Errorf("cannot resolve %s: ssh -G named no host, user or port", alias)
	}
	c.HostKeyAlias = v.set("hostkeyalias")
	c.ProxyJump = v.set("proxyjump")
	name, home := account()
	if u := plain.one("user"); u != "" {
		name = u
	}
	if h := homeOf(plain.one("userknownhostsfile")); h != "" {
		home = h
	}
	x := &place{alias: c.Alias, hostName: c.HostName, userName: c.User, keyAlias: c.HostKeyAlias, port: c.Port,
		jump: jumpHost(c.ProxyJump), localUser: name, home: home, localHost: localHost(), getenv: getenv,
		jumpToken: a.defaults.jumpToken}
	c.place, c.expands = x, a.defaults.expands
	var problems []error
	expanded := func(keyword, value string) string {
		s, err := x.value(keyword, value, a.defaults.expands)
		problems = append(problems, err)
		return s
	}
	c.identity(expanded)
	c.hostKeys(expanded)

	if p := v.set("proxycommand"); p != "" {
		c.ProxyCommand = expanded("proxycommand", p)
	}
	c.ProxyFD, c.TCPKeepAlive = v.yes("proxyusefdpass"), !v.has("tcpkeepalive") || v.yes("tcpkeepalive")
	c.AddressFamily, c.BindAddress, c.BindInterface = strings.ToLower(v.one("addressfamily")), v.set("bindaddress"), v.set("bindinterface")
	c.KexAlgorithms, c.Ciphers, c.MACs = c.list("kexalgorithms"), c.list("ciphers"), c.list("macs")
	limit, _, _ := strings.Cut(v.one("rekeylimit"), " ")
	c.RekeyLimit, _ = strconv.ParseUint(limit, 10, 64)
	c.ConnectTimeout = v.seconds("connecttimeout")
	c.ServerAliveInterval = v.seconds("serveraliveinterval")
	c.ServerAliveCountMax, _ = strconv.Atoi(v.one("serveralivecountmax"))
	c.broken = errors.Join(problems...)
	return c, nil
}

func (c *Config) identity(expanded func(keyword, value string) string) {
	v := c.dump
	c.IdentityFileSet = !slices.Equal(v.all("identityfile"), c.defaults.all("identityfile"))
	for _, p := range v.all("identityfile") {
		if !isNone(p) {
			c.IdentityFiles = append(c.IdentityFiles, expanded("identityfile", p))
		}
	}
	for _, p := range v.all("certificatefile") {
		if !isNone(p) {
			c.CertificateFiles = append(c.CertificateFiles, expanded("certificatefile", p))
		}
	}
	c.IdentitiesOnly = v.yes("identitiesonly")
	agent := v.one("identityagent")
	c.IdentityAgentSet = agent != ""
	if c.IdentityAgent = expanded("identityagent", agent); isNone(c.IdentityAgent) {
		c.IdentityAgent = ""
	}
	if p := v.set("preferredauthentications"); p != "" {
		c.PreferredAuthentications = strings.Split(p, ",")
	}
	auth := strings.ToLower(v.one("pubkeyauthentication"))
	c.NoPubkeyAuthentication = auth == "no" || auth == "false"
	c.PubkeyAcceptedAlgorithms = c.list("pubkeyacceptedalgorithms")
	if c.PubkeyAcceptedAlgorithms == nil {
		c.PubkeyAcceptedAlgorithms = c.list("pubkeyacceptedkeytypes") // its name before OpenSSH 8.5
	}
	c.RequiredRSASize, _ = strconv.Atoi(v.one("requiredrsasize"))
}

func (c *Config) hostKeys(expanded func(keyword, value string) string) {
	c.HostKeyAlgorithms, c.CASignatureAlgorithms = c.list("hostkeyalgorithms"), c.list("casignaturealgorithms")
	for keyword, list := range map[string]*[]string{"userknownhostsfile": &c.UserKnownHostsFiles, "globalknownhostsfile": &c.GlobalKnownHostsFiles,
		"revokedhostkeys": &c.RevokedHostKeys} {
		for _, p := range splitFiles(c.dump.one(keyword)) {
			if p != "" && !isNone(p) {
				*list = append(*list, expanded(keyword, p))
			}
		}
	}
}

// list is a list of algorithms where the person configured one.
func (c *Config) list(keyword string) []string {
	s := c.dump.one(keyword)
	if s == "" || s == c.defaults.one(keyword) {
		return nil
	}
	return strings.Split(s, ",")
}

// maxWait bounds a configured number of seconds, so that it stays a duration.
const maxWait = 7 * 24 * 60 * 60

func (d dump) seconds(keyword string) time.Duration {
	n, err := strconv.Atoi(d.one(keyword))
	if err != nil || n < 0 {
		return 0
	}
	return time.Duration(min(n, maxWait)) * time.Second
}

// value is a value of ssh -G with everything expanded that ssh expands later.
// expands says that this ssh expanded IdentityAgent and UserKnownHostsFile
// before it printed them; expanding twice would eat a percent sign.
func (p *place) value(keyword, s string, expands bool) (string, error) {
	if isNone(s) {
		return s, nil
	}
	switch keyword {
	case "identityfile", "certificatefile":
		return p.file(s)
	case "identityagent":
		return p.agent(s, expands)
	case "userknownhostsfile":
		if expands {
			return s, nil
		}
		return p.file(s)
	case "globalknownhostsfile":
		return p.tilde(s)
	case "proxycommand":
		return p.command(s)
	}
	return s, nil
}

// KnownHosts are the person's and the system's known_hosts files.
func (c *Config) KnownHosts() []string {
	return slices.Concat(c.UserKnownHostsFiles, c.GlobalKnownHostsFiles)
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

// String names the destination as user@host:port, for messages.
func (c *Config) String() string { return c.User + "@" + addr(c.HostName, c.Port) }

// Origin says how the configuration came about, for -v: asked of ssh or taken
// from the cache, and why it was not kept.
func (c *Config) Origin() string { return c.origin }

// Warnings are ssh's own words about the configuration, where it took it.
func (c *Config) Warnings() []string { return c.warnings }

// withoutSSH is what can be done where there is no ssh program: a plain
// destination, no aliases.
func (r Resolver) withoutSSH(d Destination, f Flags) (*Config, error) {
	if f.ConfigFile != "" || f.Jump != "" || len(f.Options) > 0 {
		return nil, noSSH("cannot read an ssh configuration")
	}
	name, home := account()
	if f.User != "" {
		d.User = f.User
	}
	if d.User == "" {
		if !isAddress(d.Host) {
			return nil, noSSH("cannot resolve the alias " + d.Host)
		}
		d.User = name
	}
	if f.Port != 0 {
		d.Port = f.Port
	}
	c := &Config{Alias: d.Host, HostName: d.Host, User: d.User, Port: 22, AddressFamily: "any", TCPKeepAlive: true,
		IdentityFileSet: len(f.Identities) > 0, IdentityAgent: r.Getenv("SSH_AUTH_SOCK"), ServerAliveCountMax: 3,
		GlobalKnownHostsFiles: []string{"/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2"}, origin: "there is no ssh program; its configuration was not read"}
	if d.Port != 0 {
		c.Port = d.Port
	}
	x := &place{alias: c.Alias, hostName: c.HostName, userName: c.User, port: c.Port, localUser: name, home: home,
		localHost: localHost(), getenv: r.Getenv}
	for _, p := range f.Identities {
		p, err := x.file(p)
		if err != nil {
			return nil, err
		}
		c.IdentityFiles = append(c.IdentityFiles, p)
	}
	if filepath.IsAbs(home) {
		dir := filepath.Join(home, ".ssh")
		if !c.IdentityFileSet {
			for _, n := range []string{"id_rsa", "id_ecdsa", "id_ecdsa_sk", "id_ed25519", "id_ed25519_sk"} {
				c.IdentityFiles = append(c.IdentityFiles, filepath.Join(dir, n))
			}
		}
		c.UserKnownHostsFiles = []string{filepath.Join(dir, "known_hosts"), filepath.Join(dir, "known_hosts2")}
	}
	c.dump = c.asDump()
	return c, nil
}

// asDump is the little that is known without ssh, as ssh -G would print it.
func (c *Config) asDump() dump {
	var b strings.Builder
	line := func(keyword, value string) { fmt.Fprintf(&b, "%s %s\n", keyword, value) }
	line("host", c.Alias)
	line("user", c.User)
	line("hostname", c.HostName)
	line("port", strconv.Itoa(c.Port))
	line("addressfamily", c.AddressFamily)
	for _, p := range c.IdentityFiles {
		line("identityfile", p)
	}
	line("globalknownhostsfile", strings.Join(c.GlobalKnownHostsFiles, " "))
	if len(c.UserKnownHostsFiles) > 0 {
		line("userknownhostsfile", strings.Join(c.UserKnownHostsFiles, " "))
	}
	return parseDump(b.String())
}
