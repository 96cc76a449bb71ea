package cli

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fanout"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func fileCommand(reach Reach) *command.Command {
	match := &ufcli.StringFlag{Name: "if-match", Usage: "only if the file is still the one with this `ETAG`, which ls and write print under --json; * for any that is there"}
	return &command.Command{Name: "file", Group: groupReach, Summary: "the files of a machine, as the account sees them",
		Help: "A path without / at its beginning, or with ~/, begins in the account's home directory. What is written is there " +
			"whole or not at all: a cut, a full disk or a kill leaves the old content.",
		Sub: []*command.Command{
			{Name: "ls", Args: "MACHINE:[PATH]", Summary: "list a directory, or show what one file is", Min: 1, Max: 1,
				Help:  "Under --jsonl, and from " + strconv.Itoa(sortAtMost) + " entries on, they are printed as they come and not sorted.",
				Flags: append(command.JSONFlags(true), &ufcli.BoolFlag{Name: "d", Aliases: []string{"directory"}, Usage: "show what a directory is, not what is in it"}),
				Run:   onPath(reach, nil, fileLs)},
			{Name: "cat", Args: "MACHINE:PATH", Summary: "print a file", Min: 1, Max: 1,
				Help: "A connection that is lost is made again and the content goes on where it ended. A file that changes while it is read is an error.",
				Flags: []ufcli.Flag{
					&ufcli.Int64Flag{Name: "from", Usage: "begin at byte `N`"},
					&ufcli.Int64Flag{Name: "bytes", Value: -1, Usage: "print at most `N` bytes"},
				},
				Run: onPath(reach, checkCat, fileCat)},
			{Name: "write", Args: "MACHINE:PATH", Summary: "make standard input a file's content", Min: 1, Max: 1,
				Help: "The file keeps its mode, owner and attributes; a symbolic link stays, and what it leads to is written. " +
					"merge-json takes a JSON object and writes its members over those of the object that is there; where either is no " +
					"JSON object, nothing changes.",
				Flags: append(command.JSONFlags(false),
					&ufcli.StringFlag{Name: "mode", Usage: "give it `MODE`, octal"},
					command.ChoiceFlag("on-conflict", "`WHAT` to do where a file is already: replace, merge-json or fail", wire.ConflictReplace, nil,
						wire.ConflictReplace, wire.ConflictMergeJSON, wire.ConflictFail), match),
				Run: onPath(reach, checkWrite, fileWrite)},
			{Name: "rm", Args: "MACHINE:PATH", Summary: "remove a file, a link or an empty directory", Min: 1, Max: 1,
				Flags: []ufcli.Flag{&ufcli.BoolFlag{Name: "r", Aliases: []string{"recursive"}, Usage: "remove a directory with everything in it"}, match},
				Run:   onPath(reach, namesFile, fileRm)},
			fileWatchCommand(reach),
		}}
}

// fileDeed is what a command does with a path of a machine.
type fileDeed func(ctx context.Context, c *command.Call, m fanout.Machine, a *agentclient.Client, path string) error

// onPath reaches the machine of MACHINE:PATH, once check finds nothing wrong in
// the words themselves.
func onPath(reach Reach, check func(c *command.Call, path string) error, do fileDeed) func(context.Context, *command.Call) error {
	return func(ctx context.Context, c *command.Call) error {
		machine, path, ok := strings.Cut(c.Arg(0), ":")
		if !ok || machine == "" {
			return fault.Usagef("%q is not MACHINE:PATH", command.Clean(c.Arg(0))).WithHint("%s: is the home directory there", command.Clean(strings.Trim(c.Arg(0), ":")))
		}
		if err := fanout.CheckWord(machine); err != nil {
			return err
		}
		if check != nil {
			if err := check(c, path); err != nil {
				return err
			}
		}
		m, err := reach.Find(ctx, c, machine)
		if err != nil {
			return err
		}
		return opened(ctx, fanout.Alone(c, m), reach, func(_ *fanout.One, _ Target, a *agentclient.Client) error {
			return do(ctx, c, m, a, path)
		})
	}
}

// sortAtMost is how many entries of a directory are held to be sorted.
const sortAtMost = 20_000

