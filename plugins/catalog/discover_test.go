package catalog_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/sdk"
)

func stateOf(t *testing.T, c *catalog.Catalog, path string) catalog.PathDoc {
	t.Helper()
	doc, err := c.List()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range doc.Paths {
		if p.Path == path {
			return p
		}
	}
	t.Fatalf("%s was not tried: %+v", path, doc.Paths)
	return catalog.PathDoc{}
}

func TestOnlyFilesWithAPluginsNameAreLookedAt(t *testing.T) { // R40, faults: a checksum file was executed
	c, d := home(t)
	withOwn(t, d)
	mark := filepath.Join(d, "ran")
	script := []byte("#!/bin/sh\ntouch " + mark + "\n")
	for _, n := range []string{"fleet-probe-host.sha256", "fleet-probe-", "fleet-widget-x", "README", "fleet-probe-HOST", "fleet-probe-a b"} {
		p := filepath.Join(d, "mine", n)
		if err := os.WriteFile(p, script, 0o755); err != nil {
			t.Fatal(err)
		}
		if s := stateOf(t, c, p); s.State != catalog.StateIgnored || s.Why == "" {
			t.Errorf("%s: %+v", n, s)
		}
	}
	if _, err := c.Find(sdk.KindProbe, "host"); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(mark); err == nil {
		t.Error("a file was executed")
	}
}

func TestDirectoriesAndFilesThatOthersMayWriteAreRefused(t *testing.T) { // R40
	for name, spoil := range map[string]func(d, path string) error{
		"file writable by group":  func(_, p string) error { return errors.Join(os.Chown(p, -1, 12345), os.Chmod(p, 0o775)) },
		"file writable by others": func(_, p string) error { return os.Chmod(p, 0o757) },
		"directory writable by group": func(d, _ string) error {
			mine := filepath.Join(d, "mine")
			return errors.Join(os.Chown(mine, -1, 12345), os.Chmod(mine, 0o770))
		},
		"file of somebody else":      func(_, p string) error { return os.Chown(p, 12345, -1) },
		"directory of somebody else": func(d, _ string) error { return os.Chown(filepath.Join(d, "mine"), 12345, -1) },
		"not executable":             func(_, p string) error { return os.Chmod(p, 0o644) },
		"a directory": func(_, p string) error {
			return errors.Join(os.Remove(p), os.Mkdir(p, 0o755))
		},
		"link into a directory of others": func(d, p string) error {
			open := filepath.Join(d, "open")
			return errors.Join(os.Mkdir(open, 0o700), os.Chmod(open, 0o777), os.Rename(p, filepath.Join(open, "x")), os.Symlink(filepath.Join(open, "x"), p))
		},
		"dangling link": func(_, p string) error { return errors.Join(os.Remove(p), os.Symlink("nowhere", p)) },
	} {
		t.Run(name, func(t *testing.T) {
			c, d := home(t)
			path := withBad(t, c, "fine")
			if err := spoil(d, path); err != nil {
				t.Skip(err) // not root
			}
			if s := stateOf(t, c, path); s.State != catalog.StateRefused || s.Why == "" {
				t.Errorf("%+v", s)
			}
			_, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
			clear(t, err, catalog.CodeNotTaken, path, "not taken")
		})
	}
}

func TestParentThatOthersMayWriteIsRefused(t *testing.T) { // R40
	c, d := home(t)
	deep := filepath.Join(d, "open", "mine")
	if err := errors.Join(os.MkdirAll(deep, 0o700), os.Chmod(filepath.Dir(deep), 0o777)); err != nil {
		t.Fatal(err)
	}
	c.InstallDir, c.Dirs[0].Path = deep, deep
	path := withBad(t, c, "fine")
	_, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
	clear(t, err, catalog.CodeNotTaken, path, filepath.Dir(deep)+" is writable by others")
	// A sticky one lets others add names and not touch ours, as /tmp.
	if err := os.Chmod(filepath.Dir(deep), 0o777|os.ModeSticky); err != nil {
		t.Fatal(err)
	}
	p, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
	if err != nil {
		t.Fatal(err)
	}
	p.Close()
}

