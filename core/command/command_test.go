package command

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/urfave/cli/v2"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

type got struct {
	Args, Rest, Slice []string
	S                 string
	B, C              bool
	D                 time.Duration
}

func run(t *testing.T, args ...string) (g *got, exit int, out, errOut string) {
	t.Helper()
	action := func(_ context.Context, c *Call) error {
		g = &got{c.Args, c.Rest, c.StringSlice("slice"), c.String("str"), c.Bool("bool"), c.Bool("c"), c.Span("dur")}
		if c.Arg(0) == "fail" {
			return fault.New(fault.NotFound, "not_found", "no such thing").WithHint("look elsewhere")
		}
		if c.Arg(0) == "exit" {
			return &Exit{42}
		}
		return nil
	}
	flags := func() []cli.Flag {
		return append(JSONFlags(true),
			&cli.StringFlag{Name: "str", Aliases: []string{"s"}},
			&cli.BoolFlag{Name: "bool", Aliases: []string{"b"}},
			&cli.BoolFlag{Name: "c"},
			&cli.StringSliceFlag{Name: "slice", Aliases: []string{"l"}},
			DurationFlag("dur", "how `LONG`", time.Minute))
	}
	app := &App{Name: "fleet", Summary: "x", Version: "1",
		Flags: []cli.Flag{&cli.StringFlag{Name: "plane"}},
		Commands: []*Command{
			{Name: "do", Args: "[THING]…", Summary: "does", Max: -1, Flags: flags(), Run: action},
			{Name: "one", Args: "THING", Summary: "takes one", Min: 1, Max: 1, Run: action, FailureExit: 255},
			{Name: "exec", Args: "M -- CMD", Summary: "runs", Min: 1, Max: 1, Rest: RestRequired, Flags: flags(), Run: action},
			{Name: "group", Summary: "groups", Sub: []*Command{{Name: "sub", Summary: "sub", Max: 0, Run: action}}},
		},
		Topics: []Topic{{"exit-codes", "what they mean", "0 is good"}},
	}
	var o, e strings.Builder
	exit = app.run(t.Context(), append([]string{"fleet"}, args...), IO{Stdin: strings.NewReader(""), Stdout: &o, Stderr: &e, Getenv: func(string) string { return "" }})
	return g, exit, o.String(), e.String()
}

func TestFlagsStandAnywhereAndDoNotSplit(t *testing.T) {
	for _, c := range []struct {
		line string
		want got
	}{
		{"do a --str x b", got{Args: []string{"a", "b"}, S: "x", D: time.Minute}},
		{"do --str=x a -b", got{Args: []string{"a"}, S: "x", B: true, D: time.Minute}},
		{"do a -bc", got{Args: []string{"a"}, B: true, C: true, D: time.Minute}},
		{"do a -bsx", got{Args: []string{"a"}, B: true, S: "x", D: time.Minute}},
		{"do a -bs x", got{Args: []string{"a"}, B: true, S: "x", D: time.Minute}},
		{"--plane p do a", got{Args: []string{"a"}, D: time.Minute}},
		{"do a --plane p", got{Args: []string{"a"}, D: time.Minute}},
		{"do -l a=b,c=d -l e,f -", got{Args: []string{"-"}, Slice: []string{"a=b,c=d", "e,f"}, D: time.Minute}},
		{"do a -- -b --str", got{Args: []string{"a", "-b", "--str"}, D: time.Minute}},
		{"do --dur 3d", got{D: 72 * time.Hour}},
		{"exec m -b -- ls -l -- x", got{Args: []string{"m"}, Rest: []string{"ls", "-l", "--", "x"}, B: true, D: time.Minute}},
		{"do --str=--bool", got{S: "--bool", D: time.Minute}},
		{"do --str -x", got{S: "-x", D: time.Minute}},
	} {
		g, exit, _, e := run(t, strings.Fields(c.line)...)
		if exit != 0 || g == nil {
			t.Errorf("%s: exit %d: %s", c.line, exit, e)
			continue
		}
		if d := cmp.Diff(c.want, *g, cmp.Transformer("nil", func(s []string) string { return fmt.Sprint(s) })); d != "" {
			t.Errorf("%s: %s", c.line, d)
		}
	}
}

