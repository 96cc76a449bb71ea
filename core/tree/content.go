package tree

import (
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// outFile is a large file that was announced.
type outFile struct {
	largeFrame
	dir  *outDir // nil for the caller's own
	path string
	name string
	file *os.File
	was  version

	verdict  chan byte
	haveAll  chan struct{}
	answered bool  // under the sender's lock, as what follows
	there    int64 // blocks that the receiver may have
	wanted   int64 // the end of the hashes that were asked for
	haveFrom int64
	have     []byte
}

func (o *outFile) release() {
	if o.dir != nil {
		o.file.Close()
		o.dir.release()
	}
}

func (o *outFile) send(s *Sender) error {
	defer func() {
		s.mu.Lock()
		delete(s.open, o.id)
		s.mu.Unlock()
		<-s.large
	}()
	var verdict byte
	s.main.flush()
	select {
	case verdict = <-o.verdict:
	case <-s.ctx.Done():
		return context.Cause(s.ctx)
	}
	if verdict != Send {
		return nil
	}
	err := s.content(o)
	if err == nil {
		var now *unix.Stat_t
		if now, err = statFile(o.file); err == nil && versionOf(now) != o.was {
			err = refuse(wire.CodeChanged, "%s changed while it was read", o.path)
		}
	}
	if err == nil {
		return s.main.put(func(b []byte) []byte { return appendID(b, End, o.id) })
	}
	if s.ctx.Err() != nil {
		return context.Cause(s.ctx)
	}
	if err := s.main.put(func(b []byte) []byte { return appendID(b, Drop, o.id) }); err != nil {
		return err
	}
	return s.skip(o.path, err)
}

// content sends a file's blocks over all lanes.
func (s *Sender) content(o *outFile) error {
	ctx, cancel := context.WithCancelCause(s.ctx)
	defer cancel(nil)
	jobs := make(chan job)
	var workers sync.WaitGroup
	n := 0
	grow := func() {
		s.mu.Lock()
		want := 2 + 2*(len(s.lanes)-1)
		s.mu.Unlock()
		for ; n < want; n++ {
			workers.Go(func() {
				buf := make([]byte, BlockSize)
				for j := range jobs {
					if ctx.Err() != nil {
						continue
					}
					if err := s.work(o, j, buf); err != nil {
						cancel(err)
					}
				}
			})
		}
	}
	err := s.spans(o, func(hole bool, first, count int64) error {
		if hole {
			return s.main.put(func(b []byte) []byte { return appendRange(b, Hole, o.id, first, count) })
		}
		for i := first; i < first+count; i++ {
			j := job{index: i}
			if i < o.there {
				if err := s.fetch(ctx, o, i); err != nil {
					return err
				}
				copy(j.have[:], o.have[(i-o.haveFrom)*hashLen:])
				j.compare = true
			}
			grow()
			select {
			case jobs <- j:
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		}
		return nil
	})
	close(jobs)
	workers.Wait()
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// job is a block to be sent, unless the receiver has it.
type job struct {
	index   int64
	compare bool
	have    [hashLen]byte
}

func (s *Sender) work(o *outFile, j job, buf []byte) error {
	data := buf[:o.length(j.index)]
	if n, err := o.file.ReadAt(data, j.index*BlockSize); n < len(data) {
		if err == io.EOF || err == nil {
			return refuse(wire.CodeChanged, "%s changed while it was read", o.path)
		}
		return err
	}
	if j.compare && sha256.Sum256(data) == j.have {
		return s.main.put(func(b []byte) []byte { return appendRange(b, Keep, o.id, j.index, 1) })
	}
	sum := s.o.Sum.of(data)
	err := s.least().put(func(b []byte) []byte { return appendBlock(b, o.id, j.index, sum, data) })
	if err != nil { // the copy's loss, not the file's trouble
		s.end(err)
	}
	return err
}

// least is the lane with the least to send.
func (s *Sender) least() *lane {
	s.mu.Lock()
	defer s.mu.Unlock()
	best, least := s.lanes[0], s.lanes[0].waiting()
	for _, l := range s.lanes[1:] {
		if n := l.waiting(); n < least {
			best, least = l, n
		}
	}
	return best
}

// fetch has the hashes at hand of what the receiver has at a block.
func (s *Sender) fetch(ctx context.Context, o *outFile, index int64) error {
	s.mu.Lock()
	if index < o.haveFrom+int64(len(o.have)/hashLen) && index >= o.haveFrom && o.wanted > index {
		s.mu.Unlock()
		return nil
	}
	o.haveFrom, o.have, o.wanted = index, o.have[:0], min(index+haveAtOnce, o.there)
	s.mu.Unlock()
	if err := s.main.put(func(b []byte) []byte { return appendRange(b, Ask, o.id, index, 0) }); err != nil {
		return err
	}
	select {
	case <-o.haveAll:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// spans tells a file's content from its holes, in whole blocks.
func (s *Sender) spans(o *outFile, each func(hole bool, first, count int64) error) error {
	count := blocks(o.size)
	if !o.sparse {
		return each(false, 0, count)
	}
	for at := int64(0); at < count; {
		data, err := unix.Seek(int(o.file.Fd()), at*BlockSize, seekData)
		switch {
		case errors.Is(err, unix.ENXIO):
			data = count * BlockSize
		case err != nil: // the file system tells none
			return each(false, at, count-at)
		}
		if first := min(data/BlockSize, count); first > at {
			if err := each(true, at, first-at); err != nil {
				return err
			}
			at = first
		}
		if at == count {
			return nil
		}
		hole, err := unix.Seek(int(o.file.Fd()), max(data, at*BlockSize), seekHole)
		if err != nil {
			return each(false, at, count-at)
		}
		next := min(max(blocks(hole), at+1), count)
		if err := each(false, at, next-at); err != nil {
			return err
		}
		at = next
	}
	return nil
}
