package fanout

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"strings"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/wire"
)

// Every line of every machine is whole, and names it.
func TestLinesOfManyDoNotRunIntoEachOther(t *testing.T) {
	line := strings.Repeat("x", 100)
	u := &use{spec: Spec{Streams: true}, machines: machines(8), do: func(_ context.Context, o *One) (Outcome, error) {
		for range 200 {
			for _, part := range []string{o.Name, line[:50], line[50:] + "\n"} { // in pieces, as a network does
				if _, err := io.WriteString(o.Out, part); err != nil {
					return Outcome{}, err
				}
			}
		}
		_, err := io.WriteString(o.Err, "no line break")
		return Outcome{}, err
	}}
	out, errOut, exit := u.run(t, "--all")
	if exit != 0 || strings.Count(out, "\n") != 1600 || strings.Count(errOut, ": no line break\n") != 8 {
		t.Errorf("exit %d, %d lines: %s", exit, strings.Count(out, "\n"), errOut)
	}
	for l := range strings.Lines(out) {
		name, rest, _ := strings.Cut(l, ": ")
		if rest != name+line+"\n" {
			t.Fatalf("%q", l)
		}
	}
}

func TestOutputsUnderJSONLines(t *testing.T) {
	u := &use{spec: Spec{Streams: true, FailureExit: fault.ExecFailure}, machines: machines(2), do: func(_ context.Context, o *One) (Outcome, error) {
		if o.Name == "box-1" {
			return Outcome{}, fault.New(fault.NotFound, "no_destination", "no SSH destination is known for box-1").WithHint("fleet host link box-1 HOST")
		}
		io.WriteString(o.Out, "one\ntwo <&> \u2028\n")
		io.WriteString(o.Err, "to stderr\n")
		o.Out.Write([]byte{0xff, 0, '\n', 'e', 'n', 'd'})
		o.Notef("a notice")
		return Outcome{Exit: 7}, nil
	}}
	out, errOut, exit := u.run(t, "--all --jsonl --parallel 1")
	if exit != fault.Partial || errOut != "box-0: a notice\n" {
		t.Errorf("exit %d: %s", exit, errOut)
	}
	golden(t, "outputs-jsonl", out)
	// One that is named: the same lines without a summary.
	u.machines = u.machines[:1]
	one, errOut, exit := u.run(t, "box-0 --jsonl")
	if exit != 7 || errOut != "a notice\n" || one != strings.SplitAfter(out, `"exit":7,"error":null}`+"\n")[0] {
		t.Errorf("exit %d: %s%s", exit, one, errOut)
	}
}

// A line that never ends is passed on in parts, between characters.
func TestLongLinesAreBounded(t *testing.T) {
	var got bytes.Buffer
	l := &lines{render: outputs(Machine{ID: "m_x"}, wire.StreamStdout), out: &got}
	text := strings.Repeat("äöü€𝄞", 30_000)
	for i := 0; i < len(text); i += 1000 {
		l.Write([]byte(text[i:min(i+1000, len(text))]))
		if len(l.kept) >= maxLine {
			t.Fatalf("%d bytes are kept", len(l.kept))
		}
	}
	l.flush()
	all := ""
	for line := range strings.Lines(got.String()) {
		var o wire.Output
		if err := json.Unmarshal([]byte(line), &o); err != nil || o.DataB64 != nil || len(o.Data) > maxLine {
			t.Fatalf("%v: %.80s", err, line)
		}
		all += o.Data
	}
	if all != text {
		t.Error("the parts are not the whole")
	}
}

// Whatever is written in whatever pieces comes out again, byte for byte.
func FuzzOutputsKeepEveryByte(f *testing.F) {
	f.Add([]byte("a\nb\xff\n\x00c"), 2)
	f.Add([]byte("€€€\n"), 1)
	f.Add(bytes.Repeat([]byte("long\xe2\x82\xac"), 20_000), 70_000)
	f.Fuzz(func(t *testing.T, data []byte, step int) {
		if step < 1 {
			return
		}
		var got, human bytes.Buffer
		l := &lines{render: outputs(Machine{ID: "m_x"}, wire.StreamStdout), out: &got}
		h := &lines{render: prefixed("m"), out: &human}
		for rest := data; len(rest) > 0; {
			n := min(step, len(rest))
			for _, w := range []*lines{l, h} {
				if k, err := w.Write(rest[:n]); k != n || err != nil {
					t.Fatal(k, err)
				}
			}
			rest = rest[n:]
		}
		l.flush()
		h.flush()
		var all []byte
		for line := range bytes.Lines(got.Bytes()) {
			var o wire.Output
			if err := json.Unmarshal(line, &o); err != nil || (o.Data == "") == (o.DataB64 == nil) {
				t.Fatal(err, string(line))
			}
			all = append(append(all, o.Data...), o.DataB64...)
		}
		if !bytes.Equal(all, data) {
			t.Errorf("%q came out as %q", data, all)
		}
		for line := range bytes.Lines(human.Bytes()) {
			if !bytes.HasPrefix(line, []byte("m: ")) || line[len(line)-1] != '\n' {
				t.Fatalf("%q", line)
			}
		}
	})
}
