package durable

import "syscall"

const oNoFollow = syscall.O_NOFOLLOW | syscall.O_NONBLOCK
