// Package settings is what every fleet command takes besides its own flags,
// and where those values come from: flags, then FLEET_* variables, then the
// person's config.toml, then /etc/fleet/config.toml.
//
// It knows nothing of what the settings are used for.
package settings

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"

	"github.com/BurntSushi/toml"
	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/state"

	"fleet.example/fleet/core/command"
)

// Flags are the flags of every command of fleet and fleet-host.
func Flags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "plane", Usage: "`URL` of the plane, instead of the last one logged in to", EnvVars: []string{"FLEET_PLANE"}},
		&cli.StringFlag{Name: "token-file", Usage: "private `FILE` with an automation token, instead of a session", EnvVars: []string{"FLEET_TOKEN_FILE"}},
		&cli.BoolFlag{Name: "no-input", Usage: "never ask; fail and name the flag that answers", EnvVars: []string{"FLEET_NO_INPUT"}},
		&cli.BoolFlag{Name: "no-mux", Usage: "share no SSH connection with other commands", EnvVars: []string{"FLEET_NO_MUX"}},
		command.ChoiceFlag("updates", "`WHEN` a machine is updated that runs something older than this fleet has: on-connect, notice or never", UpdatesOnConnect, []string{"FLEET_UPDATES"},
			UpdatesOnConnect, UpdatesNotice, UpdatesNever),
		&cli.BoolFlag{Name: "verbose", Aliases: []string{"v"}, Usage: "say more on standard error", EnvVars: []string{"FLEET_VERBOSE"}},
	}
}

// When a machine is updated that a person connects to and that runs something
// older than what the person's fleet has (R4).
const (
	UpdatesOnConnect = "on-connect" // then, beside the work, once no session runs
	UpdatesNotice    = "notice"     // not by itself: it is said
	UpdatesNever     = "never"
)

// file is config.toml. Every key is also a flag of the same name with dashes.
type file struct {
	Plane     *string `toml:"plane"`
	TokenFile *string `toml:"token_file"`
	NoInput   *bool   `toml:"no_input"`
	Verbose   *bool   `toml:"verbose"`
	NoMux     *bool   `toml:"no_mux"`
	Parallel  *int    `toml:"parallel"`
	Updates   *string `toml:"updates"`
}

// Load reads the configuration files, the strongest value of each key winning,
// and returns flag values by flag name. A missing file is no error; an unknown
// key is.
func Load(d state.Dirs) (map[string]string, error) {
	out := map[string]string{}
	files := d.ConfigFiles()
	for i := len(files) - 1; i >= 0; i-- {
		b, err := os.ReadFile(files[i])
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read configuration: %w", err)
		}
		var f file
		meta, err := toml.Decode(string(b), &f)
		if err != nil {
			return nil, fault.Usagef("cannot read configuration: %s: %s", files[i], err)
		}
		if unknown := meta.Undecoded(); len(unknown) > 0 {
			return nil, fault.Usagef("cannot read configuration: %s: unknown key %q", files[i], unknown[0].String())
		}
		set := func(name string, v *string) {
			if v != nil {
				out[name] = *v
			}
		}
		set("plane", f.Plane)
		set("token-file", f.TokenFile)
		set("updates", f.Updates)
		for name, v := range map[string]*bool{"no-input": f.NoInput, "verbose": f.Verbose, "no-mux": f.NoMux} {
			if v != nil {
				out[name] = strconv.FormatBool(*v)
			}
		}
		if f.Parallel != nil {
			out["parallel"] = strconv.Itoa(*f.Parallel)
		}
	}
	return out, nil
}

// SSHFlags are the flags of ssh that every command with a HOST takes.
func SSHFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "F", Usage: "ssh configuration `FILE`"},
		&cli.StringSliceFlag{Name: "i", Usage: "identity `FILE`; may be given more than once"},
		&cli.StringFlag{Name: "J", Usage: "jump `HOST`"},
		&cli.IntFlag{Name: "p", Usage: "`PORT`"},
		&cli.StringSliceFlag{Name: "o", Usage: "ssh configuration `OPTION`; may be given more than once"},
	}
}

// SSH reads SSHFlags. Files are named absolutely: a link that is recorded is
// used from elsewhere, by processes with another working directory.
func SSH(c *command.Call) sshconfig.Flags { return SSHAsGiven(c).Absolute() }

// SSHAsGiven reads SSHFlags and leaves names as they are.
func SSHAsGiven(c *command.Call) sshconfig.Flags {
	return sshconfig.Flags{ConfigFile: c.String("F"), Identities: c.StringSlice("i"), Jump: c.String("J"), Port: c.Int("p"), Options: c.StringSlice("o")}
}
