package quick

import (
	"os"
	"syscall"
)

// Main is fleet: it does the command the short way if there is one, and becomes
// fleet-front, with the same words, if there is none. It returns the exit code.
func Main(args []string, version string) int {
	if len(args) == 2 && args[1] == "version" {
		if _, err := os.Stdout.WriteString("fleet " + version + "\n"); err == nil {
			return 0
		}
	}
	exit, done, args := Try(args)
	if done {
		return exit
	}
	exe, err := os.Executable()
	if err != nil {
		os.Stderr.WriteString("fleet: cannot find fleet's own directory: " + err.Error() + "\n")
		return failure
	}
	front, there := helper(exe, "fleet-front")
	if !there {
		os.Stderr.WriteString("fleet: cannot find fleet-front: it is neither beside " + exe + " nor in " + packaged + "\n" +
			"hint: install fleet's programs into one directory\n")
		return failure
	}
	err = syscall.Exec(front, args, os.Environ())
	os.Stderr.WriteString("fleet: cannot run " + front + ": " + err.Error() + "\n")
	return failure
}

const failure = 1 // fault.Failure
