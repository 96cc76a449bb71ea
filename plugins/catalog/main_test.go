package catalog_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/plugins/catalog"
	"fleet.example/fleet/plugins/catalog/localhost"
	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/sdk"
)

// built holds the real programs that the tests run: fleet's own plugins, the
// vendor's template and the bad vendor's plugin.
var built string

// envVictim turns the test binary into a host of plugins that is killed.
const envVictim = "FLEET_TEST_VICTIM"

func TestMain(m *testing.M) {
	if os.Getenv(envVictim) != "" {
		victim()
		return
	}
	os.Exit(func() int {
		var err error
		if built, err = os.MkdirTemp("/tmp", "fpb"); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer os.RemoveAll(built)
		for _, p := range []string{"cmd/fleet-plugins", "contrib/vendorplugin/fleet-probe-acme", "contrib/vendorplugin/bad"} {
			out, err := exec.Command("go", "build", "-o", filepath.Join(built, filepath.Base(p)), "fleet.example/fleet/"+p).CombinedOutput()
			if err != nil {
				fmt.Fprintf(os.Stderr, "cannot build %s: %s\n%s", p, err, out)
				return 1
			}
		}
		return m.Run()
	}())
}

// place is a directory whose path is short and whose parents nobody else may write.
func place(t testing.TB) string {
	t.Helper()
	d, err := os.MkdirTemp("/tmp", "fpt")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(d) })
	return d
}

// home is a catalog with everything under one directory: own/ for fleet's own
// plugins, mine/ for the person's, run/ for launches.
func home(t testing.TB) (*catalog.Catalog, string) {
	t.Helper()
	d := place(t)
	for _, n := range []string{"own", "mine", "state"} {
		if err := os.Mkdir(filepath.Join(d, n), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	return catalogIn(d), d
}

func catalogIn(d string) *catalog.Catalog {
	return &catalog.Catalog{
		Dirs: []catalog.Dir{
			{Path: filepath.Join(d, "mine"), Source: "test"},
			{Path: filepath.Join(d, "own"), Source: "test", Own: true},
		},
		PersonLock: filepath.Join(d, "state", lock.FileName),
		InstallDir: filepath.Join(d, "mine"),
		RunBase:    filepath.Join(d, "run"),
		Version:    "9.9.9",
	}
}

// withOwn puts fleet's own plugins into a home.
func withOwn(t testing.TB, d string) {
	t.Helper()
	own := filepath.Join(d, "own")
	if err := os.Link(filepath.Join(built, "fleet-plugins"), filepath.Join(own, "fleet-plugins")); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command(filepath.Join(own, "fleet-plugins"), "lock", own).CombinedOutput(); err != nil {
		t.Fatalf("%s: %s", err, out)
	}
}

// withBad installs the bad vendor's plugin for one way, without asking it.
func withBad(t testing.TB, c *catalog.Catalog, way string) string {
	t.Helper()
	file := "fleet-probe-bad-" + way
	path := filepath.Join(c.InstallDir, file)
	b, err := os.ReadFile(filepath.Join(built, "bad"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o755); err != nil {
		t.Fatal(err)
	}
	sum := sha(b)
	if err := lock.Write(c.PersonLock, lock.Lock{Plugins: []lock.Entry{{File: file, SHA256: sum, Description: sdk.Description{
		Schema: sdk.SchemaDescription, Kind: sdk.KindProbe, Name: "bad-" + way, Version: "6.6.6", Protocols: []string{"fleet.probe.v1"},
	}}}}); err != nil {
		t.Fatal(err)
	}
	return path
}

func here(t testing.TB) *localhost.Host {
	t.Helper()
	f, err := localhost.Gather()
	if err != nil {
		t.Fatal(err)
	}
	f.DataDir = "/tmp"
	return &localhost.Host{F: f}
}

// processesOf lists the live processes that were started in a home, by the
// variable that names their launch's directory.
func processesOf(t testing.TB, home string) (pids []int) {
	t.Helper()
	dirs, err := os.ReadDir("/proc")
	if err != nil {
		t.Skip("there is no /proc to look for processes in")
	}
	for _, d := range dirs {
		pid, err := strconv.Atoi(d.Name())
		if err != nil {
			continue
		}
		env, err := os.ReadFile(filepath.Join("/proc", d.Name(), "environ"))
		if err == nil && strings.Contains(string(env), sdk.EnvRunDir+"="+home+"/") {
			pids = append(pids, pid)
		}
	}
	return pids
}

// launches lists the directories of launches that are there.
func launches(t testing.TB, home string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(filepath.Join(home, "run"))
	if err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// nothingLeft waits for a home to have no process and no launch's directory.
func nothingLeft(t testing.TB, home string) {
	t.Helper()
	for end := time.Now().Add(10 * time.Second); ; {
		pids, dirs := processesOf(t, home), launches(t, home)
		if len(pids) == 0 && len(dirs) == 0 {
			return
		}
		if time.Now().After(end) {
			for _, p := range pids {
				cmd, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", p))
				t.Logf("process %d: %q", p, cmd)
			}
			t.Fatalf("left behind: processes %v, directories %v", pids, dirs)
		}
		time.Sleep(10 * time.Millisecond)
	}
}

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), d)
	t.Cleanup(cancel)
	return ctx
}
