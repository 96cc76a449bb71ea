package hostcli

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"

	"github.com/urfave/cli/v2"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/firstparty"
	"fleet.example/fleet/plugins/sdk"
)

func artifactCommand(b Build) *command.Command {
	return &command.Command{
		Name: "artifact", Group: "Tools", Summary: "build, verify and trust what is installed on machines",
		Sub: []*command.Command{
			{Name: "build", Args: "DIR", Summary: "pack the programs in DIR into a signed artifact", Min: 1, Max: 1,
				Help: "DIR holds agentd, agentd-shim and fleet-plugins, built for one platform.",
				Flags: append(command.JSONFlags(false),
					&cli.StringFlag{Name: "os", Usage: "`GOOS` of the programs: linux or darwin", Required: true},
					&cli.StringFlag{Name: "arch", Usage: "`GOARCH` of the programs: amd64 or arm64", Required: true},
					&cli.StringFlag{Name: "as", Usage: "`VERSION` of the artifact", Value: b.Version},
					&cli.StringFlag{Name: "out", Usage: "`DIR` to write to", Value: "artifacts"},
					&cli.StringSliceFlag{Name: "with", Usage: "a vendor's probe plugin `FILE` to put in; may be given more than once"},
					&cli.StringFlag{Name: "sign-key", Usage: "private key `FILE` that signs", EnvVars: []string{"FLEET_SIGN_KEY"}, Required: true},
				), Run: func(ctx context.Context, c *command.Call) error { return runArtifactBuild(ctx, b, c) }},
			{Name: "verify", Args: "MANIFEST", Summary: "verify an artifact's signature and archive", Min: 1, Max: 1,
				Flags: command.JSONFlags(false), Run: func(ctx context.Context, c *command.Call) error {
					e, err := newEnv(b, c)
					if err != nil {
						return err
					}
					signers, err := e.signers()
					if err != nil {
						return err
					}
					a, err := artifact.Open(c.Arg(0), signers)
					if err != nil {
						return err
					}
					if c.WantsJSON() {
						return c.Print(a.Manifest)
					}
					fmt.Fprintf(c.Stdout, "%s/%s %s\n%s\nsigned by %s\n", a.Manifest.OS, a.Manifest.Arch, a.Manifest.Version, a.ID, a.SignedBy)
					return nil
				}},
			{Name: "trust", Args: "PUBLIC-KEY-FILE", Summary: "trust artifacts that this key signs", Min: 1, Max: 1,
				Run: func(_ context.Context, c *command.Call) error { return runArtifactTrust(b, c) }},
		},
	}
}

func runArtifactTrust(b Build, c *command.Call) error {
	e, err := newEnv(b, c)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(c.Arg(0))
	if err != nil {
		return fmt.Errorf("cannot read the key: %w", err)
	}
	add, err := artifact.ParseSigners(text)
	if err != nil || len(add) == 0 {
		return fault.Usagef("%s holds no public key", c.Arg(0))
	}
	have, err := artifact.LoadSigners(e.signersFile())
	if err != nil {
		return err
	}
	for _, k := range add {
		have = have.Add(k)
		fmt.Fprintf(c.Stdout, "trusted for artifacts: %s %s\n", k.Type(), ssh.FingerprintSHA256(k))
	}
	return durable.WriteFile(e.signersFile(), have.Format(), 0o600)
}