func TestUnlockedPluginDoesNotRun(t *testing.T) { // R40
	c, d := home(t)
	path := withBad(t, c, "fine")
	if err := os.Remove(c.PersonLock); err != nil {
		t.Fatal(err)
	}
	_, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
	var e *fault.Error
	if !errors.As(err, &e) || e.Code != catalog.CodeNotTaken || !strings.Contains(e.Hint, "fleet plugin install "+path) {
		t.Fatalf("%v", err)
	}
	// A lock in the person's own directory is not one that the build wrote.
	if err := lock.Write(filepath.Join(d, "mine", lock.FileName), lock.Lock{Plugins: []lock.Entry{{
		File: filepath.Base(path), SHA256: strings.Repeat("a", 64), Description: sdk.Description{
			Schema: sdk.SchemaDescription, Kind: sdk.KindProbe, Name: "bad-fine", Version: "1", Protocols: []string{"fleet.probe.v1"},
		},
	}}}); err != nil {
		t.Fatal(err)
	}
	if _, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine"); !errors.As(err, &e) || e.Code != catalog.CodeNotTaken {
		t.Fatalf("%v", err)
	}
}

func TestProtocolsThatDoNotMeetSayWhatToUpgrade(t *testing.T) { // R41, faults: a protocol bump broke many plugins at once
	for _, v := range []struct{ speaks, code, hint string }{
		{"fleet.probe.v2", catalog.CodeTooNew, "upgrade fleet"},
	} {
		c, _ := home(t)
		path := withBad(t, c, "fine")
		l, err := lock.Read(c.PersonLock)
		if err != nil {
			t.Fatal(err)
		}
		l.Plugins[0].Description.Protocols = []string{v.speaks}
		if err := lock.Write(c.PersonLock, l); err != nil {
			t.Fatal(err)
		}
		_, err = c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
		clear(t, err, v.code, path, v.speaks)
		var e *fault.Error
		if errors.As(err, &e); !strings.Contains(e.Hint, v.hint) {
			t.Errorf("hint %q", e.Hint)
		}
	}
}