func TestBadUsageIsExit2AndRunsNothing(t *testing.T) {
	for _, line := range []string{
		"do --nope", "do -z", "do --str", "do -bz", "one", "one a b", "nope", "group nope", "group sub x",
		"exec m", "exec m --", "do --dur 5", "do --dur=-5s", "do --b", "--nope do", "help nope", "do --bool=maybe",
	} {
		g, exit, out, e := run(t, strings.Fields(line)...)
		if exit != 2 || g != nil || out != "" || !strings.HasPrefix(e, "fleet: ") {
			t.Errorf("%s: exit %d, ran %v, stdout %q, stderr %q", line, exit, g != nil, out, e)
		}
	}
}

func TestErrorsAreWordsOrADocument(t *testing.T) {
	_, exit, _, e := run(t, "do", "fail")
	if exit != 5 || e != "fleet: no such thing\nhint: look elsewhere\n" {
		t.Errorf("exit %d, %q", exit, e)
	}
	for _, args := range [][]string{{"do", "--json", "fail"}, {"do", "fail", "--jsonl"}} {
		_, exit, _, e = run(t, args...)
		var doc wire.CLIError
		if err := json.Unmarshal([]byte(e), &doc); err != nil || exit != 5 {
			t.Fatalf("exit %d, %q: %v", exit, e, err)
		}
		if d := cmp.Diff(wire.CLIError{Schema: "fleet.error/v1", Error: wire.CLIErrorDetail{Code: "not_found", Message: "no such thing", Hint: "look elsewhere", Exit: 5}}, doc); d != "" {
			t.Error(d)
		}
	}
	if _, exit, _, e := run(t, "do", "--json", "--nope"); exit != 2 || !strings.HasPrefix(e, `{"schema":"fleet.error/v1"`) {
		t.Errorf("exit %d, %q", exit, e)
	}
	if _, exit, _, _ := run(t, "one", "fail"); exit != 255 {
		t.Errorf("exit %d, want the command's own 255", exit)
	}
	if _, exit, _, e := run(t, "one", "exit"); exit != 42 || e != "" {
		t.Errorf("exit %d, %q; want 42 and silence", exit, e)
	}
}

func TestHelpGoesToStdout(t *testing.T) {
	for line, want := range map[string]string{
		"": "Usage: fleet COMMAND", "help": "exit-codes", "--help": "Commands:", "help do": "--dur LONG", "do -h": "Usage: fleet do [FLAGS] [THING]…",
		"do x --help": "Does.", "help exit-codes": "0 is good", "group": "sub", "help group sub": "Usage: fleet group sub",
	} {
		_, exit, out, e := run(t, strings.Fields(line)...)
		if exit != 0 || !strings.Contains(out, want) || e != "" {
			t.Errorf("%q: exit %d, %q, %q", line, exit, out, e)
		}
	}
}

func FuzzResolve(f *testing.F) {
	f.Add("do\x00-bsx\x00--\x00-l")
	f.Add("")
	f.Add("group\x00")
	f.Fuzz(func(t *testing.T, line string) {
		run(t, strings.Split(line, "\x00")...)
	})
}

func TestWhatCameFromElsewhereCannotControlATerminal(t *testing.T) {
	if got, want := shown("a\x1b[31mb\u009bc\u202ed\x00\r\te\nf\xffg€"), "a�[31mb�c�d��\te\nf�g€"; got != want {
		t.Errorf("%q, not %q", got, want)
	}
}

func TestUnknownIsAskedForTheProgramsCommandsOnlyAndGetsEveryWord(t *testing.T) {
	var name string
	var words []string
	app := &App{Name: "fleet", Summary: "x",
		Flags:    []cli.Flag{&cli.StringFlag{Name: "plane"}},
		Commands: []*Command{{Name: "group", Summary: "groups", Sub: []*Command{{Name: "sub", Summary: "s"}}}},
		Unknown: func(_ context.Context, _ IO, n string, args []string) (int, bool) {
			name, words = n, args
			return 7, true
		},
	}
	std := IO{Stdin: strings.NewReader(""), Stdout: &strings.Builder{}, Stderr: &strings.Builder{}, Getenv: func(string) string { return "" }}
	if exit := app.run(t.Context(), []string{"fleet", "--plane", "https://p", "hello", "-x"}, std); exit != 7 || name != "hello" {
		t.Fatal(exit, name)
	}
	if diff := cmp.Diff([]string{"--plane=https://p", "-x"}, words); diff != "" {
		t.Error(diff)
	}
	name = ""
	if exit := app.run(t.Context(), []string{"fleet", "group", "hello"}, std); exit != fault.Usage || name != "" {
		t.Error(exit, name)
	}
}