func runArtifactBuild(ctx context.Context, b Build, c *command.Call) error {
	if !artifact.SupportedPlatform(c.String("os"), c.String("arch")) {
		return artifact.Unsupported(c.String("os") + "/" + c.String("arch"))
	}
	signer, err := artifact.LoadSignKey(c.String("sign-key"))
	if err != nil {
		return err
	}
	// The lock is made over a copy: DIR may belong to a build that goes on.
	tmp, err := os.MkdirTemp("", "fleet-artifact-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	files := map[string][]byte{}
	take := func(path string) error {
		content, err := os.ReadFile(path)
		if err != nil {
			return fmt.Errorf("cannot pack artifact: %w", err)
		}
		files[filepath.Base(path)] = content
		return os.WriteFile(filepath.Join(tmp, filepath.Base(path)), content, 0o755)
	}
	for _, name := range []string{artifact.Agent, artifact.Shim, artifact.Plugins} {
		if err := take(filepath.Join(c.Arg(0), name)); err != nil {
			return err
		}
	}
	for _, path := range c.StringSlice("with") {
		if err := take(path); err != nil {
			return err
		}
	}
	ask := func(ctx context.Context, path string) (sdk.Description, string, error) {
		e, err := newEnv(b, c)
		if err != nil {
			return sdk.Description{}, "", err
		}
		return e.catalog.Describe(ctx, path)
	}
	links, err := lockAndLink(ctx, tmp, c.String("as"), c.String("os")+"/"+c.String("arch"), c.StringSlice("with"), files, ask)
	if err != nil {
		return err
	}
	if files[artifact.Lock], err = os.ReadFile(filepath.Join(tmp, artifact.Lock)); err != nil {
		return err
	}
	id, err := artifact.Build{OS: c.String("os"), Arch: c.String("arch"), Version: c.String("as"),
		Files: files, Links: links, Out: c.String("out")}.Write(signer)
	if err != nil {
		return err
	}
	base := filepath.Join(c.String("out"), artifact.BaseName(c.String("os"), c.String("arch")))
	if c.WantsJSON() {
		return c.Print(builtDoc{schemaBuilt, id, base + ".json"})
	}
	fmt.Fprintf(c.Stdout, "%s.json  %s\n", base, id)
	return nil
}

const schemaBuilt = "fleet.artifact-built/v1"

// builtDoc is fleet.artifact-built/v1.
type builtDoc struct {
	Schema   string `json:"schema"`
	ID       string `json:"id"`
	Manifest string `json:"manifest"`
}

// onMachine are the first-party plugins that a machine has a use for.
func onMachine(d sdk.Description) bool { return d.Kind != sdk.KindTransport }

// lockAndLink makes the first-party links and the lock in dir, adds the
// vendors' plugins to the lock, and returns the links.
func lockAndLink(ctx context.Context, dir, version, platform string, vendors []string, files map[string][]byte, ask describes) (map[string]string, error) {
	if err := firstparty.Lock(dir, version, onMachine); err != nil {
		return nil, err
	}
	path := filepath.Join(dir, lock.FileName)
	l, err := lock.Read(path)
	if err != nil {
		return nil, err
	}
	for _, v := range vendors {
		entry, err := describeVendor(ctx, ask, v, platform, files[filepath.Base(v)])
		if err != nil {
			return nil, err
		}
		l = l.With(entry)
	}
	if err := lock.Write(path, l); err != nil {
		return nil, err
	}
	links := map[string]string{artifact.Probes: artifact.Plugins}
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		if e.Type()&fs.ModeSymlink == 0 {
			continue
		}
		to, err := os.Readlink(filepath.Join(dir, e.Name()))
		if err != nil {
			return nil, err
		}
		links[e.Name()] = filepath.Base(to)
	}
	return links, nil
}

// describes asks a plugin's file what it is, and returns the SHA-256 of the
// bytes that it asked.
type describes func(ctx context.Context, path string) (sdk.Description, string, error)

// describeVendor asks a vendor's plugin, of which content is packed, what it is,
// as every plugin is asked: bounded in time and output, and with all that it
// started ended. One built for another platform cannot be asked, so its answer
// must lie beside it.
func describeVendor(ctx context.Context, ask describes, path, platform string, content []byte) (lock.Entry, error) {
	hash := sha256.Sum256(content)
	e := lock.Entry{File: filepath.Base(path), SHA256: hex.EncodeToString(hash[:])}
	if platform == runtime.GOOS+"/"+runtime.GOARCH {
		d, sum, err := ask(ctx, path)
		if err != nil {
			return e, err
		}
		if sum != e.SHA256 {
			return e, fault.New(fault.Failure, fault.CodeFailure, "cannot pack artifact: %s changed meanwhile", path)
		}
		e.Description = d
	} else {
		b, err := os.ReadFile(path + ".describe.json")
		if err != nil {
			return e, fault.New(fault.Usage, "no_description", "%s is built for %s and cannot be asked here what it is", path, platform).
				WithHint("run it there with the argument describe, and put what it prints into %s.describe.json", path)
		}
		if e.Description, err = sdk.ParseDescription(b); err != nil {
			return e, fmt.Errorf("cannot pack artifact: %s: %w", path, err)
		}
	}
	if d := e.Description; d.Kind != sdk.KindProbe || d.FileName() != e.File {
		return e, fault.Usagef("%s says that it is %s; --with takes a probe under its own name", path, d.FileName())
	}
	return e, nil
}
