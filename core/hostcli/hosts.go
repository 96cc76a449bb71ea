package hostcli

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/wire"
)

// maxHosts bounds the lines of a hosts file.
const maxHosts = 100_000

// parseHosts reads `HOST [fingerprint=…] [name=…] [label.k=v]` lines. All of
// it is checked before anything is done.
func parseHosts(r io.Reader, base install.Options) ([]install.Options, error) {
	var out []install.Options
	seen := map[string]bool{}
	s := bufio.NewScanner(r)
	n := 1
	for ; s.Scan(); n++ {
		words := strings.Fields(s.Text())
		if len(words) == 0 || strings.HasPrefix(words[0], "#") {
			continue
		}
		bad := func(format string, args ...any) error {
			return fault.Usagef("line %d of the hosts: "+format, append([]any{n}, args...)...)
		}
		o := base
		o.Host, o.Labels = words[0], maps.Clone(base.Labels)
		if _, err := sshconfig.ParseDestination(o.Host); err != nil {
			return nil, bad("%s", err)
		}
		if seen[o.Host] {
			return nil, bad("%s stands there twice", o.Host)
		}
		seen[o.Host] = true
		for _, w := range words[1:] {
			k, v, ok := strings.Cut(w, "=")
			label, isLabel := strings.CutPrefix(k, "label.")
			switch {
			case ok && k == "fingerprint":
				if err := hostkey.CheckFingerprint(v); err != nil {
					return nil, bad("%s", err)
				}
				o.Fingerprints = append(o.Fingerprints[:len(o.Fingerprints):len(o.Fingerprints)], v)
			case ok && k == "name" && wire.CheckName(v) == nil:
				o.Name = v
			case ok && isLabel && wire.CheckName(label) == nil && wire.CheckLabelValue(v) == nil:
				o.Labels[label] = v
			default:
				return nil, bad("%q is none of fingerprint=, name=, label.KEY=", w)
			}
		}
		if out = append(out, o); len(out) > maxHosts {
			return nil, fault.Usagef("more than %d hosts", maxHosts)
		}
	}
	if err := s.Err(); errors.Is(err, bufio.ErrTooLong) {
		return nil, fault.Usagef("line %d of the hosts is longer than %d bytes", n, bufio.MaxScanTokenSize)
	} else if err != nil {
		return nil, fmt.Errorf("cannot read the hosts: %w", err)
	}
	if len(out) == 0 {
		return nil, fault.Usagef("the list names no host")
	}
	return out, nil
}
