package fanout

import (
	"bytes"
	"context"
	"io"
	"strings"
	"testing"

	"github.com/creack/pty"

	"fleet.example/fleet/core/command"
)

// On a terminal a line says how far it is, and nothing of it stays.
func TestProgressOnlyOnATerminal(t *testing.T) {
	master, tty, err := pty.Open()
	if err != nil {
		t.Fatal(err)
	}
	defer master.Close()
	seen := make(chan string, 1)
	go func() { // ends when the terminal is closed
		b, _ := io.ReadAll(master)
		seen <- string(b)
	}()
	spec := Spec{Does: "stop"}
	app := &command.App{Name: "fleet", Commands: []*command.Command{{Name: "do", Flags: spec.Flags(), Run: func(ctx context.Context, c *command.Call) error {
		sel, err := spec.Parse(c)
		if err != nil {
			return err
		}
		return sel.Each(ctx, c, machines(3), func(context.Context, *One) (Outcome, error) { return Outcome{Words: "stopped"}, nil }, nil)
	}}}}
	var out bytes.Buffer
	exit := app.Main([]string{"fleet", "do", "--all", "--parallel", "1"}, command.IO{Stdin: strings.NewReader(""), Stdout: &out, Stderr: tty,
		Getenv: func(string) string { return "" }})
	tty.Close()
	text := <-seen
	if exit != 0 || !strings.Contains(text, "1 of 3") || !strings.HasSuffix(text, "\r\x1b[K3 ok, 0 failed\r\n") || strings.Contains(out.String(), "\x1b") {
		t.Errorf("exit %d: %q, %q", exit, text, out.String())
	}
}
