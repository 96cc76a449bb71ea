package tree

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/wire"
)

// inDir is a directory that the sender fills.
type inDir struct {
	id    uint32
	fd    *os.File // nil: it could not be made, and nothing in it is
	path  string
	mode  uint32
	mtime int64
	kept  bool // it was there: mode and time stay
	fresh bool // this very attempt made it: nothing is in it that did not come
	left  int  // files of it that are not settled yet
	up    bool // no more will come
}

// parent finds a directory that is being filled, and what an entry of it is
// called here.
func (r *Receiver) parent(id uint32, name string) (*inDir, string, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d := r.dirs[id]
	if d == nil || d.up {
		return nil, "", malformed("directory %d is not open", id)
	}
	if id != 0 {
		return d, name, nil
	}
	if r.began {
		return nil, "", malformed("more than one thing is copied")
	}
	r.began = true
	return d, r.dst.name, nil
}

// pathOf is an entry's, for words.
func pathOf(d *inDir, name string) string {
	if d.id == 0 {
		return d.path
	}
	return d.path + "/" + name
}

// notFile refuses to make a file or link where the caller named a directory.
func (r *Receiver) notFile(d *inDir) error {
	if d.id == 0 && (r.dst.name == "" || r.dst.dirOnly) {
		return refuse(wire.CodeNotADir, "%s: no such directory", r.dst.path)
	}
	return nil
}

func (r *Receiver) dir(p []byte) error {
	f, err := parseDir(p)
	if err != nil {
		return err
	}
	if !r.o.Recursive {
		return malformed("a directory comes where a file was asked for")
	}
	up, name, err := r.parent(f.parent, f.name)
	if err != nil {
		return err
	}
	d := &inDir{id: f.id, path: pathOf(up, name), mode: f.mode, mtime: f.mtime}
	var trouble error
	switch {
	case up.fd == nil:
	case f.parent == 0 && name == "":
		d.fd, d.kept = r.dst.dir, true
	default:
		d.fd, d.kept, trouble = r.makeDir(up.fd, name, f.mode)
		d.fresh = !d.kept && !r.o.Again
	}
	r.mu.Lock()
	if f.id != r.lastDir+1 || len(r.dirs) >= maxDirs {
		r.mu.Unlock()
		if d.fd != nil && d.fd != r.dst.dir {
			d.fd.Close()
		}
		return malformed("directory %d comes after %d, %d are open", f.id, r.lastDir, len(r.dirs))
	}
	r.lastDir = f.id
	r.dirs[f.id] = d
	if d.fd != nil {
		r.result.Directories++
	}
	r.mu.Unlock()
	if trouble != nil {
		return r.fail(d.path, trouble)
	}
	return nil
}

// makeDir makes a directory, or opens the one that is there. Until it is filled
// its owner may write to it.
func (r *Receiver) makeDir(up *os.File, name string, mode uint32) (_ *os.File, kept bool, err error) {
	err = mkdirAt(up, name, 0o700)
	if err != nil && !errors.Is(err, unix.EEXIST) {
		return nil, false, err
	}
	made := err == nil
	fd, err := openDirAt(up, name)
	if err != nil {
		return nil, false, err
	}
	if made {
		if err := fd.Chmod(durable.Mode(mode | 0o700)); err != nil {
			fd.Close()
			return nil, false, err
		}
		return fd, false, nil
	}
	if r.o.Again { // an attempt before may have made it
		st, err := statFile(fd)
		if perm := permOf(st) & 0o777; err == nil && (perm == mode || perm == mode|0o700) {
			return fd, false, fd.Chmod(durable.Mode(mode | 0o700))
		}
	}
	return fd, true, nil
}

func (r *Receiver) dirUp(p []byte) error {
	id, err := parseID(p)
	if err != nil {
		return err
	}
	r.mu.Lock()
	d := r.dirs[id]
	if d == nil || d.up || id == 0 {
		r.mu.Unlock()
		return malformed("directory %d is not open", id)
	}
	d.up = true
	d.left++
	ready := r.leaves(d)
	r.mu.Unlock()
	if ready {
		return r.closeDir(d)
	}
	return nil
}

