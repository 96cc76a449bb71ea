// Package fanout is the one way in which a command works on many machines: it
// reads the flags that select them, finds the machines, does the command's deed
// to several at once, and says for each how it went and at last how many did.
//
// What holds for every command that uses it:
//   - every selected machine has exactly one result, whatever became of others;
//   - no more deeds are under way than --parallel, so that whatever a deed
//     starts (a process, a connection) is bounded by it too;
//   - after --max-failed failures, or an interrupt, none begins any more. Those
//     that are under way end by themselves, as an update that was cut in two
//     would help nobody; what was never begun is said to be not begun;
//   - results stand in the order of names and ids, but under --jsonl, where
//     each comes when it is there;
//   - what one machine writes is kept up to one long line, and a reader that
//     is slow slows the machines down instead.
//
// A machine that is named by a word is the same deed without the ceremony: its
// error is the command's error, its document the command's document.
//
// The package knows planes and links. It does not know how a machine is
// reached nor what is done there.
package fanout

import (
	"context"
	"io"

	ufcli "github.com/urfave/cli/v2"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/state"
)

// Spec says how a command takes machines.
type Spec struct {
	// Does is what the command does to a machine, for a dry run: "stop".
	Does string
	// Several lets more than one MACHINE stand in the arguments.
	Several bool
	// Trailing says that arguments of the command's own follow MACHINE, or
	// stand alone where a selector selects.
	Trailing bool
	// Linked deeds need to know how the machine is reached.
	Linked bool
	// Destructive deeds cannot be undone: --yes where a selector selects, and
	// words that name exactly.
	Destructive bool
	// Cheap deeds only wait and hold nothing, or bound what they hold
	// themselves: all begin at once, and --max-failed ends them.
	Cheap bool
	// Streams says that a machine's output is shown as it comes.
	Streams bool
	// FailureExit is the exit code of every failure of the command's own, if
	// not 0, as command.Command has it.
	FailureExit int
}

// Machine is a machine that was selected or named.
type Machine struct {
	ID, Name string
	// Link says how it is reached; nil if that is not known here.
	Link *state.Link
}

// Label is what the machine is called where a person reads.
func (m Machine) Label() string {
	if m.Name == "" {
		return command.Clean(m.ID)
	}
	return command.Clean(m.Name)
}

// One is one machine's part of a command. The Call's streams are its own:
// what is written there carries the machine's name where there are many.
type One struct {
	Machine
	*command.Call
	// Out and Err take what comes from the machine, as it came.
	Out, Err io.Writer
}

// Alone is a machine's part of a command that takes one machine only.
func Alone(c *command.Call, m Machine) *One {
	return &One{Machine: m, Call: c, Out: c.Stdout, Err: c.Stderr}
}

// Outcome is what came of a deed.
type Outcome struct {
	Document any    // what --json prints of one machine
	Words    string // what a person reads of one among many: "stopped"
	// Exit is a remote command's own exit code. If it is not 0, the machine
	// counts as failed.
	Exit int
	// Status is the word that a result carries, where the command has such.
	Status string
	// Machine is who it turned out to be, where that was not known before.
	Machine *Machine
	// Printed says that the deed has shown what there is to show.
	Printed bool
	// Show prints what a person reads of a machine that was named. Without it
	// that is its name and the words, on standard error.
	Show func(c *command.Call) error
}

// Do is the deed.
type Do func(ctx context.Context, o *One) (Outcome, error)

// Flags are the flags of a command that takes many machines.
func (s Spec) Flags() []ufcli.Flag {
	f := append(SelectFlags(), &ufcli.BoolFlag{Name: "all", Usage: "every machine"})
	if s.Destructive {
		f = append(f, &ufcli.BoolFlag{Name: "yes", Usage: "confirm what a selector or --all selects"})
	}
	f = append(f, &ufcli.BoolFlag{Name: "dry-run", Usage: "name the machines, and do nothing"})
	if s.Cheap {
		return append(f, &ufcli.IntFlag{Name: "max-failed", Usage: "end after `N` failures; 0 means never"})
	}
	return append(f, &ufcli.IntFlag{Name: "parallel", Usage: "work on `N` machines at once", Value: 16},
		&ufcli.IntFlag{Name: "max-failed", Usage: "begin no more after `N` failures; 0 means never"})
}

// NoDestination says that the plane knows a machine and nobody here knows how
// it is reached. word is how the caller calls it.
func NoDestination(m Machine, word string) error {
	return fault.New(fault.NotFound, "no_destination", "no SSH destination is known for %s", m.Label()).WithHint("fleet host link %s HOST", word)
}