func TestHelpIsFilledAndAlignedWithinTheWidth(t *testing.T) {
	long := strings.Repeat("words of help ", 20)
	app := &App{Name: "fleet", Summary: "x", Commands: []*Command{{Name: "do", Summary: strings.TrimSpace(long), Help: long + "\n\n  as it\n  is   typed\n\nlast", Max: 0,
		Flags: []cli.Flag{&cli.StringFlag{Name: "a-flag-with-a-name-that-is-long", Usage: long}}, Run: func(context.Context, *Call) error { return nil }}}}
	for _, args := range [][]string{{"help"}, {"help", "do"}} {
		var out strings.Builder
		if exit := app.run(t.Context(), append([]string{"fleet"}, args...), IO{Stdout: &out, Getenv: func(string) string { return "" }}); exit != 0 {
			t.Fatal(exit)
		}
		for line := range strings.Lines(out.String()) {
			if n := len(strings.TrimSuffix(line, "\n")); n > Width || strings.HasSuffix(line, " \n") {
				t.Errorf("%d: %q", n, line)
			}
		}
		if args := len(args); args == 2 && !strings.Contains(out.String(), "\n\n  as it\n  is   typed\n\nlast\n") {
			t.Errorf("a paragraph that is laid out was filled:\n%s", out.String())
		}
	}
	if got := Wrap(strings.Repeat("x", 100)+" y", "  "); got != strings.Repeat("x", 100)+"\n  y" {
		t.Errorf("%q", got)
	}
}

// A value that the configuration gives to every command is nobody's mistake.
func TestGivenIsWhatTheCommandLineSays(t *testing.T) {
	for _, args := range [][]string{{"do"}, {"do", "--num", "4"}} {
		app := &App{Name: "fleet", Config: func() (map[string]string, error) { return map[string]string{"num": "3"}, nil },
			Commands: []*Command{{Name: "do", Flags: []cli.Flag{&cli.IntFlag{Name: "num", Value: 2}}, Run: func(_ context.Context, c *Call) error {
				if given := len(args) > 1; c.Given("num") != given || c.Int("num") != 3+len(args)/3 {
					t.Errorf("%v: given %v, %d", args, c.Given("n"), c.Int("n"))
				}
				return nil
			}}}}
		var e strings.Builder
		if exit := app.run(t.Context(), append([]string{"fleet"}, args...), IO{Stderr: &e, Getenv: func(string) string { return "" }}); exit != 0 {
			t.Fatal(exit, e.String())
		}
	}
}

func TestNoteControlsNoTerminal(t *testing.T) {
	var b strings.Builder
	c := &Call{IO: IO{Stderr: &b}}
	c.Notef("\r\nfleet: %s", "box: \x1b]0;title\a\rover\u202e")
	if got, want := b.String(), "\r\nfleet: box: �]0;title��over�\n"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}