// closeDir gives a filled directory its time and mode.
func (r *Receiver) closeDir(d *inDir) error {
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.pending--
		r.settled.Broadcast()
	}()
	if d.fd == nil || d.fd == r.dst.dir {
		return nil
	}
	defer d.fd.Close()
	if d.kept {
		return nil
	}
	err := setTimeAt(d.fd, ".", d.mtime)
	if d.mode&0o700 != 0o700 {
		err = errors.Join(err, d.fd.Chmod(durable.Mode(d.mode)))
	}
	if err != nil {
		return r.fail(d.path, err)
	}
	return nil
}

func (r *Receiver) link(p []byte) error {
	f, err := parseLink(p)
	if err != nil {
		return err
	}
	if !r.o.Recursive {
		return malformed("a symbolic link comes where a file was asked for")
	}
	d, name, err := r.parent(f.dir, f.name)
	if err == nil {
		err = r.notFile(d)
	}
	if err != nil || d.fd == nil {
		return err
	}
	if err := placeLink(d.fd, name, f.target, f.mtime); err != nil {
		return r.fail(pathOf(d, name), err)
	}
	r.mu.Lock()
	r.result.Links++
	r.mu.Unlock()
	return nil
}

func (r *Receiver) small(p []byte) error {
	f, err := parseSmall(p)
	if err != nil {
		return err
	}
	d, name, err := r.parent(f.dir, f.name)
	if err == nil {
		err = r.notFile(d)
	}
	if err != nil || d.fd == nil {
		return err
	}
	buf := bytePool.Get().(*[]byte)
	*buf = append((*buf)[:0], f.content...)
	f.content = *buf
	r.mu.Lock()
	d.left++
	r.pending++
	r.mu.Unlock()
	if r.batch = append(r.batch, smallJob{d, name, f, buf}); len(r.batch) >= smallAtOnce {
		r.placeBatch()
	}
	return r.ack()
}

// placeBatch has the small files written that have come.
func (r *Receiver) placeBatch() {
	if len(r.batch) == 0 {
		return
	}
	if r.work == nil {
		r.work = make(chan []smallJob, smallAhead)
		for range smallWriters {
			r.wg.Go(func() {
				for batch := range r.work {
					for _, j := range batch {
						if err := r.placeSmall(j); err != nil {
							r.lost(err)
						}
					}
				}
			})
		}
	}
	r.work <- r.batch
	r.batch = nil
}

const (
	// smallWriters is how many small files are written at a time.
	smallWriters = 4
	// smallAtOnce is how many of those that came together one writer gets: to
	// wake one takes as long as it takes to write a file.
	smallAtOnce = 8
	// smallAhead is how many times that many wait.
	smallAhead = 4
)

var bytePool = sync.Pool{New: func() any { return new([]byte) }}

// smallJob is a small file that is to be written.
type smallJob struct {
	d    *inDir
	name string
	f    smallFrame
	buf  *[]byte // of its content
}

func (r *Receiver) placeSmall(j smallJob) error {
	var err error
	if r.o.Sum.of(j.f.content) != j.f.sum {
		err = refuse(wire.CodeDamaged, "%s: what arrived is not what was sent", pathOf(j.d, j.name))
	} else {
		err = placeSmall(j.d, j.name, j.f)
	}
	size := int64(len(j.f.content))
	bytePool.Put(j.buf)
	if err != nil {
		err = r.fail(pathOf(j.d, j.name), err)
		size = -1
	}
	r.mu.Lock()
	if size >= 0 {
		r.result.Files++
		r.result.Bytes += size
		r.bytes += size
	}
	r.pending--
	ready := r.leaves(j.d)
	r.mu.Unlock()
	if err == nil && ready {
		err = r.closeDir(j.d)
	}
	return err
}

// leaves takes note that an entry of a directory is settled, and reports
// whether it was the last one. The caller holds the lock.
func (r *Receiver) leaves(d *inDir) bool {
	d.left--
	r.settled.Broadcast()
	if !d.up || d.left > 0 {
		return false
	}
	delete(r.dirs, d.id)
	r.pending++ // until it is closed
	return true
}

// tempName is how the names of files begin that are not whole yet.
const tempName = ".fleet-tmp-"

func randomName() string {
	b := make([]byte, 8)
	rand.Read(b)
	return tempName + hex.EncodeToString(b)
}

// partName is the temporary name of a large file, the same in each attempt.
func partName(f largeFrame, name string) string {
	sum := sha256.Sum256(fmt.Appendf(nil, "%d %d %s", f.size, f.mtime, name))
	return tempName + hex.EncodeToString(sum[:10])
}
