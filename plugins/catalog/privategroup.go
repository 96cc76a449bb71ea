package catalog

import (
	"os"
	"strconv"
	"strings"
)

// privateGroup reports whether a group is the account's alone. Many systems
// give each account such a group and the umask 002, so that everything below a
// home directory is writable by a group that has nobody else in it. What cannot
// be told from the files, as a group from a directory service, is not private.
func privateGroup(gid uint32) bool {
	passwd, err := os.ReadFile("/etc/passwd")
	if err != nil {
		return false
	}
	group, err := os.ReadFile("/etc/group")
	if err != nil {
		return false
	}
	return onlyMember(string(passwd), string(group), uint32(os.Geteuid()), gid)
}

// onlyMember looks in the text of passwd(5) and group(5).
func onlyMember(passwd, group string, uid, gid uint32) bool {
	want := strconv.FormatUint(uint64(gid), 10)
	me := ""
	for line := range strings.Lines(passwd) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 7 || f[3] != want {
			continue
		}
		if f[2] != strconv.FormatUint(uint64(uid), 10) {
			return false // it is somebody else's first group too
		}
		me = f[0]
	}
	if me == "" {
		return false
	}
	known := false
	for line := range strings.Lines(group) {
		f := strings.Split(strings.TrimSpace(line), ":")
		if len(f) < 4 || f[2] != want {
			continue
		}
		known = true
		for member := range strings.SplitSeq(f[3], ",") {
			if member != "" && member != me {
				return false
			}
		}
	}
	return known
}
