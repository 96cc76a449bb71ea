package wire

import (
	"encoding/json"
	"strings"
	"testing"
	"time"
)

func statement() Statement {
	return Statement{Schema: SchemaStatement, Kind: MaterialURL, Version: 2, Planes: []string{"https://a.example"}, URL: "https://b.example:8443",
		SignedAt: Time{Time: time.Unix(1, 0).UTC()}}
}

// What was signed means one thing: a statement has one spelling, and says
// nothing that nobody looks at. // R37
func TestStatementsThatAreNone(t *testing.T) {
	good := statement()
	text, err := json.Marshal(good)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseStatement(text)
	if err != nil || got.Value() != good.URL {
		t.Fatal(got, err)
	}
	for name, b := range map[string]string{
		"empty":        "",
		"cut":          string(text[:len(text)-1]),
		"two":          string(text) + string(text),
		"more":         strings.Replace(string(text), `{`, `{"more":1,`, 1),
		"long":         strings.Replace(string(text), `{`, "{"+strings.Repeat(" ", MaxStatement), 1),
		"other schema": strings.Replace(string(text), SchemaStatement, SchemaMaterial, 1),
	} {
		if s, err := ParseStatement([]byte(b)); err == nil {
			t.Errorf("%s: %+v", name, s)
		}
	}
	for name, change := range map[string]func(*Statement){
		"gate":          func(s *Statement) { s.Kind = MaterialGate },
		"no version":    func(s *Statement) { s.Version = 0 },
		"no time":       func(s *Statement) { s.SignedAt = Time{} },
		"no planes":     func(s *Statement) { s.Planes = nil },
		"plane twice":   func(s *Statement) { s.Planes = append(s.Planes, s.Planes[0]) },
		"plane's path":  func(s *Statement) { s.Planes[0] += "/" },
		"http":          func(s *Statement) { s.URL = "http://b.example" },
		"port 443":      func(s *Statement) { s.URL = "https://b.example:443" },
		"no URL":        func(s *Statement) { s.URL = "" },
		"roots as well": func(s *Statement) { s.RootsPEM = "x" },
		"no roots":      func(s *Statement) { s.Kind, s.URL = MaterialTrust, "" },
		"words":         func(s *Statement) { s.Kind, s.URL, s.RootsPEM = MaterialTrust, "", "system" },
		"a key": func(s *Statement) {
			s.Kind, s.URL, s.RootsPEM = MaterialTrust, "", "-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n"
		},
	} {
		s := statement()
		change(&s)
		if err := s.Check(); err == nil {
			t.Errorf("%s: %+v is one", name, s)
		}
	}
}

func FuzzParseStatement(f *testing.F) {
	s := statement()
	text, _ := json.Marshal(s)
	f.Add(text)
	s.Kind, s.URL, s.RootsPEM = MaterialTrust, "", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"
	text, _ = json.Marshal(s)
	f.Add(text)
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseStatement(b)
		if err != nil {
			return
		}
		again, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		if back, err := ParseStatement(again); err != nil || back.Value() != s.Value() || back.Version != s.Version || len(s.Value()) == 0 {
			t.Errorf("%q is %+v, and then %+v: %v", b, s, back, err)
		}
	})
}
