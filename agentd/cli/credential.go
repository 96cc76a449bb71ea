package cli

import (
	"context"
	"fmt"
	"os"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/agentd/locate"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func credentialCommand() *command.Command {
	return &command.Command{Name: "credential", Summary: "this machine's credential", Sub: []*command.Command{{
		Name: "install", Summary: "take a credential from standard input",
		Help: "The document is " + wire.SchemaCredential + ". Taking the same one again changes nothing. One that works\n" +
			"is never replaced: not by an earlier generation, nor by another plane's, unless --replace is given.",
		Flags: append(command.JSONFlags(false), &ufcli.BoolFlag{Name: "replace", Usage: "replace a credential even if it works"}),
		Run:   installCredential,
	}}}
}

func installCredential(ctx context.Context, c *command.Call) error {
	doc, err := credential.ReadDocument(c.Stdin)
	if err != nil {
		return err
	}
	d, _, err := dirs(ctx, c)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.Data, 0o700); err != nil {
		return fmt.Errorf("cannot make data directory: %w", err)
	}
	if err := locate.CheckPrivate(d.Data); err != nil {
		return fault.New(fault.Failure, "data_unusable", "cannot use data directory: %w", err)
	}
	outcome, err := credential.Open(credential.Dir(d.Data)).Install(doc, c.Bool("replace"))
	if err != nil {
		return err
	}
	// A running agent uses it at once; where none runs, the next start does.
	told := newLocal(d.Runtime).call(ctx, "POST", wire.PathReload, nil, nil) == nil
	if c.WantsJSON() {
		return c.Print(installedDoc{schemaInstalled, doc.Machine, doc.Generation, outcome, told})
	}
	c.Notef("credential of %s, generation %d: %s", doc.Machine, doc.Generation, outcome)
	return nil
}

const schemaInstalled = "fleet.credential-installed/v1"

// installedDoc is fleet.credential-installed/v1.
type installedDoc struct {
	Schema     string `json:"schema"`
	Machine    string `json:"machine"`
	Generation int64  `json:"generation"`
	Status     string `json:"status"`
	Told       bool   `json:"agent_told"`
}
