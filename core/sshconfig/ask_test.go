package sshconfig

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// playSSH puts a script by the name of ssh first in PATH.
func playSSH(t *testing.T, script string) {
	t.Helper()
	bin := t.TempDir()
	if err := os.WriteFile(filepath.Join(bin, "ssh"), []byte("#!/bin/sh\n"+script), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", bin+":"+os.Getenv("PATH"))
}

const playedAnswer = "echo 'user u'; echo 'hostname h'; echo 'port 22'; echo 'userknownhostsfile ~/.ssh/kh_%r'; echo 'identityagent ~/a_%r'\n"

// OpenSSH before 7.3 has no -J, and before 8.4 it expands little before it
// prints.
func TestAnOldSSHIsUnderstood(t *testing.T) {
	playSSH(t, `case " $* " in *" -J "*) echo "unknown option -- J" >&2; exit 255;; esac
`+playedAnswer)
	c, err := Resolver{Getenv: os.Getenv}.Resolve(t.Context(), "box", Flags{})
	if err != nil {
		t.Fatal(err)
	}
	_, home := account()
	if len(c.UserKnownHostsFiles) != 1 || c.UserKnownHostsFiles[0] != home+"/.ssh/kh_u" || c.IdentityAgent != home+"/a_u" {
		t.Errorf("%q, %q", c.UserKnownHostsFiles, c.IdentityAgent)
	}
}

func TestABadSSHIsSaidSo(t *testing.T) {
	for what, c := range map[string]struct{ script, words string }{
		"prints nothing":   {"exit 0", "named no host, user or port"},
		"prints garbage":   {"head -c 2000 /dev/urandom", "named no host, user or port"},
		"prints no end":    {"yes", "more than"},
		"fails in silence": {"exit 3", "exit status 3"},
		"has another port": {"echo 'user u'; echo 'hostname h'; echo 'port 0'", "named no host, user or port"},
		"says where it is": {"echo '/etc/ssh/ssh_config: line 7: Bad configuration option: x' >&2; echo '/etc/ssh/ssh_config: terminating, 1 bad configuration options' >&2; exit 255", "ssh_config: line 7: Bad configuration option: x"},
		"says very much":   {"for i in 1 2 3 4 5 6 7; do echo line $i >&2; done; exit 255", "line 4; and 3 more"},
		"says it on a tty": {"echo 'Pseudo-terminal will not be allocated because stdin is not a terminal.' >&2; echo real >&2; exit 255", ": real"},
	} {
		t.Run(what, func(t *testing.T) {
			playSSH(t, c.script)
			start := time.Now()
			_, err := Resolver{Getenv: os.Getenv}.Resolve(t.Context(), "box", Flags{})
			if err == nil || !strings.Contains(err.Error(), c.words) || strings.Contains(err.Error(), "terminating") || time.Since(start) > askTimeout {
				t.Errorf("%v, want %q", err, c.words)
			}
		})
	}
}

// What ssh warns of is passed on, every time.
func TestWarningsArePassedOnAndNotKept(t *testing.T) {
	needSSH(t)
	w := newWorld(t)
	w.write("config", "User u\n")
	for range 2 {
		c := w.ask("box", Flags{Identities: []string{"/is/not/there"}})
		if cached(c) || len(c.Warnings()) != 1 || !strings.Contains(c.Warnings()[0], "/is/not/there") {
			t.Error(c.Origin(), c.Warnings())
		}
	}
}

// Without -F, the account's own file and the system's are what counts.
func TestTheAccountsOwnConfigurationIsKeptLikeAnyOther(t *testing.T) {
	needSSH(t)
	r := Resolver{Getenv: os.Getenv, Cache: testCache(t)}
	for range 2 {
		c, err := r.Inspect(t.Context(), "host-of-no-one.invalid", Flags{})
		if err != nil {
			t.Skipf("this account's configuration is not usable: %v", err)
		}
		fresh, err := Resolver{Getenv: os.Getenv}.Inspect(t.Context(), "host-of-no-one.invalid", Flags{})
		if err != nil {
			t.Fatal(err)
		}
		for i, l := range fresh.Fields() {
			if c.Fields()[i] != l {
				t.Errorf("%s: %v, want %v", c.Origin(), c.Fields()[i], l)
			}
		}
	}
}

func TestAbsoluteFlags(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	dir, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	f := Flags{ConfigFile: "c", Identities: []string{"k", "/abs", "~/k", "%d/k", "${X}/k", "none"}, Jump: "j", Options: []string{"IdentityFile=k"}}
	a := f.Absolute()
	want := strings.Join([]string{dir + "/k", "/abs", "~/k", "%d/k", "${X}/k", "none"}, " ")
	if a.ConfigFile != dir+"/c" || strings.Join(a.Identities, " ") != want || a.Jump != "j" || f.Identities[0] != "k" {
		t.Errorf("%+v", a)
	}
	for _, name := range []string{"", "none", "NONE"} {
		if got := (Flags{ConfigFile: name}).Absolute().ConfigFile; got != name {
			t.Errorf("%q became %q", name, got)
		}
	}
}

func TestFlagsThatCannotBeReadBackAreErrors(t *testing.T) {
	for _, args := range [][]string{{"-p", "x"}, {"-p", "0"}, {"-p"}, {"-Z", "x"}, {"host"}} {
		if f, err := FlagsOf(args); err == nil {
			t.Errorf("%q: %+v", args, f)
		}
	}
}

func TestAddressesNeedNoUserWithoutSSH(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	r := resolver("/home/x")
	for dest, want := range map[string]string{"192.0.2.1": "192.0.2.1:22", "[2001:db8::1]:2200": "[2001:db8::1]:2200"} {
		c, err := r.Resolve(t.Context(), dest, Flags{})
		if err != nil || !strings.HasSuffix(c.String(), "@"+want) {
			t.Errorf("%s: %v, %v", dest, c, err)
		}
	}
	for _, f := range []Flags{{Jump: "x"}, {ConfigFile: "x"}, {Options: []string{"Port=1"}}} {
		if _, err := r.Resolve(t.Context(), "u@192.0.2.1", f); !errors.Is(err, ErrNoSSH) {
			t.Errorf("%+v: %v", f, err)
		}
	}
}
