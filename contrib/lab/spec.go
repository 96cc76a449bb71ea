//go:build linux

package lab

import (
	"fmt"
	"regexp"
	"slices"
)

// HostSpec says what a host is like. The zero value, with a name, is an ordinary server with one account "user".
type HostSpec struct {
	// Name is the host name: lower-case letters, digits and dashes.
	Name string
	// Accounts are made on the host, in this order. Default: one, named "user".
	Accounts []Account
	// AuthorizedKeys are lines for every account's authorized_keys, besides the lab's own key.
	AuthorizedKeys []string
	// NoLabKey keeps the lab's own key out of authorized_keys.
	NoLabKey bool
	// SSHDConfig is sshd_config(5) text. It stands after the lab's own lines, and those it sets too are left out.
	SSHDConfig string
	// NoSFTP leaves the sftp subsystem out.
	NoSFTP bool
	// Dropbear serves SSH with dropbear in place of sshd; SSHDConfig and NoSFTP do not apply.
	Dropbear bool
	// Also are more SSH servers of the host, with the same ed25519 host key.
	Also []Server
	// NoSystemd boots busybox's init in place of systemd, whose programs are not there. Such a host is turned off by
	// PowerCut only. Needs the package busybox-static.
	NoSystemd bool
	// IPv6Only gives the host no IPv4 address. PlaneAddr6 is what it reaches; the methods of Lab that change its
	// network, Hidden and From do not apply.
	IPv6Only bool
	// Hidden keeps the operator out: the host is reached through the hosts in From only.
	Hidden bool
	// From names hosts of the same lab, already there, that may reach this one.
	From []string
	// Prepare, when set, changes the host's disk before its first boot. It is given the directory that will be
	// the host's root. What it puts under /run and /tmp is not seen: the host mounts its own there.
	Prepare func(root string) error
}

// Account is one login account of a host.
type Account struct {
	Name string `json:"name"`
	// UID is the user and group number. Default: 2001 and up.
	UID int `json:"uid"`
	// Home is the home directory, and may hold spaces. It is a file system of its own. Default: /home/NAME.
	Home string `json:"home"`
	// Shell is the login shell's path on the host. Default: /bin/bash.
	Shell string `json:"shell"`
	// NoLinger leaves lingering off: the account's services end with its last session.
	NoLinger bool `json:"no_linger,omitempty"`
	// HomeBytes bounds the home directory. Default: 1 GiB.
	HomeBytes int64 `json:"home_bytes"`
	// NoExec mounts the home directory noexec.
	NoExec bool `json:"no_exec,omitempty"`
	// Password is a crypt(3) hash. Default: none works.
	Password string `json:"-"`
	// Files are texts of files in the home directory, by their path in it. They are the account's, mode 0644.
	Files map[string]string `json:"-"`
}

// Server is one SSH server of a host besides the one on port 22.
type Server struct {
	Port int
	// Kind is the program: sshd if empty.
	Kind ServerKind
	// SSHDConfig and NoSFTP are as in HostSpec, for sshd.
	SSHDConfig string
	NoSFTP     bool
}

// ServerKind names a program that serves SSH.
type ServerKind string

const (
	Dropbear ServerKind = "dropbear" // package dropbear-bin
	TinySSH  ServerKind = "tinysshd" // package tinysshd
)

var (
	hostName    = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,30}[a-z0-9])?$`)
	accountName = regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,31}$`)
)

// complete fills in the defaults and refuses what cannot work.
func (s HostSpec) complete() (HostSpec, error) {
	if !hostName.MatchString(s.Name) {
		return s, fmt.Errorf("cannot make host: bad name %q", s.Name)
	}
	if s.IPv6Only && (s.Hidden || len(s.From) > 0) {
		return s, fmt.Errorf("cannot make host %s: IPv6Only goes with neither Hidden nor From", s.Name)
	}
	s.Accounts = slices.Clone(s.Accounts)
	if len(s.Accounts) == 0 {
		s.Accounts = []Account{{Name: "user"}}
	}
	for i := range s.Accounts {
		a := &s.Accounts[i]
		if !accountName.MatchString(a.Name) {
			return s, fmt.Errorf("cannot make host %s: bad account name %q", s.Name, a.Name)
		}
		if a.Name == "root" {
			a.Home = "/root"
		} else if a.UID == 0 {
			a.UID = 2001 + i
		}
		if a.Home == "" {
			a.Home = "/home/" + a.Name
		}
		if a.Shell == "" {
			a.Shell = "/bin/bash"
		}
		if a.HomeBytes == 0 {
			a.HomeBytes = 1 << 30
		}
		if a.Password == "" {
			a.Password = "*"
		}
	}
	return s, nil
}