func fileLs(ctx context.Context, c *command.Call, m fanout.Machine, a *agentclient.Client, path string) error {
	i, err := a.Stat(ctx, path, !c.Bool("d"))
	if err != nil {
		return err
	}
	if c.Bool("d") || i.Type != wire.FileDirectory {
		if c.WantsJSON() {
			return c.Print(i)
		}
		return printFiles(c, []wire.FileInfo{*i})
	}
	all, sorted := []wire.FileInfo{}, true
	err = a.List(ctx, path, func(i wire.FileInfo) error {
		if c.Bool("jsonl") {
			i.Schema = wire.SchemaFile
			return c.Print(i)
		}
		if all = append(all, i); c.Bool("json") || len(all) < sortAtMost {
			return nil
		}
		held := all
		all, sorted = nil, false
		return printFiles(c, held)
	})
	if err != nil || c.Bool("jsonl") {
		return err
	}
	if sorted {
		slices.SortFunc(all, func(a, b wire.FileInfo) int { return strings.Compare(string(a.Name), string(b.Name)) })
	}
	if c.Bool("json") {
		return c.Print(wire.Files{Schema: wire.SchemaFiles, Machine: m.ID, Path: i.Path, Files: all})
	}
	return printFiles(c, all)
}

func printFiles(c *command.Call, list []wire.FileInfo) error {
	if len(list) == 0 {
		return nil
	}
	g := &grid{head: []string{"MODE", "OWNER", "SIZE", "MODIFIED", "NAME"}, flex: []int{4}}
	for _, i := range list {
		name := clean(string(i.Name))
		sh := plain
		switch i.Type {
		case wire.FileDirectory:
			name += "/"
		case wire.FileSymlink:
			name += " -> " + clean(string(i.Target))
		case wire.FileRegular:
		default:
			sh = warning
			name += " (" + i.Type + ")"
		}
		g.add(cell{text: i.Mode}, cell{text: fmt.Sprintf("%d:%d", i.UID, i.GID)}, cell{text: strconv.FormatInt(i.Size, 10)},
			cell{text: i.ModifiedAt.Local().Format(time.DateTime)}, cell{name, sh})
	}
	return g.write(screenOf(c))
}

// namesFile refuses a path that is empty, which is the home directory.
func namesFile(c *command.Call, path string) error {
	if path == "" {
		return fault.Usagef("%q names no file: PATH is missing", command.Clean(c.Arg(0))).WithHint("usage: %s", c.Usage)
	}
	return nil
}

func checkCat(c *command.Call, path string) error {
	for _, name := range []string{"from", "bytes"} {
		if n := c.Int64(name); n < 0 && c.IsSet(name) {
			return fault.Usagef("--%s takes a number of bytes, not %d", name, n)
		}
	}
	return namesFile(c, path)
}

func checkWrite(c *command.Call, path string) error {
	if n, err := strconv.ParseUint(c.String("mode"), 8, 16); c.IsSet("mode") && (err != nil || n > 0o7777) {
		return fault.Usagef("--mode takes an octal mode such as 0644, not %q", command.Clean(c.String("mode")))
	}
	return namesFile(c, path)
}

func fileCat(ctx context.Context, c *command.Call, _ fanout.Machine, a *agentclient.Client, path string) error {
	_, err := a.Read(ctx, path, c.Int64("from"), c.Int64("bytes"), c.Stdout)
	if errors.Is(err, syscall.EPIPE) {
		return &command.Exit{Status: 128 + int(syscall.SIGPIPE)}
	}
	return err
}

func fileWrite(ctx context.Context, c *command.Call, _ fanout.Machine, a *agentclient.Client, path string) error {
	i, err := a.Write(ctx, path, agentclient.Put{Mode: c.String("mode"), OnConflict: c.String("on-conflict"), Match: c.String("if-match")}, c.Stdin)
	if err != nil {
		return err
	}
	if c.WantsJSON() {
		return c.Print(i)
	}
	return nil
}

func fileRm(ctx context.Context, c *command.Call, _ fanout.Machine, a *agentclient.Client, path string) error {
	return a.Remove(ctx, path, c.String("if-match"), c.Bool("r"))
}
