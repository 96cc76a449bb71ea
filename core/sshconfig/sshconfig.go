// Package sshconfig tells how the person's own OpenSSH would reach a host: it
// asks `ssh -G`, so that Match, Include and Match exec mean exactly what they
// mean at the terminal, and expands the tokens that ssh leaves literal there.
// It reads the person's files and writes none of them.
//
// It knows nothing of connections.
//
// # Why an answer may be kept
//
// ssh -G takes 8 ms, a large part of what a command takes. An answer is kept
// under a digest of everything that it depends on, so that a kept answer is
// never compared with the world: another world has another name. The digest
// is made anew for every question, from
//
//   - the ssh program (device, inode, size, times), the arguments, the account,
//     HOME, the locale and this host's name;
//   - the content, owner and mode of every configuration file, found by
//     following Include from the roots; for an Include with a wildcard also all
//     names in its directory, and for a file that is not there its absence.
//
// Times of files decide nothing, so a change within one tick of the clock is
// seen as well as any other.
//
// The argument needs that the files found here are those that ssh reads, that
// nothing else matters, and that they stood still while ssh read them:
//
//   - When an answer is about to be kept, ssh is also asked with -v, and names
//     each file that it reads. Unless those are exactly the files found, the
//     answer is not kept. A vendor's other root, or another meaning of a glob,
//     costs the cache and nothing else.
//   - No answer is kept if a file or option runs a program (Match exec), looks at
//     the network (Match localnetwork, CanonicalizeHostname and its kin), refers
//     to the environment (any $), or says something in a Match that is not known
//     here; nor if a file is no regular file, or its Includes are written in a
//     way that this package does not read with certainty.
//   - The digest is made again after ssh ran and must be the same. A file that
//     changed to something else and back in between would have a new change
//     time, unless the clock's tick was too coarse to show it; so nothing is
//     kept while a file is younger than a few seconds.
//
// Kept answers lie in a private directory, each in a file of its own that is
// renamed into place and carries its own checksum: writers do not meet, and a
// torn file is no answer. Answers with SetEnv are not kept, since its values
// are often secrets.
package sshconfig

import (
	"context"
	"errors"
	"net/netip"

	"fleet.example/fleet/core/fault"
)

// Resolver finds configurations.
type Resolver struct {
	Getenv func(string) string
	// Cache keeps answers of ssh's. Nil keeps none.
	Cache *Cache
	// Person is who asks, if that is not who runs this process.
	Person *Person
}

// Person is somebody whose configuration another process finds. It finds only
// what is kept, since ssh would find another one there: with that process's
// environment, in its working directory.
type Person struct {
	Environ []string
	Dir     string
}

// ErrNotKept is in the chain when ssh would have to be asked on behalf of
// somebody else.
var ErrNotKept = errors.New("ssh has to be asked by the person's own process")

// ErrNoSSH is in the chain when there is no ssh binary and the destination
// needs one.
var ErrNoSSH = errors.New("no ssh program in PATH")

func noSSH(what string) error {
	return fault.New(fault.Failure, "no_ssh", "%s: %w", what, ErrNoSSH).
		WithHint("install OpenSSH's client, or write user@host:port")
}

// Resolve tells how ssh would reach the destination. A value that cannot be
// expanded is an error, as it is when ssh connects.
func (r Resolver) Resolve(ctx context.Context, dest string, f Flags) (*Config, error) {
	c, err := r.Inspect(ctx, dest, f)
	if err != nil {
		return nil, err
	}
	return c, c.broken
}

// Inspect is Resolve for a person who only looks: like ssh -G, it leaves a
// value that cannot be expanded as it is.
func (r Resolver) Inspect(ctx context.Context, dest string, f Flags) (*Config, error) {
	d, err := ParseDestination(dest)
	if err != nil {
		return nil, err
	}
	if f.Port == 0 {
		f.Port = d.Port
	}
	if f.User == "" {
		f.User = d.User
	}
	a, err := r.ask(ctx, d.Host, f)
	if errors.Is(err, ErrNoSSH) {
		return r.withoutSSH(d, f)
	}
	if err != nil {
		return nil, err
	}
	return configOf(d.Host, a, r.Getenv)
}

func isAddress(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil
}
