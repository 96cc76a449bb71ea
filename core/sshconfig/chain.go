package sshconfig

import (
	"context"
	"os"
	"strings"
	"sync"

	"fleet.example/fleet/core/fault"
)

// Chain is the way to a destination: the jump hosts, nearest first, each as
// its own configuration has it, and the destination itself. Only the first of
// all hops may have a ProxyCommand; to the others the hop before leads.
type Chain struct {
	Jumps  []*Config
	Target *Config
	// Environ and Dir are the person's, where a ProxyCommand needs them: another
	// process may be the one that runs it.
	Environ []string `json:",omitempty"`
	Dir     string   `json:",omitempty"`
}

// First is the hop that is dialled from here.
func (c *Chain) First() *Config {
	if len(c.Jumps) > 0 {
		return c.Jumps[0]
	}
	return c.Target
}

// Hops are the jump hosts, nearest first, and then the destination.
func (c *Chain) Hops() []*Config {
	return append(c.Jumps[:len(c.Jumps):len(c.Jumps)], c.Target)
}

// maxJumps bounds how many jumps a chain has.
const maxJumps = 16

// Chain resolves a destination and every jump on the way to it, each as
// `ssh -J` would when it runs ssh for the hop: with the same -F, the user and
// port that the ProxyJump gives, and no other flag. The first jump may have
// a ProxyJump of its own, which then comes before it.
//
// A jump for which nothing says how to log in (no IdentityFile,
// CertificateFile, IdentityAgent or IdentitiesOnly) uses the target's keys and
// agent, where ssh would use its defaults.
func (r Resolver) Chain(ctx context.Context, dest string, f Flags) (*Chain, error) {
	target, err := r.Resolve(ctx, dest, f)
	if err != nil {
		return nil, err
	}
	c := &Chain{Target: target}
	seen := []*Config{target}
	for hop := target; hop.ProxyJump != ""; hop = c.Jumps[0] {
		jumps, err := r.jumps(ctx, hop, f.ConfigFile)
		if err != nil {
			return nil, err
		}
		for _, j := range jumps {
			for _, s := range seen {
				if s.HostName == j.HostName && s.Port == j.Port && s.User == j.User {
					return nil, fault.New(fault.Failure, "jump_loop", "cannot reach %s: ProxyJump leads through %s twice", target, j)
				}
			}
			seen = append(seen, j)
			j.inherit(target)
		}
		if c.Jumps = append(jumps, c.Jumps...); len(c.Jumps) > maxJumps {
			return nil, fault.New(fault.Failure, "jump_loop", "cannot reach %s: more than %d jumps", target, maxJumps)
		}
	}
	switch {
	case c.First().ProxyCommand == "":
	case r.Person != nil:
		c.Environ, c.Dir = r.Person.Environ, r.Person.Dir
	default:
		c.Environ = os.Environ()
		if c.Dir, err = os.Getwd(); err != nil {
			c.Dir = "/"
		}
	}
	return c, nil
}

// jumps resolves the hosts of one ProxyJump. Each but the first is asked for
// with those before it as -J, so that its own ProxyJump or ProxyCommand does
// not count, as it does not with ssh.
func (r Resolver) jumps(ctx context.Context, hop *Config, file string) ([]*Config, error) {
	list, err := hop.place.jumps(hop.ProxyJump)
	if err != nil {
		return nil, err
	}
	if len(list) > maxJumps {
		return nil, fault.New(fault.Failure, "jump_loop", "cannot reach %s: more than %d jumps", hop, maxJumps)
	}
	out, errs := make([]*Config, len(list)), make([]error, len(list))
	var wg sync.WaitGroup
	for i, jump := range list {
		wg.Go(func() {
			out[i], errs[i] = r.Resolve(ctx, jump, Flags{ConfigFile: file, Jump: strings.Join(list[:i], ",")})
		})
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return nil, err
		}
		if i > 0 {
			out[i].ProxyJump = "" // the hops before it are known
		}
	}
	return out, nil
}

// jumps takes a ProxyJump apart, with the tokens of the host that it leads to.
func (p *place) jumps(value string) ([]string, error) {
	if p == nil {
		return nil, noSSH("cannot resolve a ProxyJump")
	}
	value, err := p.expand(value, tokensProxy, false)
	if err != nil {
		return nil, err
	}
	list := strings.Split(value, ",")
	for _, j := range list {
		if _, err := ParseDestination(j); err != nil {
			return nil, fault.New(fault.Failure, "ssh_config", "cannot use ProxyJump %s: %w", value, err)
		}
	}
	return list, nil
}

// inherit takes over the target's login where the jump has none of its own.
func (c *Config) inherit(target *Config) {
	if c.IdentityFileSet || c.IdentityAgentSet || c.IdentitiesOnly || len(c.CertificateFiles) > 0 {
		return
	}
	c.IdentityFiles, c.IdentityFileSet = target.IdentityFiles, target.IdentityFileSet
	c.CertificateFiles, c.IdentitiesOnly = target.CertificateFiles, target.IdentitiesOnly
	c.IdentityAgent, c.IdentityAgentSet = target.IdentityAgent, target.IdentityAgentSet
}
