package tree

import (
	"errors"

	"golang.org/x/sys/unix"
)

func mtimeOf(st *unix.Stat_t) int64 { return st.Mtim.Nano() }
func ctimeOf(st *unix.Stat_t) int64 { return st.Ctim.Nano() }

const (
	seekData = unix.SEEK_DATA
	seekHole = unix.SEEK_HOLE
)

func isDiskFull(err error) bool { return errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) }