func TestMisuseIsSaidInOneLine(t *testing.T) {
	app := &App{Name: "t", Commands: []*Command{{Name: "do", Summary: "do it", Max: 0,
		Flags: []cli.Flag{
			&cli.IntFlag{Name: "n"}, &cli.IntFlag{Name: "many"}, &cli.StringFlag{Name: "key", Required: true},
			&cli.BoolFlag{Name: "quiet", EnvVars: []string{"T_QUIET"}}, DurationFlag("wait", "", 0), ChoiceFlag("when", "", "now", nil, "now", "never"),
		},
		Run: func(context.Context, *Call) error { return nil }},
		{Name: "move", Args: "SRC DST", Min: 2, Max: 2}, {Name: "lead", Args: "MACHINE [PORT:]TARGET…", Min: 2, Max: -1},
		{Name: "group", Sub: []*Command{{Name: "two"}}}}}
	for _, c := range []struct{ args, quiet, want string }{
		{"do", "", "t: --key is missing\nhint: usage: t do [FLAGS]\n"},
		{"do --key k -n x", "", "t: -n takes a whole number, not \"x\"\nhint: usage: t do [FLAGS]\n"},
		{"do --key k --many x", "", "t: --many takes a whole number, not \"x\"\nhint: usage: t do [FLAGS]\n"},
		{"do --key k --many 99999999999999999999", "", "t: --many takes a whole number, not \"99999999999999999999\"\nhint: usage: t do [FLAGS]\n"},
		{"do --key k --wait 5", "", "t: --wait: \"5\" is no duration such as 90s, 5m, 12h or 30d\nhint: usage: t do [FLAGS]\n"},
		{"do --key k --quiet=maybe", "", "t: --quiet takes true or false, not \"maybe\"\nhint: usage: t do [FLAGS]\n"},
		{"do --key k --when later", "", "t: --when is one of now, never, not \"later\"\nhint: usage: t do [FLAGS]\n"},
		{"do --key k --qiet", "", "t: unknown flag --qiet\nhint: did you mean --quiet?\n      usage: t do [FLAGS]\n"},
		{"do --key k x", "", "t: no arguments are taken, and \"x\" is one\nhint: usage: t do [FLAGS]\n"},
		{"dp", "", "t: t has no command \"dp\"\nhint: did you mean t do?\n      t help lists the commands\n"},
		{"help dp", "", "t: no command and no topic \"dp\"\nhint: did you mean t help do?\n      t help lists them\n"},
		{"move a", "", "t: DST is missing\nhint: usage: t move SRC DST\n"},
		{"move", "", "t: SRC and DST are missing\nhint: usage: t move SRC DST\n"},
		{"move a b c", "", "t: \"c\" is one argument too many\nhint: usage: t move SRC DST\n"},
		{"lead m", "", "t: TARGET is missing\nhint: usage: t lead MACHINE [PORT:]TARGET…\n"},
		{"group tow", "", "t: t group has no command \"tow\"\nhint: did you mean t group two?\n      t help group lists the commands\n"},
		{"do --key k", "maybe", "t: T_QUIET takes true or false, not \"maybe\"\nhint: usage: t do [FLAGS]\n"},
	} {
		t.Setenv("T_QUIET", c.quiet)
		var out, errOut strings.Builder
		code := app.Main(append([]string{"t"}, strings.Fields(c.args)...), IO{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Getenv: os.Getenv})
		if code != fault.Usage || out.String() != "" || errOut.String() != c.want {
			t.Errorf("%s: %d, %q, %q", c.args, code, out.String(), errOut.String())
		}
	}
}

func TestChoiceIsReadFromEveryPlace(t *testing.T) {
	for _, tt := range []struct{ arg, variable, config, want string }{
		{"", "", "", "now now"}, {"--when=never", "now", "now", "now never"}, {"", "never", "", "now never"}, {"", "", "never", "now never"},
		{"", "later", "", "t: T_WHEN is one of now, never, not \"later\"\nhint: usage: t do [FLAGS]\n"},
		{"", "", "later", "t: configuration: when is one of now, never, not \"later\"\n"},
	} {
		t.Setenv("T_WHEN", tt.variable)
		var out, errOut strings.Builder
		app := &App{Name: "t", Commands: []*Command{{Name: "do", Flags: []cli.Flag{ChoiceFlag("when", "", "now", []string{"T_WHEN"}, "now", "never"), ChoiceFlag("other", "", "now", nil, "now", "never")},
			Run: func(_ context.Context, c *Call) error {
				_, err := out.WriteString(c.String("other") + " " + c.String("when"))
				return err
			}}},
			Config: func() (map[string]string, error) {
				if tt.config == "" {
					return nil, nil
				}
				return map[string]string{"when": tt.config}, nil
			}}
		app.Main(append([]string{"t", "do"}, strings.Fields(tt.arg)...), IO{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Getenv: os.Getenv})
		if got := out.String() + errOut.String(); got != tt.want {
			t.Errorf("%+v: %q", tt, got)
		}
	}
}

func TestSlips(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"ls", "ls", 0}, {"sl", "ls", 1}, {"sesions", "sessions", 1}, {"exex", "exec", 1}, {"kitten", "sitting", 3}, {"", "abc", 3}, {"abc", "", 3}} {
		if got := slips(tt.a, tt.b); got != tt.want {
			t.Errorf("%q to %q: %d, want %d", tt.a, tt.b, got, tt.want)
		}
	}
	if near := nearest("zzzzz", []string{"exec", "logs"}); len(near) != 0 {
		t.Error(near)
	}
}
