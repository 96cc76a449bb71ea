package tree

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
)

// Whatever bytes come, the decoder takes frames or complains; what it takes is
// within its bounds, and is read again from what it is written as.
func FuzzFrames(f *testing.F) {
	all := frames(nil).dir(1, 0, "").small(1, "a", "x").link(1, "l", "..").large(1, 1, "big", 300000).block(1, 0, "x").up(1).over()
	f.Add([]byte(all))
	f.Add(appendRange(appendRange(appendRange(nil, Hole, 1, 1, 2), Ask, 1, 0, 0), Keep, 1, 0, 1))
	f.Add(appendAck(appendHave(appendGo(appendID(nil, End, 1), 1, Send, 2), 1, 0, make([]byte, hashLen)), 1, 2))
	f.Fuzz(func(t *testing.T, in []byte) {
		r := NewReader(bytes.NewReader(in))
		for {
			typ, p, err := r.Next()
			if err != nil {
				if err != io.EOF && err != io.ErrUnexpectedEOF && !errors.Is(err, ErrMalformed) {
					t.Errorf("%v", err)
				}
				return
			}
			if len(p) > MaxPayload {
				t.Fatalf("%d bytes", len(p))
			}
			var name string
			var dir uint32
			var back []byte
			switch typ {
			case Dir:
				var d dirFrame
				d, err = parseDir(p)
				name, dir, back = d.name, d.parent, d.append(nil)
			case Link:
				var l linkFrame
				if l, err = parseLink(p); err == nil && (l.target == "" || strings.Contains(l.target, "\x00")) {
					t.Errorf("a link leads to %q", l.target)
				}
				name, dir, back = l.name, l.dir, l.append(nil)
			case Small:
				var s smallFrame
				if s, err = parseSmall(p); err == nil && len(s.content) > MaxSmall {
					t.Errorf("%d bytes", len(s.content))
				}
				name, dir, back = s.name, s.dir, s.append(nil)
			case Large:
				var l largeFrame
				if l, err = parseLarge(p); err == nil && (l.size < 0 || blocks(l.size) < 0) {
					t.Errorf("%d bytes", l.size)
				}
				name, dir, back = l.name, l.dir, l.append(nil)
			case Ask, Keep, Hole:
				_, first, count, err := parseRange(typ, p)
				if err == nil && (first < 0 || count < 0) {
					t.Errorf("%d, %d", first, count)
				}
				continue
			default:
				parseID(p)
				continue
			}
			if err != nil {
				if !errors.Is(err, ErrMalformed) {
					t.Errorf("%v", err)
				}
				continue
			}
			if dir != 0 && (name == "" || name == "." || name == ".." || strings.ContainsAny(name, "/\x00")) || dir == 0 && name != "" {
				t.Errorf("%q is taken for a name", name)
			}
			if again, q, err := NewReader(bytes.NewReader(back)).Next(); err != nil || again != typ || len(q) != len(p) {
				t.Errorf("%q becomes %q, %v", p, q, err)
			}
		}
	})
}
