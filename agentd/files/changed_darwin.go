package files

import "syscall"

func changed(s *syscall.Stat_t) (sec, nsec int64) { return s.Ctimespec.Sec, s.Ctimespec.Nsec }
