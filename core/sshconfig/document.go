package sshconfig

import (
	"fmt"
	"slices"
	"strings"

	"fleet.example/fleet/core/wire"
)

// Fields are the lines of `ssh -G` in its order, with tokens, variables and ~
// expanded as they are when a connection is made. A value that cannot be
// expanded is left as it is.
func (c *Config) Fields() []Line {
	out := make([]Line, 0, len(c.dump.lines))
	for _, l := range c.dump.lines {
		out = append(out, Line{l.Keyword, strings.Join(c.values(l), " ")})
	}
	return out
}

// values are the values of one line: several where it lists files.
func (c *Config) values(l Line) []string {
	values := []string{l.Value}
	if oneLine[l.Keyword] {
		values = splitFiles(l.Value)
	}
	if c.place == nil {
		return values
	}
	for i, v := range values {
		if x, err := c.place.value(l.Keyword, v, c.expands); err == nil {
			values[i] = x
		}
	}
	return values
}

// oneLine are keywords whose line lists files.
var oneLine = map[string]bool{"userknownhostsfile": true, "globalknownhostsfile": true, "revokedhostkeys": true}

// repeated are keywords that may have several lines.
var repeated = map[string]bool{"identityfile": true, "certificatefile": true, "sendenv": true, "setenv": true,
	"localforward": true, "remoteforward": true, "dynamicforward": true}

// Document is the configuration as one JSON object: the keywords of `ssh -G`,
// each a string as ssh writes it, or a list of strings where a keyword may have
// several values, however many it has.
func (c *Config) Document() map[string]any {
	doc := map[string]any{"schema": wire.SchemaSSHConfig}
	for _, l := range c.dump.lines {
		values := c.values(l)
		have, there := doc[l.Keyword]
		switch {
		case repeated[l.Keyword] || oneLine[l.Keyword]:
			list, _ := have.([]string)
			doc[l.Keyword] = append(list, values...)
		case there: // no keyword that is known to repeat: nothing is lost, and the type stays
			doc[l.Keyword] = have.(string) + "\n" + values[0]
		default:
			doc[l.Keyword] = values[0]
		}
	}
	return doc
}

// honoured are the keywords that fleet connects by, or that ssh itself has
// worked off by the time it answers.
var honoured = map[string]bool{
	"host": true, "hostname": true, "user": true, "port": true,
	"identityfile": true, "certificatefile": true, "identitiesonly": true, "identityagent": true,
	"preferredauthentications": true, "pubkeyauthentication": true, "requiredrsasize": true,
	"pubkeyacceptedalgorithms": true, "pubkeyacceptedkeytypes": true,
	"hostkeyalias": true, "hostkeyalgorithms": true, "casignaturealgorithms": true,
	"userknownhostsfile": true, "globalknownhostsfile": true, "revokedhostkeys": true,
	"kexalgorithms": true, "ciphers": true, "macs": true, "rekeylimit": true,
	"proxyjump": true, "proxycommand": true, "addressfamily": true, "bindaddress": true, "connecttimeout": true,
	"serveraliveinterval": true, "serveralivecountmax": true,
	"canonicaldomains": true, "canonicalizefallbacklocal": true, "canonicalizehostname": true, "canonicalizemaxdots": true,
	"canonicalizepermittedcnames": true, "ignoreunknown": true, "tag": true,
	// fleet asks for no password and draws no picture of a key, whatever these say.
	"batchmode": true, "numberofpasswordprompts": true, "visualhostkey": true, "loglevel": true,
	// It never writes a known_hosts file.
	"hashknownhosts": true, "updatehostkeys": true,
}

// NotHonoured are the lines that differ from ssh's defaults and that fleet does
// not connect by, in ssh's order.
func (c *Config) NotHonoured() []Line {
	var out []Line
	for _, l := range c.dump.lines {
		if honoured[l.Keyword] || slices.Contains(c.defaults.all(l.Keyword), l.Value) || isNone(l.Value) && !c.defaults.has(l.Keyword) {
			continue
		}
		out = append(out, l)
	}
	return out
}

// Explain says, for -v, how the configuration came about and what in it nothing
// here connects by.
func (c *Config) Explain() []string {
	var out []string
	for _, w := range c.Warnings() {
		out = append(out, "ssh: "+w)
	}
	out = append(out, fmt.Sprintf("%s is %s (%s)", c.Alias, c, c.Origin()))
	if lines := c.NotHonoured(); len(lines) > 0 {
		words := make([]string, len(lines))
		for i, l := range lines {
			words[i] = strings.TrimSpace(l.Keyword + " " + l.Value)
		}
		out = append(out, "not honoured of its configuration: "+strings.Join(words, "; "))
	}
	return out
}
