package proxycommand

import "syscall"

// dieWithParent has the kernel end the program when the plugin is killed.
func dieWithParent(a *syscall.SysProcAttr) { a.Pdeathsig = syscall.SIGKILL }
