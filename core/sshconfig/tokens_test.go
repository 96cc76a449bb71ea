package sshconfig

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

func testPlace() *place {
	env := map[string]string{"HOME": "/env/home", "A": "~/%h", "SSH_AUTH_SOCK": "/run/agent"}
	return &place{alias: "box", hostName: "h.example", userName: "u", port: 2001, jump: "hop", localUser: "me", home: "/home/me",
		localHost: "laptop.lan", getenv: func(k string) string { return env[k] }, jumpToken: true}
}

func TestTokens(t *testing.T) {
	p := testPlace()
	for in, want := range map[string]string{
		"%%": "%", "%d": "/home/me", "%h": "h.example", "%j": "hop", "%k": "box", "%L": "laptop", "%l": "laptop.lan",
		"%n": "box", "%p": "2001", "%r": "u", "%u": "me", "a%hb%%c": "ah.exampleb%c", "%%h": "%h",
		"${HOME}/x": "/env/home/x", "${A}": "~/%h", "$HOME": "$HOME", "a$": "a$", "~": "/home/me/", "~/x": "/home/me/x", "~//x": "/home/me/x",
		"x~": "x~", "": "",
	} {
		if got, err := p.file(in); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	for _, in := range []string{"%", "a%", "%Q", "%T", "%f", "${", "${}", "${NOBODY_SET_THIS}", "~nobody-by-this-name/x"} {
		if got, err := p.file(in); err == nil {
			t.Errorf("%q: %q, want an error", in, got)
		}
	}
}

// ProxyCommand takes few tokens and no variables, and nothing that a shell
// would take apart.
func TestProxyCommandTokens(t *testing.T) {
	p := testPlace()
	if got, err := p.command("relay %h:%p %r %n %k %% ${HOME}"); err != nil || got != "relay h.example:2001 u box box % ${HOME}" {
		t.Error(got, err)
	}
	for _, in := range []string{"%u", "%d", "%C", "%i", "%l", "%j"} {
		if got, err := p.command(in); err == nil {
			t.Errorf("%s: %q", in, got)
		}
	}
	for _, bad := range []string{"a;b", "$(x)", "a b", "`x`", "-oX", "a'b", "x\n", `x\`} {
		for _, field := range []*string{&p.hostName, &p.userName, &p.alias} {
			old := *field
			if *field = bad; unsafe(bad) {
				if got, err := p.command("relay %h"); err == nil {
					t.Errorf("%q went to a shell: %s", bad, got)
				}
			} else {
				t.Errorf("%q counts as safe", bad)
			}
			*field = old
		}
	}
}

func TestAgentSocket(t *testing.T) {
	p := testPlace()
	for in, want := range map[string]string{"": "/run/agent", "SSH_AUTH_SOCK": "/run/agent", "none": "", "NONE": "", "$SSH_AUTH_SOCK": "/run/agent",
		"$NOBODY": "", "/run/%r": "/run/u", "~/a": "/home/me/a", "${HOME}/a": "/env/home/a"} {
		if got, err := p.agent(in, false); err != nil || got != want {
			t.Errorf("%q: %q, %v, want %q", in, got, err, want)
		}
	}
	if got, err := p.agent("/run/%h", true); err != nil || got != "/run/%h" {
		t.Error("what ssh expanded was expanded again:", got, err)
	}
	if got, err := p.agent("$a-b", false); err == nil {
		t.Error(got)
	}
}

// Before 9.6, OpenSSH knows no %j, and %C is without it.
func TestJumpTokenByVersionOfSSH(t *testing.T) {
	p := testPlace()
	with, err := p.file("%C")
	if err != nil {
		t.Fatal(err)
	}
	p.jumpToken = false
	without, err := p.file("%C")
	if err != nil || with == without {
		t.Fatal(with, without, err)
	}
	if _, err := p.file("%j"); err == nil || !strings.Contains(err.Error(), "9.6") {
		t.Error(err)
	}
	p.jump = ""
	if got := p.hash(true); got != without {
		t.Error("without a jump, the two are not the same")
	}
}

func TestWhatThisSSHDoesWithTokensIsFoundOut(t *testing.T) {
	base := "host host\nuser u\nhostname host\nport 22\n"
	p := place{localHost: localHost(), hostName: "host", userName: "u", port: 22, jump: plainJump}
	for what, c := range map[string]struct {
		text             string
		expands, jumping bool
	}{
		"9.6 and later": {base + "controlpath " + p.hash(true) + "\nidentityagent %\nproxyjump jump\n", true, true},
		"8.4 to 9.5":    {base + "controlpath " + p.hash(false) + "\nidentityagent %\nproxyjump jump\n", true, false},
		"7.3 to 8.3":    {base + "controlpath " + p.hash(false) + "\nidentityagent %%\nproxyjump jump\n", false, false},
		"before 7.3":    {base, false, false},
	} {
		d := parseDefaults(c.text)
		if d.expands != c.expands || d.jumpToken != c.jumping || d.dump.has("proxyjump") || d.dump.has("controlpath") || d.dump.has("identityagent") {
			t.Errorf("%s: %+v", what, d)
		}
	}
}

// What ssh itself makes of each token is what is made of it here.
func TestTokensAgreeWithSSH(t *testing.T) {
	needSSH(t)
	r := Resolver{Getenv: os.Getenv}
	c, err := r.Inspect(t.Context(), "box", Flags{ConfigFile: "/dev/null", Jump: "one,u@two:7", Options: []string{"HostName=h.example", "User=ann", "Port=2001", "HostKeyAlias=k"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, token := range strings.Split("%% %C %d %h %i %j %k %L %l %n %p %r %u", " ") {
		out, err := exec.CommandContext(t.Context(), "ssh", "-G", "-F", "/dev/null", "-J", "one,u@two:7", "-o", "HostName=h.example", "-o", "User=ann", "-o", "Port=2001",
			"-o", "HostKeyAlias=k", "-o", "ControlPath=/x/"+token, "box").Output()
		got, xerr := c.place.file("/x/" + token)
		switch {
		case err != nil && xerr == nil:
			t.Errorf("%s: ssh does not know it, and here it is %q", token, got)
		case err == nil && (xerr != nil || got != parseDump(string(out)).one("controlpath")):
			t.Errorf("%s: %q, %v; ssh says %q", token, got, xerr, parseDump(string(out)).one("controlpath"))
		}
	}
}

func TestHomeOf(t *testing.T) {
	for in, want := range map[string]string{
		"/home/me/.ssh/known_hosts /home/me/.ssh/known_hosts2":   "/home/me",
		"/home/a b/.ssh/known_hosts /home/a b/.ssh/known_hosts2": "/home/a b",
		"/root/.ssh/known_hosts /root/.ssh/known_hosts2":         "/root",
		"//.ssh/known_hosts //.ssh/known_hosts2":                 "/",
		"~/.ssh/known_hosts ~/.ssh/known_hosts2":                 "",
		"":                                                       "",
		"x":                                                      "",
		"/known_hosts2":                                          "",
		"/ /known_hosts2":                                        "",
	} {
		if got := homeOf(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func TestSplitFiles(t *testing.T) {
	for in, want := range map[string]string{
		"/a /b": "/a|/b", "/a b /c": "/a b|/c", "none": "none", "a b": "a|b", "~/a %d/b ${X}/c": "~/a|%d/b|${X}/c", "/a  b": "/a  b", "": "",
	} {
		if got := strings.Join(splitFiles(in), "|"); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}

func FuzzTokens(f *testing.F) {
	for _, s := range []string{"~/%h", "${HOME}/%%", "%C", "${", "%", "~x/y", "$A", "a${A}b%n"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p := testPlace()
		got, err := p.file(s)
		if err == nil && !strings.ContainsAny(s, "%$~") && got != s {
			t.Fatalf("%q became %q", s, got)
		}
		// A value in which every percent sign and dollar is escaped or harmless
		// comes out as it went in.
		plain := strings.NewReplacer("%", "%%", "${", "$ {").Replace(s)
		want := strings.ReplaceAll(s, "${", "$ {")
		if got, err := p.expand(plain, tokensCommon, true); err != nil || got != want {
			t.Fatalf("%q → %q, %v", plain, got, err)
		}
		p.command(s)
		p.agent(s, false)
	})
}

func FuzzDump(f *testing.F) {
	f.Add("host x\nuser u\nhostname x\nport 22\nidentityfile ~/a\nuserknownhostsfile /a b /c\n")
	f.Add("user u\nhostname h\nport 70000\n")
	f.Add("canonicalizePermittedcnames none\nipqos\n\n x\n")
	f.Fuzz(func(t *testing.T, text string) {
		d := parseDump(text)
		n := 0
		for _, l := range d.lines {
			if l.Keyword == "" || l.Keyword != strings.ToLower(l.Keyword) {
				t.Fatalf("keyword %q", l.Keyword)
			}
		}
		seen := map[string]bool{}
		for _, l := range d.lines {
			if !seen[l.Keyword] {
				n += len(d.all(l.Keyword))
			}
			seen[l.Keyword] = true
		}
		if n != len(d.lines) {
			t.Fatal("a line was lost")
		}
		c, err := configOf("box", &answer{dump: d, defaults: parseDefaults(text)}, func(string) string { return "x" })
		if err != nil {
			return
		}
		if c.Port < 1 || c.Port > 65535 || c.HostName == "" || c.User == "" || c.ConnectTimeout < 0 {
			t.Fatalf("%+v", c)
		}
		c.Document()
		c.NotHonoured()
		if len(c.Fields()) != len(d.lines) {
			t.Fatal("a field was lost")
		}
	})
}

func FuzzDefaults(f *testing.F) {
	f.Add("user u\nuserknownhostsfile /h/.ssh/known_hosts /h/.ssh/known_hosts2\nidentityagent %\n")
	f.Fuzz(func(t *testing.T, text string) {
		d := parseDefaults(text)
		if h := homeOf(d.dump.one("userknownhostsfile")); h != "" && !strings.HasPrefix(h, "/") {
			t.Fatal(h)
		}
		parseFilesRead(text)
	})
}

// What is read of a configuration line never makes an Include or a program
// disappear that stands there in plain words.
func FuzzLine(f *testing.F) {
	for _, s := range []string{"Include a b", `Include "a b"`, "Match exec x", `"Match" exec x`, "=Include x", "# Include", "IdentityFile ${X}"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		names, ok := includeNames(s)
		for _, n := range names {
			if ok && !strings.Contains(s, n) {
				t.Fatalf("%q names %q", s, n)
			}
		}
		if s = strings.ReplaceAll(s, "\n", " "); matchIsPlain(strings.ToLower(s)+" exec true") == nil {
			t.Fatalf("%q hides a program", s)
		}
		unvis(s)
	})
}
