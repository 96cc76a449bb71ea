package hostcli

import (
	"bufio"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

func approveCommand(b Build) *command.Command {
	return &command.Command{
		Name: "approve", Group: "Machines", Args: "CODE", Summary: "admit the machine that waits with a code", Min: 1, Max: 1,
		Help: `The machine shows the code (agentd enroll). What it says of itself is shown first:
nobody has vouched for it, so compare it with the machine that you mean. It will
belong to you. Without a terminal --yes answers.`,
		Flags: append(command.JSONFlags(false),
			&cli.StringFlag{Name: "name", Usage: "`NAME` of the machine; it wins over what the machine suggests"},
			&cli.StringSliceFlag{Name: "label", Usage: "label `K=V`; may be given more than once"},
			&cli.BoolFlag{Name: "yes", Usage: "approve without being asked"},
		),
		Run: func(ctx context.Context, c *command.Call) error { return runApprove(ctx, b, c) },
	}
}

func denyCommand(b Build) *command.Command {
	return &command.Command{
		Name: "deny", Group: "Machines", Args: "CODE", Summary: "refuse the machine that waits with a code", Min: 1, Max: 1,
		Flags: command.JSONFlags(false),
		Run: func(ctx context.Context, c *command.Call) error {
			code, err := typedCode(c)
			if err != nil {
				return err
			}
			e, err := newEnv(b, c)
			if err != nil {
				return err
			}
			_, client, err := e.plane()
			if err != nil {
				return err
			}
			defer client.Close()
			did, err := client.Deny(ctx, code)
			if err != nil {
				return err
			}
			if c.WantsJSON() {
				return c.Print(did)
			}
			_, err = fmt.Fprintf(c.Stdout, "denied: the machine that says it is %s\n", says(did.Report))
			return err
		},
	}
}

// typedCode is the code in its normal form. What can be none is not sent: the
// plane would count it as a guess.
func typedCode(c *command.Call) (string, error) {
	code, ok := wire.NormalCode(c.Arg(0))
	if !ok {
		return "", fault.Usagef("%q is no code: one has %d letters and digits, as ABCD-EFGH", command.Clean(c.Arg(0)), wire.CodeLength)
	}
	return code, nil
}

// says is a machine's report on one line.
func says(r wire.EnrollReport) string {
	return command.Clean(fmt.Sprintf("%s on %s, %s/%s", r.Account, r.Host, r.OS, r.Arch))
}

func runApprove(ctx context.Context, b Build, c *command.Call) error {
	code, err := typedCode(c)
	if err != nil {
		return err
	}
	set, err := labels(c.StringSlice("label"))
	if err != nil {
		return err
	}
	if n := c.String("name"); n != "" && wire.CheckName(n) != nil {
		return fault.Usagef("--name: %s", wire.ErrName)
	}
	e, err := newEnv(b, c)
	if err != nil {
		return err
	}
	p, client, err := e.plane()
	if err != nil {
		return err
	}
	defer client.Close()
	waits, err := client.LookAtCode(ctx, code)
	if err != nil {
		return err
	}
	if !c.WantsJSON() {
		showWaiting(c, waits)
	}
	if !c.Bool("yes") {
		if !c.Interactive() || c.WantsJSON() {
			return fault.Usagef("nobody can be asked whether to approve").WithHint("it says it is %s; --yes approves it", says(waits.Report))
		}
		if ok, err := confirm(ctx, c, "Admit it, as yours (yes/no)? "); err != nil {
			return err
		} else if !ok {
			return fault.New(fault.Refused, "not_approved", "not approved; the machine waits on").WithHint("fleet deny %s refuses it", wire.ShowCode(code))
		}
	}
	req := wire.CodeRequest{Code: code, Name: c.String("name"), Labels: set}
	did, err := client.Approve(ctx, req)
	if wantsTouch(err) {
		if req.Touch, err = e.touch(ctx, p, client, wire.ApproveSubject(code)); err != nil {
			return err
		}
		did, err = client.Approve(ctx, req)
	}
	if err != nil {
		return err
	}
	if c.WantsJSON() {
		return c.Print(did)
	}
	_, err = fmt.Fprintf(c.Stdout, "%s  %s  admitted, belongs to %s\n", did.Machine, command.Clean(did.Name), command.Clean(did.Owner))
	return err
}

// showWaiting shows what a machine says of itself, as what it is.
func showWaiting(c *command.Call, w wire.Enrollment) {
	r := w.Report
	c.Notef("A machine waits with the code %s. It says of itself, and nobody has vouched for it:", w.Code)
	for _, l := range [][2]string{{"host", r.Host}, {"account", r.Account}, {"platform", r.OS + "/" + r.Arch}, {"agent", r.Version}, {"scope", r.Scope}} {
		c.Notef("  %-9s %s", l[0], command.Clean(l[1]))
	}
	c.Notef("  asked at  %s, good until %s", w.RequestedAt.Local().Format(time.DateTime), w.ExpiresAt.Local().Format(time.TimeOnly))
}

// confirm asks on the terminal. Only a yes is one.
func confirm(ctx context.Context, c *command.Call, question string) (bool, error) {
	fmt.Fprint(c.Stderr, question)
	answer := make(chan string, 1)
	go func() { // ends with a line of input, or with the program
		line, _ := bufio.NewReader(c.Stdin).ReadString('\n')
		answer <- strings.ToLower(strings.TrimSpace(line))
	}()
	select {
	case a := <-answer:
		return a == "yes" || a == "y", nil
	case <-ctx.Done():
		return false, ctx.Err()
	}
}
