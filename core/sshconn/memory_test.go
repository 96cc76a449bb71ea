package sshconn_test

import (
	"errors"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"testing"
	"time"
)

// zeros is a file of zeros, which takes no memory.
type zeros struct{ at, size int64 }

func (z *zeros) Read(p []byte) (int, error) {
	if z.at == z.size {
		return 0, io.EOF
	}
	n := min(int64(len(p)), z.size-z.at)
	clear(p[:n])
	z.at += n
	return int(n), nil
}

func (z *zeros) ReadAt(p []byte, off int64) (int, error) {
	n := min(int64(len(p)), max(z.size-off, 0))
	clear(p[:n])
	if n < int64(len(p)) {
		return int(n), io.EOF
	}
	return int(n), nil
}

func (z *zeros) Seek(offset int64, whence int) (int64, error) {
	if whence != io.SeekStart {
		return 0, errors.New("not needed")
	}
	z.at = offset
	return offset, nil
}

// An upload takes no more memory than it has bytes under way, whatever its size
// and however it goes.
func TestUploadIsBoundedInMemory(t *testing.T) {
	const size, most = 96 << 20, 40 << 20
	for name, way := range map[string]struct {
		config string
		rtt    time.Duration
		how    string
	}{
		"near": {how: "sftp"},
		"far":  {rtt: 12 * time.Millisecond, how: "sftp"},
		"cat":  {config: "ForceCommand case $SSH_ORIGINAL_COMMAND in *sftp*) exit 1;; esac; exec sh -c \"$SSH_ORIGINAL_COMMAND\"", how: "cat"},
	} {
		t.Run(name, func(t *testing.T) {
			s := server(t, way.config)
			o := operator(t, s)
			if way.rtt > 0 {
				o = o.away(t, s, way.rtt)
			}
			c := o.confirmed(t)
			path := filepath.Join(t.TempDir(), "x")
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			before, worst, last := m.HeapAlloc, uint64(0), int64(0)
			how, err := c.Upload(t.Context(), path, &zeros{size: size}, size, func(sent int64) {
				if sent-last < 4<<20 {
					return
				}
				last = sent
				runtime.ReadMemStats(&m)
				worst = max(worst, m.HeapAlloc)
			})
			if err != nil || how != way.how {
				t.Fatalf("%s, %v", how, err)
			}
			if st, err := os.Stat(path); err != nil || st.Size() != size {
				t.Errorf("%v, %v", st, err)
			}
			if worst > before+most {
				t.Errorf("%d MiB for an upload of %d", (worst-before)>>20, size>>20)
			}
		})
	}
}
