package plain

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strings"

	"fleet.example/fleet/plugins/sdk"
)

// mark ends our line in a crontab. It names the installation, so that two
// installations of one account keep their lines apart.
func mark(s sdk.Spec) string {
	sum := sha256.Sum256([]byte(s.DataDir + "\x00" + s.Name))
	return " # fleet:" + hex.EncodeToString(sum[:8])
}

// cronLine is the line that brings the agent back. cron turns % into a line feed
// and its implementations disagree about a backslash, so such a path has none.
func cronLine(s sdk.Spec) (string, error) {
	if strings.ContainsAny(scriptPath(s), `%\`) {
		return "", errors.New("a path with % or a backslash cannot stand in a crontab")
	}
	return "@reboot /bin/sh " + quote(scriptPath(s)) + " start" + mark(s), nil
}

func withoutOurs(lines []string, s sdk.Spec) []string {
	return slices.DeleteFunc(slices.Clone(lines), func(l string) bool { return strings.HasSuffix(l, mark(s)) })
}

// readCrontab returns the account's lines. ErrUnsupported means that there is
// no crontab here or that the account may not use it.
func readCrontab(ctx context.Context, h sdk.Host) ([]string, error) {
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"crontab", "-l"}, Limit: sdk.MaxStdin})
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.Exit == 127 {
		return nil, fmt.Errorf("%w: there is no crontab", sdk.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	complaint := strings.ToLower(string(r.Stderr))
	switch {
	case r.Exit == 0 && r.Truncated:
		return nil, fmt.Errorf("%w: the crontab is longer than %d bytes", sdk.ErrUnsupported, sdk.MaxStdin)
	case r.Exit == 0:
		return splitLines(string(r.Stdout)), nil
	case len(r.Stdout) == 0 && (strings.Contains(complaint, "no crontab for") || strings.Contains(complaint, "no such file")):
		return nil, nil
	}
	return nil, fmt.Errorf("%w: crontab -l: exit %d: %s", sdk.ErrUnsupported, r.Exit, strings.TrimSpace(string(r.Stderr)))
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// editCrontab changes the account's lines. Nothing is written when nothing
// changes or when the present lines could not be read whole.
func editCrontab(ctx context.Context, h sdk.Host, edit func([]string) []string) error {
	before, err := readCrontab(ctx, h)
	if err != nil {
		return err
	}
	after := edit(before)
	if slices.Equal(before, after) {
		return nil
	}
	c := sdk.Command{Argv: []string{"crontab", "-r"}}
	if len(after) > 0 {
		c = sdk.Command{Argv: []string{"crontab", "-"}, Stdin: []byte(strings.Join(after, "\n") + "\n")}
		if len(c.Stdin) > sdk.MaxStdin {
			return fmt.Errorf("%w: the crontab is longer than %d bytes", sdk.ErrUnsupported, sdk.MaxStdin)
		}
	}
	r, err := h.Run(ctx, c)
	if err != nil {
		return err
	}
	if r.Exit != 0 {
		return fmt.Errorf("cannot write the crontab: exit %d: %s", r.Exit, strings.TrimSpace(string(r.Stderr)))
	}
	return nil
}
