package localhost

import (
	"golang.org/x/sys/unix"

	"fleet.example/fleet/plugins/sdk"
)

func fsStat(st *unix.Statfs_t) sdk.FSStat {
	unit := uint64(st.Frsize)
	if unit == 0 {
		unit = uint64(st.Bsize)
	}
	return sdk.FSStat{
		BytesTotal: st.Blocks * unit, BytesFree: st.Bavail * unit,
		FilesTotal: st.Files, FilesFree: st.Ffree, ReadOnly: st.Flags&unix.ST_RDONLY != 0,
	}
}
