package files

import "syscall"

func changed(s *syscall.Stat_t) (sec, nsec int64) { return int64(s.Ctim.Sec), int64(s.Ctim.Nsec) }
