package quick

import (
	"errors"
	"os"
	"strconv"
	"syscall"
)

// packaged is where a package puts the programs that are not in PATH.
const packaged = "/usr/lib/fleet"

// host is the fleet-host that belongs to a front, as mux.HostProgram finds it.
func host(exe string) string {
	path, _ := helper(exe, "fleet-host")
	return path
}

// helper finds one of fleet's programs beside another, or where a package puts
// it; that is also its place if it is nowhere.
func helper(exe, name string) (path string, there bool) {
	exe = resolved(exe)
	for i := len(exe) - 1; i >= 0; i-- {
		if exe[i] == '/' {
			if beside := exe[:i+1] + name; runs(beside) {
				return beside, true
			}
			break
		}
	}
	path = packaged + "/" + name
	return path, runs(path)
}

func runs(path string) bool {
	st, err := os.Stat(path)
	return err == nil && st.Mode().IsRegular() && st.Mode().Perm()&0o111 != 0
}

// Name is the socket's name for an environment and a fleet-host: it has a digest
// of all that makes one server another, so that a front does not ask one that
// would decline. The server looks at what the front says and not at the name.
func Name(getenv func(string) string, host string) string {
	sum := uint64(14695981039346656037) // FNV-1a
	add := func(s string) {
		for i := range len(s) {
			sum = (sum ^ uint64(s[i])) * 1099511628211
		}
		sum *= 1099511628211 // a byte of 0 ends it
	}
	for _, k := range []string{"HOME", "XDG_STATE_HOME", "XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "FLEET_PLUGIN_DIR"} {
		add(getenv(k))
	}
	add(host)
	return "quick-" + strconv.FormatUint(sum, 16) + ".sock"
}

var errDir = errors.New("no private directory")

// Dir is the person's directory for sockets, if it is there and closed to
// others: that of state.Dirs, which is made by the commands that listen.
func Dir(getenv func(string) string, uid int) (string, error) {
	id := strconv.Itoa(uid)
	for _, base := range []string{getenv("XDG_RUNTIME_DIR"), "/run/user/" + id} {
		if base != "" && base[0] == '/' && private(base, uid) {
			return check(base+"/fleet", uid)
		}
	}
	return check("/tmp/fleet-"+id, uid)
}

func check(dir string, uid int) (string, error) {
	if !private(dir, uid) {
		return "", errDir
	}
	return dir, nil
}

func private(dir string, uid int) bool {
	st, err := os.Lstat(dir)
	if err != nil || !st.IsDir() || st.Mode().Perm()&0o077 != 0 {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && int(sys.Uid) == uid
}
