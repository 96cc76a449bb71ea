package hostcli

import (
	"context"
	"crypto/sha256"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/operator"
	"fleet.example/fleet/core/wire"
)

// signStatementCommand signs, for the front, where the plane is or which root
// vouches for it. What is no such statement is not signed.
func signStatementCommand(b Build) *command.Command {
	return &command.Command{
		Name: "sign-statement", Summary: "sign a statement about the plane on standard input", Hidden: true,
		Flags: []cli.Flag{&cli.StringFlag{Name: "key", Usage: "private key `FILE`, or the public half of one that the ssh-agent holds"}},
		Run: func(ctx context.Context, c *command.Call) error {
			text, err := io.ReadAll(io.LimitReader(c.Stdin, wire.MaxStatement+1))
			if err != nil {
				return err
			}
			st, err := wire.ParseStatement(text)
			if err != nil {
				return fault.Usagef("cannot sign what is on standard input: %s", err)
			}
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			p, err := operator.Known(c)
			if err != nil {
				return err
			}
			key, done, err := e.loginKey(c.String("key"), p.Key())
			if err != nil {
				return err
			}
			defer done()
			what := "the plane is at " + st.Value()
			if st.Kind == wire.MaterialTrust {
				pin, err := pinOf(st.RootsPEM)
				if err != nil {
					return err
				}
				what = "the plane's root is " + pin
			}
			c.Notef("signing with %s: %s (version %d)", ssh.FingerprintSHA256(key.PublicKey()), what, st.Version)
			sig, err := artifact.Sign(text, key, wire.NamespaceMaterial)
			if err != nil {
				return err
			}
			_, err = fmt.Fprintf(c.Stdout, "%s", sig)
			return err
		},
	}
}

// pinOf is a root's pin as planed prints it.
func pinOf(rootPEM string) (string, error) {
	block, _ := pem.Decode([]byte(rootPEM))
	if block == nil {
		return "", fault.Usagef("the statement holds no root")
	}
	c, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		return "", fault.Usagef("the statement's root is malformed")
	}
	sum := sha256.Sum256(c.RawSubjectPublicKeyInfo)
	return fmt.Sprintf("sha256:%x", sum), nil
}
