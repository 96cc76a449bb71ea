package quick

import (
	"os"
	"syscall"
)

// Main is fleet: it does the command the short way if there is one, and becomes
// fleet-front, with the same words, if there is none. It returns the exit code.
func Main(args []string, version string) int {
	exit, done, args := Try(args)
	if done {
		return exit
	}
	exe, err := os.Executable()
	if err != nil {
		return fail("cannot find fleet's own directory: "+err.Error(), "")
	}
	front, there := helper(exe, "fleet-front")
	if !there {
		return fail("cannot find fleet-front: it is neither beside "+exe+" nor in "+packaged, "install fleet's programs into one directory")
	}
	if len(args) == 2 && args[1] == "version" { // that of a front which is not there would be no version of fleet
		if _, err := os.Stdout.WriteString("fleet " + version + "\n"); err == nil {
			return 0
		}
	}
	err = syscall.Exec(front, args, os.Environ())
	return fail("cannot run "+front+": "+err.Error(), "")
}

func fail(what, hint string) (exit int) {
	os.Stderr.WriteString("fleet: " + what + "\n")
	if hint != "" {
		os.Stderr.WriteString("hint: " + hint + "\n")
	}
	return 1 // fault.Failure
}
