package hostkey

import (
	"strings"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
)

// Met is a host key as it was met: the target's or that of a jump host.
type Met struct {
	Place    Place
	Key      ssh.PublicKey
	Evidence []Evidence
	// Host is the host as user@host:port, for people.
	Host string
	// Names are what the host may be called in HOP=SHA256:….
	Names []string
	// Jump says that the host is one on the way and not the target.
	Jump bool
}

// Flag is the argument that gives the key's fingerprint.
func (m Met) Flag() string {
	f := ssh.FingerprintSHA256(Plain(m.Key))
	if m.Jump {
		f = m.Names[0] + "=" + f
	}
	return "--fingerprint " + f
}

// Fingerprint is one that a person gave: for a host by name, or for the target.
type Fingerprint struct {
	Hop   string // "" is the target
	Value string // SHA256:…
}

// ParseFingerprints takes [HOP=]SHA256:… apart.
func ParseFingerprints(args []string) ([]Fingerprint, error) {
	var out []Fingerprint
	for _, a := range args {
		f := Fingerprint{Value: a}
		if i := strings.LastIndex(a, "=SHA256:"); i > 0 {
			f.Hop, f.Value = a[:i], a[i+1:]
		}
		if err := CheckFingerprint(f.Value); err != nil {
			return nil, err
		}
		out = append(out, f)
	}
	return out, nil
}

// Speaks reports whether a fingerprint is meant for the host that was met.
func (f Fingerprint) Speaks(m Met) bool {
	if f.Hop == "" {
		return !m.Jump
	}
	for _, n := range m.Names {
		if strings.EqualFold(n, f.Hop) {
			return true
		}
	}
	return false
}

// Expect holds the key that was met against the fingerprints that are meant for
// its host: it is one of them (true), there are none (false), or it is another,
// which is an error.
func Expect(given []Fingerprint, m Met) (bool, error) {
	var expected []string
	for _, f := range given {
		if !f.Speaks(m) {
			continue
		}
		if SameFingerprint(f.Value, m.Key) {
			return true, nil
		}
		expected = append(expected, f.Value)
	}
	if len(expected) > 0 {
		return false, fault.New(fault.HostKey, "host_key_mismatch", "host key of %s is not the one that was given: expected %s got %s",
			m.Place, strings.Join(expected, " or "), Describe(m.Key))
	}
	return false, nil
}

// CheckHops refuses fingerprints for hosts that are not on the way.
func CheckHops(given []Fingerprint, hops [][]string) error {
	for _, f := range given {
		known := f.Hop == ""
		var names []string
		for _, h := range hops {
			names = append(names, h[0])
			known = known || f.Speaks(Met{Names: h})
		}
		if !known {
			return fault.Usagef("--fingerprint %s=%s: there is no such host on the way, which is %s", f.Hop, f.Value, strings.Join(names, ", "))
		}
	}
	return nil
}
