//go:build linux

package labcmd_test

import (
	"bytes"
	"encoding/json"
	"os"
	"strconv"
	"strings"
	"testing"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/labcmd"
)

// mainEnv makes the test binary the command, so that --detach has a program to start.
const mainEnv = "LABCMD_TEST_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(mainEnv) != "" {
		os.Exit(labcmd.Main(os.Args[1:], os.Stdout, os.Stderr))
	}
	os.Exit(m.Run())
}

func run(args ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	status = labcmd.Main(args, &out, &errs)
	return status, out.String(), errs.String()
}

func TestWrongArgumentsExit2(t *testing.T) {
	for _, args := range [][]string{{}, {"sideways"}, {"up", "-n", "0"}, {"up", "extra"}, {"exec", "h1"}, {"down", "x"}, {"ls", "x"}} {
		if status, _, stderr := run(args...); status != 2 || !strings.Contains(stderr, "usage: lab up") {
			t.Errorf("%q: exit %d, %s", args, status, stderr)
		}
	}
}

func TestUpExecLsDown(t *testing.T) {
	lab.Need(t)
	t.Setenv(mainEnv, "1")
	status, stdout, stderr := run("up", "-n", "2", "--account", "someone", "--detach")
	if status != 0 {
		t.Fatalf("up: exit %d: %s", status, stderr)
	}
	var r lab.Record
	if err := json.Unmarshal([]byte(stdout), &r); err != nil {
		t.Fatal(err)
	}
	id := strconv.Itoa(r.ID)
	t.Cleanup(func() {
		if status, _, stderr := run("down", id); status != 0 && !strings.Contains(stderr, "no lab") {
			t.Errorf("down: %s", stderr)
		}
	})
	if len(r.Hosts) != 2 || r.Hosts[1].Name != "h2" || r.Hosts[1].Account != "someone" || !r.Hosts[1].Up {
		t.Fatalf("hosts: %+v", r.Hosts)
	}
	addr := r.Hosts[1].Addr
	if status, stdout, stderr := run("exec", addr, "--", "sh", "-c", "hostname; id -un"); status != 0 || stdout != "h2\nsomeone\n" {
		t.Errorf("exec: exit %d, %q, %s", status, stdout, stderr)
	}
	if status, _, _ := run("exec", "--account", "root", addr, "--", "sh", "-c", "exit 7"); status != 7 {
		t.Errorf("exec: exit %d, want the command's 7", status)
	}
	if status, stdout, _ := run("ls"); status != 0 || !strings.Contains(stdout, addr) {
		t.Errorf("ls: exit %d, %s", status, stdout)
	}
	if status, _, stderr := run("down", id); status != 0 {
		t.Errorf("down: exit %d: %s", status, stderr)
	}
	if _, stdout, _ := run("ls"); strings.Contains(stdout, addr) {
		t.Errorf("after down: %s", stdout)
	}
}