func TestLockThatOthersMayWriteOrThatIsTornLocksNothing(t *testing.T) { // R40
	for name, spoil := range map[string]func(c *catalog.Catalog) error{
		"writable": func(c *catalog.Catalog) error { return os.Chmod(c.PersonLock, 0o666) },
		"torn": func(c *catalog.Catalog) error {
			return os.Truncate(c.PersonLock, 100)
		},
	} {
		c, _ := home(t)
		withBad(t, c, "fine")
		if err := spoil(c); err != nil {
			t.Fatal(err)
		}
		_, err := c.LaunchProbe(within(t, 10*time.Second), "bad-fine")
		var e *fault.Error
		if !errors.As(err, &e) || e.Code != catalog.CodeNotTaken || !strings.Contains(e.Msg, lock.FileName) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestInstallLocksAndRemoveForgets(t *testing.T) { // R40
	c, d := home(t)
	withOwn(t, d)
	src := filepath.Join(built, "fleet-probe-acme")
	p, err := c.Install(within(t, 30*time.Second), src)
	if err != nil {
		t.Fatal(err)
	}
	st, err := os.Stat(p.Path)
	if err != nil || st.Mode().Perm() != 0o755 || p.Version != "1.0.0" || p.FirstParty {
		t.Errorf("%+v, %v", p, err)
	}
	run, err := c.LaunchProbe(within(t, 30*time.Second), "acme")
	if err != nil {
		t.Fatal(err)
	}
	if found, err := run.Probe(within(t, 10*time.Second), here(t)); err != nil || len(found) != 1 {
		t.Errorf("%v, %v", found, err)
	}
	run.Close()
	if _, err := c.Install(within(t, 30*time.Second), src); err != nil {
		t.Errorf("installing again: %v", err)
	}
	if err := c.Remove("probe-acme"); err != nil {
		t.Error(err)
	}
	if _, err := c.LaunchProbe(within(t, 10*time.Second), "acme"); err == nil {
		t.Error("it still runs")
	}
	var e *fault.Error
	if err := c.Remove("probe-acme"); !errors.As(err, &e) || e.Exit != fault.NotFound {
		t.Errorf("removing again: %v", err)
	}
	if entries, _ := os.ReadDir(c.InstallDir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	nothingLeft(t, d)
}

func TestInstallRefusesWhatIsNoPluginAndFleetsOwnNames(t *testing.T) { // R40, R41
	c, d := home(t)
	withOwn(t, d)
	b, err := os.ReadFile(filepath.Join(built, "bad"))
	if err != nil {
		t.Fatal(err)
	}
	put := func(name string, content []byte) string {
		p := filepath.Join(d, name)
		if err := os.WriteFile(p, content, 0o755); err != nil {
			t.Fatal(err)
		}
		return p
	}
	for path, code := range map[string]string{
		put("fleet-probe-host", b):                                                  catalog.CodeNotTaken,
		put("fleet-probe-bad-describe-hang", b):                                     catalog.CodeSlow,
		put("fleet-probe-bad-describe-crash", b):                                    catalog.CodeCrashed,
		put("fleet-probe-bad-describe-garbage", b):                                  catalog.CodeSlow,
		put("fleet-probe-bad-describe-flood", b):                                    catalog.CodeGarbled,
		put("fleet-probe-script", []byte("#!/bin/sh\necho '{\"schema\":\"x\"}'\n")): catalog.CodeGarbled,
		put("fleet-probe-text", []byte("hello\n")):                                  catalog.CodeNotStarted,
		put("not-a-plugin", b):                                                      fault.CodeUsage,
	} {
		c.Limits.Describe = 30 * time.Second
		if code == catalog.CodeSlow {
			c.Limits.Describe = time.Second
		}
		_, err := c.Install(within(t, time.Minute), path)
		var e *fault.Error
		if !errors.As(err, &e) || e.Code != code {
			t.Errorf("%s: want %s, got %v", path, code, err)
		}
	}
	if entries, _ := os.ReadDir(c.InstallDir); len(entries) != 0 {
		t.Errorf("left behind: %v", entries)
	}
	nothingLeft(t, d)
}

func TestFirstPartyPluginsConform(t *testing.T) { // design §8: first-party plugins go the vendor's way
	c, d := home(t)
	withOwn(t, d)
	paths := []string{filepath.Join(built, "fleet-probe-acme")}
	for _, n := range []string{"fleet-probe-host", "fleet-service-systemd", "fleet-service-launchd", "fleet-service-plain", "fleet-transport-direct"} {
		paths = append(paths, filepath.Join(d, "own", n))
	}
	for _, p := range paths {
		t.Run(filepath.Base(p), func(t *testing.T) {
			doc, err := c.Test(within(t, 2*time.Minute), p, catalog.Ground{Host: here(t)})
			if err != nil {
				t.Fatal(err)
			}
			for _, k := range doc.Checks {
				if k.Status == "failed" {
					t.Errorf("%s: %s", k.Name, k.Detail)
				}
			}
			if len(doc.Checks) < 7 || !doc.OK {
				t.Errorf("%+v", doc)
			}
		})
	}
	nothingLeft(t, d)
}

func TestBadPluginDoesNotConform(t *testing.T) {
	c, d := home(t)
	c.Limits.Start, c.Limits.Call = 2*time.Second, time.Second
	for _, way := range []string{"crash", "call-crash", "call-unlisted", "call-undescribed"} {
		doc, err := c.Test(within(t, time.Minute), withBad(t, c, way), catalog.Ground{Host: here(t)})
		if err != nil || doc.OK {
			t.Errorf("%s: %+v, %v", way, doc, err)
		}
	}
	nothingLeft(t, d)
}
