package wire

import (
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

func TestSessionRequestIsExact(t *testing.T) {
	for name, r := range map[string]SessionRequest{
		"text":              {Argv: []string{"printf", "ä", ""}, Env: map[string]string{"A": "ä"}},
		"a word of bytes":   {Argv: []string{"printf", "\xff\x80", "ä", ""}, Stdin: true},
		"a value of bytes":  {Argv: []string{"true"}, Env: map[string]string{"A": "\xe4", "B": "b"}},
		"many bytes":        {Argv: []string{"true", strings.Repeat("\x01", 1<<20)}},
		"the login's shell": {Shell: true, PTY: &PTY{Term: "xterm", Rows: 1, Cols: 2}, First: []byte("\xff")},
	} {
		b, err := json.Marshal(&r)
		if err != nil {
			t.Fatal(err)
		}
		var got SessionRequest
		if err := json.Unmarshal(b, &got); err != nil || !reflect.DeepEqual(got, r) {
			t.Errorf("%s: %.200s gives %.200v, %v", name, b, got, err)
		}
		if len(b) > 2<<20 {
			t.Errorf("%s takes %d bytes", name, len(b))
		}
		if bytes := strings.Contains(name, "bytes"); strings.Contains(string(b), "_b64") != bytes {
			t.Errorf("%s: %.200s", name, b)
		}
	}
}

func FuzzSessionRequestIsExact(f *testing.F) {
	f.Add("true", "\xff", "A", "b\x80")
	f.Fuzz(func(t *testing.T, a, b, k, v string) {
		if k = strings.ToValidUTF8(k, ""); k == "" {
			return
		}
		r := SessionRequest{Argv: []string{a, b}, Env: map[string]string{k: v}}
		doc, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		var got SessionRequest
		if err := json.Unmarshal(doc, &got); err != nil || !reflect.DeepEqual(got, r) {
			t.Fatalf("%s gives %+v, %v", doc, got, err)
		}
	})
}
