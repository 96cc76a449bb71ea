package plain

import (
	"cmp"
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
// no crontab here, that the account may not use it, or that it is out of order.
func readCrontab(ctx context.Context, h sdk.Host) ([]string, error) {
	r, err := h.Run(ctx, sdk.Command{Argv: []string{"crontab", "-l"}, Limit: sdk.MaxStdin})
	if errors.Is(err, fs.ErrNotExist) || err == nil && r.Exit == 127 {
		return nil, fmt.Errorf("%w: there is no crontab", sdk.ErrUnsupported)
	}
	if err != nil {
		return nil, err
	}
	switch {
	case r.Exit == 0 && r.Truncated:
		return nil, fmt.Errorf("%w: the crontab is longer than %d bytes", sdk.ErrUnsupported, sdk.MaxStdin)
	case r.Exit == 0:
		return splitLines(string(r.Stdout)), nil
	case len(r.Stdout) == 0 && saysNone(string(r.Stderr)):
		return nil, nil
	}
	return nil, fmt.Errorf("%w: crontab -l: %s", sdk.ErrUnsupported, words(r))
}

// saysNone reports whether crontab -l says that the account has no lines yet.
// One that misses the directory of all crontabs uses nearly the same words.
func saysNone(complaint string) bool {
	c := strings.ToLower(complaint)
	return strings.Contains(c, "no crontab for") || strings.Contains(c, "no such file") && !strings.Contains(c, "crontabs")
}

// words is what a command that failed said of it, in one line.
func words(r sdk.Result) string {
	said := strings.Join(strings.Fields(string(r.Stderr)), " ")
	if said == "" {
		said = "it said nothing"
	}
	return fmt.Sprintf("exit %d: %s", r.Exit, said)
}

func splitLines(text string) []string {
	if text == "" {
		return nil
	}
	return strings.Split(strings.TrimSuffix(text, "\n"), "\n")
}

// editCrontab makes line the account's only one of this installation, or takes
// it away if line is empty. Nothing is written when nothing changes or when the
// present lines could not be read whole. ErrUnsupported means that the other
// lines stand as before and the crontab cannot be changed, and says why.
func editCrontab(ctx context.Context, h sdk.Host, s sdk.Spec, line string) error {
	before, err := readCrontab(ctx, h)
	if err != nil {
		return err
	}
	others := withoutOurs(before, s)
	after := others
	if line != "" {
		after = append(slices.Clone(others), line)
	}
	if slices.Equal(before, after) {
		return nil
	}
	failed, err := writeCrontab(ctx, h, after)
	if err != nil {
		return err
	}
	// Not every crontab checks its own writes, and the other lines are not ours to lose.
	now, err := readCrontab(ctx, h)
	switch {
	case err != nil && !errors.Is(err, sdk.ErrUnsupported):
		return err
	case err == nil && holds(now, after) && (line != "" || len(withoutOurs(now, s)) == len(now)):
		return nil
	}
	if failed == "" {
		failed = "it took the lines and did not keep them"
	}
	if err != nil || !holds(now, others) {
		if again, err := writeCrontab(ctx, h, before); err != nil || again != "" {
			return fmt.Errorf("the crontab was damaged by writing it (%s) and cannot be put back (%s); its lines were:\n%s",
				failed, cmp.Or(again, fmt.Sprint(err)), strings.Join(before, "\n"))
		}
	}
	return fmt.Errorf("%w: the crontab cannot be written: %s", sdk.ErrUnsupported, failed)
}

// holds reports whether lines has all of want in its order. Some crontabs add
// lines of their own to what they were given.
func holds(lines, want []string) bool {
	for _, l := range lines {
		if len(want) > 0 && l == want[0] {
			want = want[1:]
		}
	}
	return len(want) == 0
}

// writeCrontab replaces the account's lines. failed is what crontab said of it.
func writeCrontab(ctx context.Context, h sdk.Host, lines []string) (failed string, err error) {
	c := sdk.Command{Argv: []string{"crontab", "-r"}}
	if len(lines) > 0 {
		c = sdk.Command{Argv: []string{"crontab", "-"}, Stdin: []byte(strings.Join(lines, "\n") + "\n")}
		if len(c.Stdin) > sdk.MaxStdin {
			return "", fmt.Errorf("%w: the crontab is longer than %d bytes", sdk.ErrUnsupported, sdk.MaxStdin)
		}
	}
	r, err := h.Run(ctx, c)
	if err != nil || r.Exit == 0 {
		return "", err
	}
	return words(r), nil
}
