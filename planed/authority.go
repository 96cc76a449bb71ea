package planed

import (
	"context"
	"crypto/x509"
	"fmt"
	"path/filepath"
	"time"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/ca"
	"fleet.example/fleet/planed/datadir"
)

// Schemas of the authority's documents.
const (
	schemaAuthority = "fleet.plane-ca/v1"
	schemaRenewal   = "fleet.plane-ca-renewal/v1"
)

// authorityDoc is fleet.plane-ca/v1: the certificates that the plane's trust
// hangs on, and until when.
type authorityDoc struct {
	Schema       string         `json:"schema"`
	TrustDomain  string         `json:"trust_domain"`
	Root         certificateDoc `json:"root"`
	Intermediate certificateDoc `json:"intermediate"`
	// Trusted are further roots, while one is replaced.
	Trusted []certificateDoc `json:"trusted"`
}

type certificateDoc struct {
	Subject   string    `json:"subject"`
	Pin       string    `json:"pin"`
	NotBefore wire.Time `json:"not_before"`
	NotAfter  wire.Time `json:"not_after"`
	// RenewBy is when a replacement should be in use: with a root, since every
	// machine and person has to learn of it, two years before the end.
	RenewBy wire.Time `json:"renew_by"`
}

const (
	rootAhead         = 2 * 365 * 24 * time.Hour
	intermediateAhead = 180 * 24 * time.Hour
)

func certificateOf(c *x509.Certificate, ahead time.Duration) certificateDoc {
	at := func(t time.Time) wire.Time { return wire.Time{Time: t.UTC()} }
	return certificateDoc{c.Subject.CommonName, ca.Pin(c), at(c.NotBefore), at(c.NotAfter), at(c.NotAfter.Add(-ahead))}
}

// renewalDoc is fleet.plane-ca-renewal/v1: what was done or, in a rehearsal,
// would have been.
type renewalDoc struct {
	Schema       string         `json:"schema"`
	Rehearsal    bool           `json:"rehearsal"`
	Intermediate certificateDoc `json:"intermediate"`
	Verified     []string       `json:"verified"`
}

func caCommand() *command.Command {
	return &command.Command{
		Name: "ca", Summary: "the plane's certificate authority",
		Sub: []*command.Command{
			newRootCommand(),
			{
				Name: "show", Summary: "the certificates that trust hangs on, and until when",
				Flags: append(command.JSONFlags(false), dataFlag()), Run: showAuthority,
			},
			{
				Name: "renew", Summary: "replace the intermediate, or rehearse it and a new root",
				Help: "What the old intermediate issued stays valid until it expires. A plane that serves\n" +
					"reads the new one on SIGHUP, and restarts nothing. --rehearse makes everything in\n" +
					"memory, a new root too, verifies what they would issue, and writes nothing.",
				Flags: append(command.JSONFlags(false), dataFlag(),
					&cli.StringFlag{Name: "root-key", Usage: "the root's key: a `FILE`, or a pkcs11: URI (default: root.key in the data directory)"},
					&cli.StringFlag{Name: "intermediate-key", Usage: "keep the intermediate's key in a token, at the pkcs11: `URI`; it is made if it is not there"},
					&cli.BoolFlag{Name: "rehearse", Usage: "write nothing"},
				),
				Run: renewAuthority,
			},
		},
	}
}

// authorityOf reads the authority of a plane that may be serving.
func authorityOf(c *command.Call) (string, *ca.Server, error) {
	dir, err := dataDir(c)
	if err != nil {
		return "", nil, err
	}
	if dir, err = filepath.Abs(dir); err != nil {
		return "", nil, err
	}
	p, err := datadir.Open(dir)
	if err != nil {
		return "", nil, err
	}
	a, err := datadir.Authority(dir, p)
	return dir, a, err
}

func showAuthority(_ context.Context, c *command.Call) error {
	_, a, err := authorityOf(c)
	if err != nil {
		return err
	}
	doc := authorityDoc{Schema: schemaAuthority, TrustDomain: a.TrustDomain, Root: certificateOf(a.Root, rootAhead),
		Intermediate: certificateOf(a.Intermediate, intermediateAhead), Trusted: []certificateDoc{}}
	for _, r := range a.Trusted()[1:] {
		doc.Trusted = append(doc.Trusted, certificateOf(r, rootAhead))
	}
	if c.WantsJSON() {
		return c.Print(doc)
	}
	line := func(what string, d certificateDoc) {
		fmt.Fprintf(c.Stdout, "%-12s %s, until %s, renew by %s\n%-12s %s\n", what, d.Subject, d.NotAfter, d.RenewBy, "", d.Pin)
	}
	line("root", doc.Root)
	line("intermediate", doc.Intermediate)
	for _, d := range doc.Trusted {
		line("trusted too", d)
	}
	_, err = fmt.Fprintf(c.Stdout, "%-12s %s\n", "trust_domain", doc.TrustDomain)
	return err
}

func renewAuthority(ctx context.Context, c *command.Call) error {
	dir, a, err := authorityOf(c)
	if err != nil {
		return err
	}
	rootKey, err := datadir.RootKey(ctx, dir, c.String("root-key"))
	if err != nil {
		return err
	}
	now, rehearse := time.Now(), c.Bool("rehearse")
	if next, err := datadir.NextRoot(dir); err != nil {
		return err
	} else if next != nil && !rehearse {
		return fault.New(fault.Refused, wire.CodeConflict, "a new root is on its way, %s, and vouches for the present intermediate alone", ca.Pin(next)).
			WithHint("fleet rotate ca ends that, forwards or with --abort")
	}
	r, err := datadir.NewIntermediate(ctx, a.Root, rootKey, c.String("intermediate-key"), !rehearse, now)
	if err != nil {
		return err
	}
	next := &ca.Server{Root: a.Root, Intermediate: r.Certificate, Key: r.Key, URL: a.URL, Now: time.Now, Roots: a.Roots, TrustDomain: a.TrustDomain}
	doc := renewalDoc{Schema: schemaRenewal, Rehearsal: rehearse, Intermediate: certificateOf(r.Certificate, intermediateAhead)}
	type step struct {
		name string
		do   func() error
	}
	steps := []step{
		{"the present intermediate's certificates verify", func() error { return a.Try(now, a.Root) }},
		{"a new intermediate's certificates verify", func() error { return next.Try(now, a.Root) }},
	}
	if rehearse {
		steps = append(steps, step{"a new root's certificates verify while both are trusted, and not before", func() error { return a.RehearseRoot(now) }})
	} else {
		steps = append(steps, step{"the new intermediate is in place", func() error {
			if err := r.Use(dir); err != nil {
				return err
			}
			_, _, err := authorityOf(c)
			return err
		}})
	}
	for _, s := range steps {
		if err := s.do(); err != nil {
			return fmt.Errorf("%s: not so: %w", s.name, err)
		}
		doc.Verified = append(doc.Verified, s.name)
	}
	if c.WantsJSON() {
		return c.Print(doc)
	}
	for _, words := range doc.Verified {
		fmt.Fprintf(c.Stdout, "ok  %s\n", words)
	}
	if rehearse {
		c.Notef("a rehearsal: nothing was written")
		return nil
	}
	c.Notef("%s is in place; kill -HUP the plane that serves, to use it", doc.Intermediate.Subject)
	return nil
}
