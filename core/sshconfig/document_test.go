package sshconfig

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files")

// recorded is what OpenSSH 9.2 printed for one destination, with its own
// defaults beside it.
func recorded(t *testing.T) *Config {
	t.Helper()
	b, err := os.ReadFile("testdata/dump-9.2.txt")
	if err != nil {
		t.Fatal(err)
	}
	said, plain, ok := strings.Cut(string(b), "\n\n")
	if !ok {
		t.Fatal("no defaults in it")
	}
	c, err := configOf("box", &answer{dump: parseDump(said), defaults: parseDefaults(plain), origin: "recorded"}, func(k string) string {
		return map[string]string{"SSH_AUTH_SOCK": "/run/user/1000/agent", "KEYS": "/media/keys"}[k]
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := "testdata/" + name
	if *update {
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Errorf("%s differs; run with -update and look at the difference:\n%s", path, got)
	}
}

func TestTheDocumentAndTheLinesAreGolden(t *testing.T) {
	c := recorded(t)
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(c.Document()); err != nil {
		t.Fatal(err)
	}
	golden(t, "document.golden", b.Bytes())
	b.Reset()
	for _, l := range c.Fields() {
		b.WriteString(l.Keyword + " " + l.Value + "\n")
	}
	golden(t, "fields.golden", b.Bytes())
	b.Reset()
	for _, l := range c.NotHonoured() {
		b.WriteString(l.Keyword + " " + l.Value + "\n")
	}
	golden(t, "not-honoured.golden", b.Bytes())
}

// Types do not depend on how many values there are.
func TestTypesInTheDocumentStay(t *testing.T) {
	one := &Config{dump: parseDump("identityfile /a\nsendenv A\nuser u\nuserknownhostsfile /a\nnewkeyword x\n")}
	two := &Config{dump: parseDump("identityfile /a\nidentityfile /b\nsendenv A\nsendenv B\nuser u\nuserknownhostsfile /a /b\nnewkeyword x\nnewkeyword y\n")}
	for k, v := range one.Document() {
		_, list := v.([]string)
		if _, lists := two.Document()[k].([]string); list != lists {
			t.Errorf("%s: a list is %v, then %v", k, list, lists)
		}
	}
	if got := two.Document()["newkeyword"]; got != "x\ny" {
		t.Errorf("a keyword that nobody knew to repeat: %q", got)
	}
}

func TestEveryTypedFieldComesFromItsKeyword(t *testing.T) {
	c := recorded(t)
	for what, got := range map[string]bool{
		"HostName":                 c.HostName == "h.example",
		"User":                     c.User == "deploy",
		"Port":                     c.Port == 2001,
		"IdentityFiles":            strings.Join(c.IdentityFiles, " ") == "/home/me/.ssh/deploy@h.example /media/keys/two",
		"IdentityFileSet":          c.IdentityFileSet,
		"CertificateFiles":         strings.Join(c.CertificateFiles, " ") == "/home/me/.ssh/box-cert.pub",
		"IdentitiesOnly":           c.IdentitiesOnly,
		"IdentityAgent":            c.IdentityAgent == "/run/user/1000/agent" && c.IdentityAgentSet,
		"PreferredAuthentications": strings.Join(c.PreferredAuthentications, " ") == "publickey keyboard-interactive",
		"PubkeyAcceptedAlgorithms": strings.Join(c.PubkeyAcceptedAlgorithms, " ") == "ssh-ed25519",
		"RequiredRSASize":          c.RequiredRSASize == 3072,
		"HostKeyAlias":             c.HostKeyAlias == "name",
		"HostKeyAlgorithms":        strings.Join(c.HostKeyAlgorithms, " ") == "ssh-ed25519 rsa-sha2-512",
		"CASignatureAlgorithms":    strings.Join(c.CASignatureAlgorithms, " ") == "ssh-ed25519",
		"UserKnownHostsFiles":      strings.Join(c.UserKnownHostsFiles, "|") == "/home/me/.ssh/kh|/my hosts/two",
		"GlobalKnownHostsFiles":    strings.Join(c.GlobalKnownHostsFiles, "|") == "/home/me/global",
		"KnownHosts":               len(c.KnownHosts()) == 3,
		"ProxyCommand":             c.ProxyCommand == "relay h.example 2001 100%",
		"ProxyJump":                c.ProxyJump == "",
		"ProxyFD":                  c.ProxyFD,
		"AddressFamily":            c.AddressFamily == "inet6",
		"BindAddress":              c.BindAddress == "2001:db8::2",
		"BindInterface":            c.BindInterface == "eth7",
		"TCPKeepAlive":             !c.TCPKeepAlive,
		"KexAlgorithms":            strings.Join(c.KexAlgorithms, " ") == "curve25519-sha256",
		"Ciphers":                  strings.Join(c.Ciphers, " ") == "aes256-ctr",
		"MACs":                     strings.Join(c.MACs, " ") == "hmac-sha2-256",
		"RekeyLimit":               c.RekeyLimit == 1<<30,
		"ConnectTimeout":           c.ConnectTimeout.Seconds() == 9,
		"ServerAliveInterval":      c.ServerAliveInterval.Seconds() == 15,
		"ServerAliveCountMax":      c.ServerAliveCountMax == 4,
		"NoPubkeyAuthentication":   !c.NoPubkeyAuthentication,
	} {
		if !got {
			t.Errorf("%s: %+v", what, c)
		}
	}
}

// What is nowhere configured has no list: then whoever connects has its own.
func TestDefaultsAreToldFromChoices(t *testing.T) {
	needSSH(t)
	c, err := Resolver{Getenv: os.Getenv}.Resolve(t.Context(), "box", Flags{ConfigFile: "/dev/null"})
	if err != nil {
		t.Fatal(err)
	}
	if c.IdentityFileSet || c.IdentityAgentSet || c.KexAlgorithms != nil || c.Ciphers != nil || c.MACs != nil || c.HostKeyAlgorithms != nil ||
		c.PubkeyAcceptedAlgorithms != nil || c.CASignatureAlgorithms != nil || c.PreferredAuthentications != nil || len(c.NotHonoured()) != 0 {
		t.Errorf("%+v, %v", c, c.NotHonoured())
	}
}
