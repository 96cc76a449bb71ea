package fanout

import (
	"bytes"
	"encoding/json"
	"io"
	"sync"
	"unicode/utf8"

	"fleet.example/fleet/core/wire"
)

const (
	// maxLine is how much of a line is kept until it ends; a longer one is
	// passed on in parts. It bounds what is kept of each machine's streams.
	maxLine = 64 << 10
	// maxBatch is how much is put together for one write.
	maxBatch = 256 << 10
)

// lines takes a stream apart at its line breaks and passes each line on,
// several at once, so that the lines of many machines do not run into each
// other. It is safe for concurrent use.
type lines struct {
	render func(dst, line []byte) []byte
	out    io.Writer // one Write holds whole lines only

	mu   sync.Mutex
	kept []byte // the beginning of a line, shorter than maxLine
	err  error
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var batch []byte
	pass := func(line []byte) {
		if batch = l.render(batch, line); len(batch) >= maxBatch {
			l.pass(batch)
			batch = batch[:0]
		}
	}
	n := len(p)
	for len(p) > 0 && l.err == nil {
		line, whole := p, false
		if i := bytes.IndexByte(p, '\n'); i >= 0 {
			line, whole = p[:i+1], true
		}
		if room := maxLine - len(l.kept); len(line) > room {
			line, whole = line[:room], true
		}
		p = p[len(line):]
		if len(l.kept) > 0 || !whole {
			l.kept = append(l.kept, line...)
			line = l.kept
		}
		if !whole && len(line) < maxLine {
			break
		}
		cut := len(line)
		if line[cut-1] != '\n' {
			cut = wholeRunes(line)
		}
		pass(line[:cut])
		l.kept = append(l.kept[:0], line[cut:]...)
	}
	if len(batch) > 0 {
		l.pass(batch)
	}
	if l.err != nil {
		return 0, l.err
	}
	return n, nil
}

func (l *lines) pass(b []byte) {
	if l.err == nil {
		_, l.err = l.out.Write(b)
	}
}

// flush passes on a line that nothing ended.
func (l *lines) flush() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.kept) > 0 {
		l.pass(l.render(nil, l.kept))
		l.kept = nil
	}
	return l.err
}

// wholeRunes is the length of b without a character that its end cuts in two.
func wholeRunes(b []byte) int {
	for i := 1; i < utf8.UTFMax && i < len(b); i++ {
		if at := len(b) - i; utf8.RuneStart(b[at]) {
			if !utf8.FullRune(b[at:]) {
				return at
			}
			break
		}
	}
	return len(b)
}

// asItIs renders documents, which are lines of their own.
func asItIs(dst, line []byte) []byte { return append(dst, line...) }

// prefixed renders lines for a person.
func prefixed(label string) func(dst, line []byte) []byte {
	return func(dst, line []byte) []byte {
		dst = append(append(append(dst, label...), ": "...), line...)
		if line[len(line)-1] != '\n' {
			dst = append(dst, '\n')
		}
		return dst
	}
}

// outputs renders lines as wire.Output documents.
func outputs(m Machine, stream string) func(dst, line []byte) []byte {
	return func(dst, line []byte) []byte {
		o := wire.Output{Machine: m.ID, Name: m.Name, Stream: stream}
		if utf8.Valid(line) {
			o.Data = string(line)
		} else {
			o.DataB64 = line
		}
		return appendJSON(dst, o)
	}
}

// appendJSON appends a JSON Line.
func appendJSON(dst []byte, v any) []byte {
	b := bytes.NewBuffer(dst)
	e := json.NewEncoder(b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		panic(err) // documents are made of strings and numbers
	}
	return b.Bytes()
}
