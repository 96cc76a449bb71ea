package tree

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

const (
	// aheadBlocks bounds what came of a file before something that is missing.
	aheadBlocks = 4096
	// worthKeeping is how much of a file makes it worth to be gone on with.
	worthKeeping = 1 << 20
	// wideFrom is how large a file is for which lanes are worth while.
	wideFrom = 4 << 20
	page     = 4 << 10
	// writeAtOnce is what one system call writes. Linux takes memory for so much
	// from the processor's own lists of free pages, which are warm; what is
	// larger comes in one piece from what lay free for long, and a virtual
	// machine's host may have to bring that first, which takes several times as
	// long as the copy itself.
	writeAtOnce = 32 << 10
)

// inFile is a large file that is being received.
type inFile struct {
	largeFrame
	dir     *inDir
	to      string // its name here
	tmp     string
	stays   bool // the temporary file is found again
	file    *os.File
	count   int64 // its blocks
	there   int64 // blocks that an attempt before left
	hashed  int64 // of these, those whose hashes the sender has
	next    int64 // every block below is done
	ahead   map[int64]int64
	written int64 // bytes
	kept    int64
	busy    int   // lanes that write to it now
	ended   bool  // the sender has sent all, or will not
	bad     error // why it is not to be
	dropped bool
}

func (r *Receiver) large(p []byte) error {
	f, err := parseLarge(p)
	if err != nil {
		return err
	}
	d, name, err := r.parent(f.dir, f.name)
	if err == nil {
		err = r.notFile(d)
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	bad := f.id != r.lastFile+1 || len(r.files) >= maxFiles
	r.lastFile = f.id
	r.mu.Unlock()
	if bad {
		return malformed("file %d comes out of order, or too many are open", f.id)
	}
	if d.fd == nil {
		return r.verdict(f.id, Refused, 0)
	}
	old, err := inTheWay(d.fd, name)
	if err == nil && r.o.Again && old != nil && old.Size == f.size && mtimeOf(old) == f.mtime {
		r.mu.Lock()
		r.result.Files++
		r.result.Bytes += f.size
		r.result.Kept += f.size
		r.bytes += f.size
		r.mu.Unlock()
		if err := r.verdict(f.id, There, 0); err != nil {
			return err
		}
		return r.ack()
	}
	in := &inFile{largeFrame: f, dir: d, to: name, count: blocks(f.size), ahead: map[int64]int64{}}
	if err == nil {
		err = in.open()
	}
	if err != nil {
		if err := r.verdict(f.id, Refused, 0); err != nil {
			return err
		}
		return r.fail(pathOf(d, name), err)
	}
	r.mu.Lock()
	r.files[f.id] = in
	d.left++
	wide := !r.wide && f.size >= wideFrom && r.o.Wide != nil
	r.wide = r.wide || wide
	r.mu.Unlock()
	if wide {
		r.o.Wide()
	}
	return r.verdict(f.id, Send, in.there)
}

func (r *Receiver) verdict(id uint32, v byte, there int64) error {
	return r.main.put(func(b []byte) []byte { return appendGo(b, id, v, there) })
}

// open opens the temporary file: the one that an attempt before left, if it is
// this account's alone and nobody writes to it, or a new one.
func (f *inFile) open() (err error) {
	f.tmp, f.stays = partName(f.largeFrame, f.to), true
	f.file, err = openAt(f.dir.fd, f.tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	if errors.Is(err, unix.EEXIST) {
		if f.reopen() {
			return nil
		}
		f.tmp, f.stays = randomName(), false
		f.file, err = openAt(f.dir.fd, f.tmp, unix.O_RDWR|unix.O_CREAT|unix.O_EXCL, 0o600)
	}
	if err == nil {
		unix.Flock(int(f.file.Fd()), unix.LOCK_EX|unix.LOCK_NB)
	}
	return err
}

func (f *inFile) reopen() bool {
	st, err := statAt(f.dir.fd, f.tmp)
	if err != nil || kindOf(st) != unix.S_IFREG {
		return false
	}
	file, err := openAt(f.dir.fd, f.tmp, unix.O_RDWR|unix.O_NONBLOCK, 0)
	if err != nil {
		return false
	}
	st, err = statFile(file)
	if err != nil || kindOf(st) != unix.S_IFREG || st.Nlink != 1 || int(st.Uid) != os.Geteuid() || permOf(st) != 0o600 ||
		st.Size > f.size && file.Truncate(f.size) != nil ||
		unix.Flock(int(file.Fd()), unix.LOCK_EX|unix.LOCK_NB) != nil {
		file.Close()
		return false
	}
	f.file, f.there = file, blocks(min(st.Size, f.size))
	return true
}

// leave lets go of a file that is not to be now. What is worth it stays for the
// next attempt.
func (f *inFile) leave() {
	f.file.Close()
	if f.stays && !f.dropped && (f.written >= worthKeeping || f.there*BlockSize >= worthKeeping) {
		return
	}
	removeAt(f.dir.fd, f.tmp)
}

// length is that of a block.
func (f *largeFrame) length(index int64) int {
	return int(min(BlockSize, f.size-index*BlockSize))
}

// file finds one that is open.
func (r *Receiver) file(id uint32) (*inFile, error) {
	f := r.files[id]
	if f == nil || f.ended {
		return nil, malformed("file %d is not open", id)
	}
	return f, nil
}

// ask answers with the hashes of what is there.
func (r *Receiver) ask(p []byte) error {
	id, first, _, err := parseRange(Ask, p)
	if err != nil {
		return err
	}
	r.mu.Lock()
	f, err := r.file(id)
	if err == nil && first >= f.there {
		err = malformed("block %d is not there", first)
	}
	r.mu.Unlock()
	if err != nil {
		return err
	}
	buf, block := make([]byte, 0, haveAtOnce*hashLen), make([]byte, BlockSize)
	upTo := min(first+haveAtOnce, f.there)
	for i := first; i < upTo; i++ {
		b := block[:f.length(i)]
		n, err := f.file.ReadAt(b, i*BlockSize)
		if err != nil && err != io.EOF {
			n = 0
		}
		clear(b[n:])
		sum := sha256.Sum256(b)
		buf = append(buf, sum[:]...)
	}
	r.mu.Lock()
	f.hashed = max(f.hashed, upTo)
	r.mu.Unlock()
	for at := first; at < upTo; {
		n := min(upTo-at, (MaxPayload-64)/hashLen)
		part := buf[(at-first)*hashLen : (at-first+n)*hashLen]
		if err := r.main.put(func(b []byte) []byte { return appendHave(b, id, at, part) }); err != nil {
			return err
		}
		at += n
	}
	return nil
}

// blockJob is a block that is to be written.
type blockJob struct {
	f     *inFile
	index int64
	sum   [hashLen]byte
	data  []byte // of frame
	frame []byte
}

// expect says what is to become of a block. f is nil of one that nobody wants
// any more.
func (r *Receiver) expect(p []byte) (j blockJob, err error) {
	fl := fields{p: p}
	id, index, sum, data := fl.u32(), fl.count(), fl.hash(), fl.rest()
	if err := fl.end(); err != nil {
		return j, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f := r.files[id]
	if r.fatal != nil || f == nil && id <= r.lastFile || f != nil && (f.bad != nil || f.dropped) { // given up meanwhile
		return j, nil
	}
	if f == nil || index >= f.count || len(data) != f.length(index) {
		return j, malformed("block %d of file %d, with %d bytes", index, id, len(data))
	}
	f.busy++
	r.writing++
	return blockJob{f: f, index: index, sum: sum, data: data, frame: p}, nil
}

// block writes one. It is called by every lane but the main one.
func (r *Receiver) block(p []byte) error {
	j, err := r.expect(p)
	if err != nil || j.f == nil {
		return err
	}
	return r.write(j)
}

const (
	// blockWriters is how many blocks of the main lane are compared and written
	// at a time, while the next ones are received. A file system takes one write
	// to a file at a time, and a second writer waits for that without sleeping.
	blockWriters = 1
	// blocksAhead is how many may wait for that.
	blocksAhead = 2
)

// later has a block of the main lane written, and keeps its frame until then.
func (r *Receiver) later(p []byte) error {
	j, err := r.expect(p)
	if err != nil || j.f == nil {
		return err
	}
	if r.blocks == nil {
		r.blocks = make(chan blockJob, blocksAhead)
		r.frames = make(chan []byte, blocksAhead+blockWriters+1)
		for range blocksAhead + blockWriters + 1 {
			r.frames <- nil
		}
		for range blockWriters {
			r.wg.Go(func() {
				for j := range r.blocks {
					err := r.write(j)
					r.frames <- j.frame
					if err != nil {
						r.lost(err)
					}
				}
			})
		}
	}
	r.main.swap((<-r.frames)[:0])
	r.blocks <- j
	return nil
}

func (r *Receiver) write(j blockJob) error {
	f := j.f
	defer func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.writing--
		r.settled.Broadcast()
	}()
	var err error
	if r.o.Sum.of(j.data) != j.sum {
		err = refuse(wire.CodeDamaged, "%s: what arrived is not what was sent", pathOf(f.dir, f.to))
	} else {
		err = f.write(j.index, j.data)
	}

	r.mu.Lock()
	f.busy--
	if err != nil && f.bad == nil {
		f.bad = err
	}
	if err == nil {
		f.written += int64(len(j.data))
		r.bytes += int64(len(j.data))
		err = f.done(j.index, 1)
	} else if !isDiskFull(err) {
		err = nil // the file's trouble, not the copy's
	} else {
		err = told(err, pathOf(f.dir, f.to))
	}
	settle := f.settles(r)
	r.mu.Unlock()
	if err == nil && settle {
		err = r.settle(f)
	}
	if err != nil {
		return err
	}
	return r.ack()
}

// write puts a block in its place. Of a file with holes in it, pages of zeros
// are left out where none was written before.
func (f *inFile) write(index int64, data []byte) error {
	at := index * BlockSize
	holes := f.sparse && index >= f.there
	for len(data) > 0 {
		n := min(writeAtOnce, len(data))
		if holes {
			for n = 0; n < min(writeAtOnce, len(data)) && !isZero(data[n:min(n+page, len(data))]); {
				n = min(n+page, len(data))
			}
		}
		if n > 0 {
			if _, err := f.file.WriteAt(data[:n], at); err != nil {
				return err
			}
		} else {
			n = min(page, len(data))
		}
		data, at = data[n:], at+int64(n)
	}
	return nil
}

var zeros [BlockSize]byte

func isZero(b []byte) bool { return bytes.Equal(b, zeros[:len(b)]) }

// done notes that blocks are as they shall be.
func (f *inFile) done(first, count int64) error {
	if _, twice := f.ahead[first]; twice || first < f.next {
		return malformed("block %d comes twice", first)
	}
	if first != f.next {
		if f.ahead[first] = count; len(f.ahead) > aheadBlocks {
			return malformed("block %d does not come", f.next)
		}
		return nil
	}
	for more := true; more; {
		f.next += count
		if count, more = f.ahead[f.next]; more {
			delete(f.ahead, f.next)
		}
	}
	return nil
}

// span takes note of blocks that the sender leaves out.
func (r *Receiver) span(t Type, p []byte) error {
	id, first, count, err := parseRange(t, p)
	if err != nil {
		return err
	}
	r.mu.Lock()
	f, err := r.file(id)
	switch {
	case err != nil:
	case count == 0 || first >= f.count || count > f.count-first:
		err = malformed("blocks %d and %d more of file %d", first, count, id)
	case t == Keep && first+count > f.hashed:
		err = malformed("block %d is kept, and was not shown", first)
	}
	if err != nil || f.bad != nil {
		r.mu.Unlock()
		return err
	}
	there := f.there
	r.mu.Unlock()
	if t == Hole { // what an attempt before wrote there is not zero perhaps
		block := make([]byte, BlockSize)
		for i := first; i < min(first+count, there); i++ {
			b := block[:f.length(i)]
			n, err := f.file.ReadAt(b, i*BlockSize)
			if (err == nil || err == io.EOF) && isZero(b[:n]) {
				continue
			}
			if _, err := f.file.WriteAt(zeros[:len(b)], i*BlockSize); err != nil {
				return r.spoil(f, err)
			}
		}
	}
	size := min((first+count)*BlockSize, f.size) - first*BlockSize
	r.mu.Lock()
	if t == Keep {
		f.kept += size
	}
	r.bytes += size
	err = f.done(first, count)
	settle := f.settles(r)
	r.mu.Unlock()
	if err == nil && settle {
		err = r.settle(f)
	}
	if err != nil {
		return err
	}
	return r.ack()
}

func (r *Receiver) spoil(f *inFile, err error) error {
	if isDiskFull(err) {
		return told(err, pathOf(f.dir, f.to))
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	f.bad = err
	return nil
}

// ended takes note of a file of which no more comes on this connection.
func (r *Receiver) ended(t Type, p []byte) error {
	id, err := parseID(p)
	if err != nil {
		return err
	}
	r.mu.Lock()
	f, err := r.file(id)
	if err != nil {
		r.mu.Unlock()
		return err
	}
	f.ended = true
	f.dropped = f.dropped || t == Drop
	settle := f.settles(r)
	r.mu.Unlock()
	if settle {
		return r.settle(f)
	}
	return nil
}

// settles reports whether a file's fate is known, once. The caller holds the lock.
func (f *inFile) settles(r *Receiver) bool {
	return r.files[f.id] == f && f.ended && f.busy == 0 && (f.next == f.count || f.bad != nil || f.dropped)
}

// settle gives a file its name, or lets go of it.
func (r *Receiver) settle(f *inFile) error {
	err := f.bad
	if err == nil && !f.dropped {
		err = f.place()
	}
	if err != nil || f.dropped {
		f.dropped = true
		f.leave()
	}
	r.mu.Lock()
	delete(r.files, f.id)
	if err == nil && !f.dropped {
		r.result.Files++
		r.result.Bytes += f.size
		r.result.Kept += f.kept
	}
	d := f.dir
	ready := r.leaves(d)
	r.mu.Unlock()
	if err != nil {
		if err := r.fail(pathOf(d, f.to), err); err != nil {
			return err
		}
	}
	if ready {
		return r.closeDir(d)
	}
	return nil
}

func (f *inFile) place() error {
	if err := f.file.Truncate(f.size); err != nil { // a hole at its end
		return err
	}
	old, err := inTheWay(f.dir.fd, f.to)
	if err != nil {
		return err
	}
	return place(f.dir.fd, f.file, f.tmp, f.to, f.mode, f.mtime, old)
}
