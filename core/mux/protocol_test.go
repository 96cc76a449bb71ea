package mux

import (
	"bytes"
	"encoding/binary"
	"io"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"fleet.example/fleet/core/sshconfig"
)

// A message is read to its end and not one byte further: what follows is a
// stream's.
func TestMessagesEndWhereTheStreamBegins(t *testing.T) {
	var b bytes.Buffer
	want := Hello{Op: OpStream, Key: "k", Host: "box", Machine: "m_x", Build: Build{Version: "1", Program: 7}}
	if err := WriteMessage(&b, want); err != nil {
		t.Fatal(err)
	}
	b.WriteString("\x00\x00stream")
	var got Hello
	if err := ReadMessage(&b, &got); err != nil || !cmp.Equal(want, got) {
		t.Fatal(got, err)
	}
	if b.String() != "\x00\x00stream" {
		t.Errorf("%q is left", b.String())
	}
}

func TestMessagesAreBounded(t *testing.T) {
	if err := WriteMessage(io.Discard, Answer{Note: strings.Repeat("x", MaxMessage)}); err == nil {
		t.Error("a message beyond the bound was sent")
	}
	var v Hello
	if err := ReadMessage(bytes.NewReader(binary.BigEndian.AppendUint32(nil, MaxMessage+1)), &v); err == nil {
		t.Error("a message beyond the bound was read")
	}
}

// Whatever makes one connection another changes the key.
func TestKeysTellRoutesApart(t *testing.T) {
	route := func(change func(c *sshconfig.Chain)) string {
		c := &sshconfig.Chain{Jumps: []*sshconfig.Config{{HostName: "bastion", Port: 22, User: "jump"}},
			Target: &sshconfig.Config{HostName: "box", Port: 22, User: "dana", IdentityFiles: []string{"/k"}, IdentityAgent: "/a"}}
		change(c)
		k, err := KeyOf(c)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	seen := map[string]string{}
	for name, change := range map[string]func(*sshconfig.Chain){
		"as it is":   func(*sshconfig.Chain) {},
		"host":       func(c *sshconfig.Chain) { c.Target.HostName = "other" },
		"port":       func(c *sshconfig.Chain) { c.Target.Port = 23 },
		"user":       func(c *sshconfig.Chain) { c.Target.User = "erin" },
		"key":        func(c *sshconfig.Chain) { c.Target.IdentityFiles[0] = "/other" },
		"agent":      func(c *sshconfig.Chain) { c.Target.IdentityAgent = "/b" },
		"no jump":    func(c *sshconfig.Chain) { c.Jumps = nil },
		"jump":       func(c *sshconfig.Chain) { c.Jumps[0].HostName = "bastion2" },
		"jump's key": func(c *sshconfig.Chain) { c.Jumps[0].IdentityFiles = []string{"/k"} },
		"command":    func(c *sshconfig.Chain) { c.Target.ProxyCommand = "nc box 22" },
	} {
		k := route(change)
		if other, taken := seen[k]; taken {
			t.Errorf("%q and %q have one key", name, other)
		}
		seen[k] = name
	}
	if again := route(func(*sshconfig.Chain) {}); seen[again] != "as it is" {
		t.Error("one route has two keys")
	}
}

func FuzzReadMessage(f *testing.F) {
	var b bytes.Buffer
	WriteMessage(&b, Hello{Op: OpToken, Host: "h"})
	f.Add(b.Bytes())
	f.Add([]byte("\x00\x00\x00\x02{}tail"))
	f.Add([]byte("\xff\xff\xff\xff"))
	f.Fuzz(func(t *testing.T, raw []byte) {
		r := bytes.NewReader(raw)
		var h Hello
		if ReadMessage(r, &h) == nil {
			if n := int(binary.BigEndian.Uint32(raw)); r.Len() != len(raw)-4-n {
				t.Errorf("%d bytes are left after a message of %d", r.Len(), n)
			}
		}
		var c sshconfig.Chain
		ReadMessage(bytes.NewReader(raw), &c)
	})
}
