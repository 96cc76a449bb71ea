package watch

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"sync"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

const (
	// maxQueue bounds the notices that were taken from the kernel and not looked
	// at yet, in bytes.
	maxQueue = 8 << 20
	// noticeCost is what a notice takes beside its name.
	noticeCost = 48
	// readSize is how much is read from the kernel at a time. A notice is at most
	// 16 bytes and a name with its zero byte (inotify(7)).
	readSize = 64 << 10
)

// notice is an inotify event.
type notice struct {
	wd     int
	mask   uint32
	cookie uint32
	name   string
}

// structural reports whether it may change what directory a name leads to.
func (n notice) structural() bool {
	return n.mask&unix.IN_ISDIR != 0 && n.mask&(unix.IN_CREATE|unix.IN_DELETE|unix.IN_MOVED_FROM|unix.IN_MOVED_TO) != 0
}

// binding is a name in a watched directory.
type binding struct {
	wd   int
	name string
}

// queue is an inotify instance and what was taken from it, in order. A goroutine
// takes as it comes, so that the kernel's own queue stays short whatever takes its
// time here.
type queue struct {
	file *os.File // the instance, non-blocking
	fd   int
	come chan struct{} // holds one when something came

	mu       sync.Mutex
	list     []notice
	head     int
	taken    uint64 // how many left it
	bytes    int
	bindings map[binding]int // how many structural notices of it there are
	err      error
	buf      []byte
	done     chan struct{}
}

func newQueue() (*queue, error) {
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		return nil, err
	}
	q := &queue{fd: fd, file: os.NewFile(uintptr(fd), "inotify"), come: make(chan struct{}, 1), bindings: map[binding]int{},
		buf: make([]byte, readSize), done: make(chan struct{})}
	conn, err := q.file.SyscallConn()
	if err != nil {
		q.file.Close()
		return nil, err
	}
	go func() {
		defer close(q.done)
		for q.collect(conn.Read) {
			select {
			case q.come <- struct{}{}:
			default:
			}
		}
	}()
	return q, nil
}

// collect waits until something can be taken, and takes it.
func (q *queue) collect(read func(func(uintptr) bool) error) bool {
	more := false
	err := read(func(uintptr) bool {
		n, err := q.drain()
		more = err == nil
		return n > 0 || err != nil
	})
	if err != nil { // closed
		return false
	}
	if !more {
		select {
		case q.come <- struct{}{}:
		default:
		}
	}
	return more
}

// drain takes everything that the kernel has: when it returns, every notice that
// was queued before the call is in the list, or err is set.
func (q *queue) drain() (int, error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	took := 0
	for q.err == nil {
		n, err := unix.Read(q.fd, q.buf)
		switch {
		case errors.Is(err, unix.EINTR):
			continue
		case errors.Is(err, unix.EAGAIN):
			return took, nil
		case err != nil:
			q.err = err
		case q.bytes > maxQueue:
			q.err = overflow{wire.OverflowKernel}
		default:
			q.parse(q.buf[:n])
			took += n
		}
	}
	return took, q.err
}

// parse adds what the kernel gave to the list.
func (q *queue) parse(b []byte) {
	for len(b) >= unix.SizeofInotifyEvent {
		size := unix.SizeofInotifyEvent + int(binary.NativeEndian.Uint32(b[12:]))
		if size > len(b) {
			q.err = errors.New("the kernel's notice is cut short")
			return
		}
		name, _, _ := bytes.Cut(b[unix.SizeofInotifyEvent:size], []byte{0})
		q.add(notice{int(int32(binary.NativeEndian.Uint32(b))), binary.NativeEndian.Uint32(b[4:]), binary.NativeEndian.Uint32(b[8:]), string(name)})
		b = b[size:]
	}
}

func (q *queue) add(n notice) {
	q.list = append(q.list, n)
	q.bytes += noticeCost + len(n.name)
	if n.structural() {
		q.bindings[binding{n.wd, n.name}]++
	}
}

// next takes the first notice out.
func (q *queue) next() (n notice, ok bool, err error) {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.list) {
		return n, false, q.err
	}
	n = q.list[q.head]
	q.remove(q.head)
	return n, true, nil
}

// pair takes out what the name was moved to that was moved from with the cookie.
func (q *queue) pair(cookie uint32) (n notice, ok bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for i := q.head; i < len(q.list) && i < q.head+pairWithin; i++ {
		if n = q.list[i]; n.cookie == cookie && n.mask&unix.IN_MOVED_TO != 0 {
			q.remove(i)
			return n, true
		}
	}
	return notice{}, false
}

// pairWithin is how many notices may stand between the two of a rename: the
// kernel queues them one after the other, and only other processors' come between.
const pairWithin = 4096

func (q *queue) remove(i int) {
	n := q.list[i]
	q.bytes -= noticeCost + len(n.name)
	if n.structural() {
		b := binding{n.wd, n.name}
		if q.bindings[b]--; q.bindings[b] == 0 {
			delete(q.bindings, b)
		}
	}
	copy(q.list[q.head+1:i+1], q.list[q.head:i])
	q.list[q.head] = notice{}
	q.head++
	q.taken++
	if q.head == len(q.list) {
		q.list, q.head = q.list[:0], 0
		if cap(q.list) > 1<<14 {
			q.list = nil
		}
	} else if q.head > 1<<14 && q.head > len(q.list)/2 {
		q.list, q.head = append([]notice(nil), q.list[q.head:]...), 0
	}
}

// moving reports whether a notice waits that may change what directory the name
// leads to.
func (q *queue) moving(wd int, name string) bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.bindings[binding{wd, name}] > 0
}

// waiting is the number of the last notice that waits, and 0 when none does.
func (q *queue) waiting() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.head == len(q.list) {
		return 0
	}
	return q.taken + uint64(len(q.list)-q.head)
}

// current is the number of the notice that was taken out last.
func (q *queue) current() uint64 {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.taken
}

func (q *queue) close() {
	q.file.Close()
	<-q.done
}
