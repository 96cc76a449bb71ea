package sshconfig

import "syscall"

// changed is when the file's inode changed last, in nanoseconds.
func changed(st *syscall.Stat_t) int64 { return st.Ctimespec.Nano() }
