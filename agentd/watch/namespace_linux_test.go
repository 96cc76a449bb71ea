package watch

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// inNamespace says that the process is the one that inside started.
const inNamespace = "FLEET_WATCH_NAMESPACE"

// inside runs the test once more, in a user namespace and a mount namespace of its
// own, where limits can be set and directories mounted, or as another account.
// There it reports true.
func inside(t *testing.T, attr *syscall.SysProcAttr) bool {
	t.Helper()
	if os.Getenv(inNamespace) == t.Name() {
		return true
	}
	cmd := exec.Command("/proc/self/exe", "-test.run", "^"+t.Name()+"$", "-test.v")
	dir := t.TempDir()
	must(t, os.Chmod(dir, 0o777))
	for up := dir; len(up) > len(os.TempDir()); up = up[:strings.LastIndexByte(up, '/')] {
		os.Chmod(up, 0o777) // another account goes through
	}
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), inNamespace+"="+t.Name(), "TMPDIR="+dir)
	cmd.SysProcAttr = attr
	out, err := cmd.CombinedOutput()
	var failed *exec.ExitError
	switch {
	case err == nil && strings.Contains(string(out), "--- PASS: "+t.Name()):
	case err == nil, errors.As(err, &failed):
		t.Errorf("%v: %s", err, out)
	default:
		t.Skipf("the system gives no namespace: %v", err)
	}
	return false
}

func namespaces() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Cloneflags: unix.CLONE_NEWUSER | unix.CLONE_NEWNS,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}}, GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}}}
}

// TestTheAccountsLimitsAreNamed, when they are reached: as it begins and in the
// middle. What can be done stands in the hint. // R35
func TestTheAccountsLimitsAreNamed(t *testing.T) {
	if !inside(t, namespaces()) {
		return
	}
	limit := func(name string, n int) {
		t.Helper()
		must(t, os.WriteFile("/proc/sys/user/"+name, []byte(strconv.Itoa(n)), 0o644))
	}
	dir := t.TempDir()
	for i := range 3 {
		must(t, os.Mkdir(fmt.Sprint(dir, "/", i), 0o700))
	}
	limit("max_inotify_watches", 6)
	s := set(t)
	f := watched(t, s, Target{Path: dir})
	for i := range 3 {
		must(t, os.Mkdir(fmt.Sprint(dir, "/new", i), 0o700))
	}
	var ev wire.WatchEvent
	for ev = f.next(); ev.Event == wire.WatchCreated; ev = f.next() {
	}
	if ev.Event != wire.WatchEnded || ev.Error.Code != wire.CodeWatchLimit || !strings.Contains(ev.Error.Message, "max_user_watches is ") ||
		!strings.Contains(ev.Error.Message, dir+"/new2") || !strings.Contains(ev.Error.Hint, "sysctl fs.inotify.max_user_watches=") {
		t.Errorf("%+v %+v", ev, ev.Error)
	}
	// The end of one gives its watches back.
	watched(t, s, Target{Path: dir, Shallow: true})
	limit("max_inotify_instances", 1)
	var refused *Error
	if _, err := s.Open(Target{Dir: open(t, dir), Path: dir}, ""); !errors.As(err, &refused) || refused.Code != wire.CodeWatchLimit ||
		!strings.Contains(refused.Msg, "inotify instances") || !strings.Contains(refused.Hint, "fs.inotify.max_user_instances=") {
		t.Errorf("%v", err)
	}
}

// TestADirectoryAtTwoPlacesIsWatchedAtOne, and that is said of the other. // R35
func TestADirectoryAtTwoPlacesIsWatchedAtOne(t *testing.T) {
	if !inside(t, namespaces()) {
		return
	}
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/a/in", 0o700), os.Mkdir(dir+"/a/in/loop", 0o700))
	if err := unix.Mount(dir+"/a", dir+"/a/in/loop", "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	defer unix.Unmount(dir+"/a/in/loop", unix.MNT_DETACH)
	s := set(t)
	r, err := s.Open(Target{Dir: open(t, dir), Path: dir}, "")
	must(t, err)
	f := &follower{t: t, r: r}
	f.want("unwatched a/in/loop twice/", "ready")
	must(t, os.Mkdir(dir+"/a/in/loop/x", 0o700))
	f.want("created a/x/")
}

// TestADirectoryThatMayNotBeReadIsNamed, and watched once it may. // R35
func TestADirectoryThatMayNotBeReadIsNamed(t *testing.T) {
	if os.Getuid() == 0 && !inside(t, &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}) {
		return
	}
	dir := t.TempDir()
	must(t, os.MkdirAll(dir+"/closed/in", 0o700), os.Chmod(dir+"/closed", 0))
	defer os.Chmod(dir+"/closed", 0o700)
	s := set(t)
	r, err := s.Open(Target{Dir: open(t, dir), Path: dir}, "")
	must(t, err)
	f := &follower{t: t, r: r}
	f.want("unwatched closed forbidden/", "ready")
	must(t, os.Chmod(dir+"/closed", 0o700))
	f.want("attributes closed/", "created closed/in/")
	must(t, os.Mkdir(dir+"/closed/in/x", 0o700))
	f.want("created closed/in/x/")
}
