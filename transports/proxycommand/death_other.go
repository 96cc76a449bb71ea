//go:build !linux

package proxycommand

import "syscall"

// dieWithParent does nothing where the system has no such thing: the end of its
// input and the plugin's process group end the program.
func dieWithParent(*syscall.SysProcAttr) {}
