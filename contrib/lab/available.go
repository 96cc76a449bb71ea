//go:build linux

package lab

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
)

// RequiredEnv is the environment variable that turns "the lab cannot run here" from a skipped test into a failed
// one when its value is "required".
const RequiredEnv = "FLEET_LAB"

// TB is what Need uses of testing.TB.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Need skips the test when the lab cannot run, in Available's words, or fails it under FLEET_LAB=required.
func Need(t TB) {
	t.Helper()
	err := Available()
	switch {
	case err == nil:
	case os.Getenv(RequiredEnv) == "required":
		t.Fatalf("the lab is required and cannot run: %v", err)
	default:
		t.Skipf("the lab cannot run: %v", err)
	}
}

// tools maps each program the lab calls to the Debian package that has it.
var tools = [...]struct{ name, pkg string }{
	{"systemd-nspawn", "systemd-container"},
	{"sshd", "openssh-server"},
	{"ssh-keygen", "openssh-client"},
	{"ip", "iproute2"},
	{"nft", "nftables"},
	{"nsenter", "util-linux"},
	{"unshare", "util-linux"},
	{"setpriv", "util-linux"},
	{"flock", "util-linux"},
}

// Available returns nil when a lab can be brought up here, and otherwise an error that lists, in plain words, all
// that is missing.
func Available() error {
	var why []string
	if os.Geteuid() != 0 {
		why = append(why, "not root")
	}
	if data, err := os.ReadFile("/proc/filesystems"); err != nil || !hasWord(string(data), "overlay") {
		why = append(why, "the kernel has no overlay file system (try: modprobe overlay)")
	}
	for _, tool := range tools {
		if _, err := findTool(tool.name); err != nil {
			why = append(why, fmt.Sprintf("no %s (package %s)", tool.name, tool.pkg))
		}
	}
	if mounts, err := cgroupMounts(); err != nil || len(mounts) == 0 {
		why = append(why, "no cgroup hierarchy is mounted")
	}
	if len(why) == 0 {
		return nil
	}
	return errors.New(strings.Join(why, "; "))
}

func hasWord(text, word string) bool {
	for _, w := range strings.Fields(text) {
		if w == word {
			return true
		}
	}
	return false
}

// findTool looks in PATH and then in the system directories that an ordinary account's PATH leaves out.
func findTool(name string) (string, error) {
	if path, err := exec.LookPath(name); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin/", "/sbin/", "/usr/local/sbin/"} {
		if path, err := exec.LookPath(dir + name); err == nil {
			return path, nil
		}
	}
	return "", fmt.Errorf("cannot find %s", name)
}
