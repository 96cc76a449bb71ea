package watch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// node is a directory below the watched one, or that itself.
type node struct {
	parent   *node
	name     string
	wd       int // -1 while it is not watched
	dev, ino uint64
	refused  bool // it was said that it is not watched
	children map[string]*node
	// listed are names that a listing told of, whose notices may still wait; up to
	// the notice with the number until.
	listed map[string]bool
	until  uint64
	// came is what was moved into the directory last, until something else happens to
	// its names.
	came arrival
}

// arrival is what was moved to a name, and from where, if that is watched.
type arrival struct {
	name string
	dir  bool
	from binding
}

func (n *node) path() string {
	if n.parent == nil {
		return ""
	}
	return n.parent.join(n.name)
}

// join is the path of a name in the directory.
func (n *node) join(name string) string {
	at := []string{name}
	for ; n.parent != nil; n = n.parent {
		at = append(at, n.name)
	}
	for i, j := 0, len(at)-1; i < j; i, j = i+1, j-1 {
		at[i], at[j] = at[j], at[i]
	}
	return strings.Join(at, "/")
}

func (n *node) child(name string) *node {
	c := &node{parent: n, name: name, wd: -1}
	if n.children == nil {
		n.children = map[string]*node{}
	}
	n.children[name] = c
	return c
}

// knew reports whether a listing told of the name already, and forgets that.
func (n *node) knew(name string, now uint64) bool {
	if now > n.until {
		n.listed = nil
	}
	known := n.listed[name]
	delete(n.listed, name)
	return known
}

// tree is one look by inotify.
type tree struct {
	target *Target
	fd     int // of the watched directory
	root   *node
	byWd   map[int]*node
	queue  *queue
	tell   func(wire.WatchEvent) error
	kind   string // of what a listing tells of: created, or exists before it began
	loose  int    // how many nodes are not watched
	buf    []byte

	// A directory whose children are opened one after the other is held open.
	held   *node
	heldFd int
}

// between lets tests change the tree in the middle of something.
func (l *tree) between(step string) {
	if l.target.between != nil {
		l.target.between(step)
	}
}

// interest is what the kernel is asked for. Only directories are watched: they
// tell of what is in them. What has no name any more is left out.
const interest = unix.IN_CREATE | unix.IN_DELETE | unix.IN_MOVED_FROM | unix.IN_MOVED_TO | unix.IN_MODIFY | unix.IN_CLOSE_WRITE |
	unix.IN_ATTRIB | unix.IN_DELETE_SELF | unix.IN_MOVE_SELF | unix.IN_ONLYDIR | unix.IN_EXCL_UNLINK

func beginTree(t *Target) (*tree, error) {
	q, err := newQueue()
	if err != nil {
		return nil, limited(err, t.Path)
	}
	l := &tree{target: t, fd: int(t.Dir.Fd()), root: &node{wd: -1}, byWd: map[int]*node{}, queue: q, kind: wire.WatchExists,
		buf: make([]byte, 32<<10), heldFd: -1}
	var st unix.Stat_t
	if err = unix.Fstat(l.fd, &st); err == nil {
		l.root.dev, l.root.ino = uint64(st.Dev), st.Ino
		l.root.wd, err = add(q.fd, l.fd)
	}
	if err != nil {
		q.close()
		return nil, limited(err, t.Path)
	}
	l.byWd[l.root.wd] = l.root
	return l, nil
}

// add watches the directory that is open: whatever its name leads to by now.
func add(inotify, fd int) (int, error) {
	return unix.InotifyAddWatch(inotify, fmt.Sprintf("/proc/self/fd/%d", fd), interest)
}

func (l *tree) close() {
	l.release()
	l.queue.close()
}

func (l *tree) release() {
	if l.heldFd >= 0 {
		unix.Close(l.heldFd)
	}
	l.held, l.heldFd = nil, -1
}

// errFlux says that a directory is not, or not for certain, where the tree has it:
// a notice that waits, or is about to come, will say where it is.
var errFlux = errors.New("the directory is on its way")

// open opens a directory of the tree: each step on the way there without
// following links, and compared with what is watched.
func (l *tree) open(n *node) (int, error) {
	if n == l.held {
		return l.heldFd, nil
	}
	l.release()
	var way []*node
	for x := n; x.parent != nil; x = x.parent {
		way = append(way, x)
	}
	fd, err := unix.Openat(l.fd, ".", unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	for i := len(way) - 1; i >= 0; i-- {
		next, err := unix.Openat(fd, way[i].name, unix.O_PATH|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0)
		unix.Close(fd)
		if err != nil {
			return -1, err
		}
		fd = next
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil || uint64(st.Dev) != way[i].dev || st.Ino != way[i].ino {
			unix.Close(fd)
			return -1, errFlux
		}
	}
	l.held, l.heldFd = n, fd
	return fd, nil
}

// attach watches a directory, lists it, and makes nodes of the directories in it.
// A directory that is on its way is left for the notice that says where it is.
func (l *tree) attach(n *node) error {
	fd, err := l.enter(n)
	if err != nil {
		return l.unattached(n, err)
	}
	defer unix.Close(fd)
	l.between("list")
	return l.list(n, fd)
}

// enter opens a directory and has it watched, if it is the one that the tree means.
func (l *tree) enter(n *node) (int, error) {
	if n.parent.wd < 0 {
		return -1, errFlux
	}
	at, err := l.open(n.parent)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Openat(at, n.name, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	l.between("watch")
	var st unix.Stat_t
	wd := -1
	if err = unix.Fstat(fd, &st); err == nil {
		wd, err = add(l.queue.fd, fd)
	}
	if err == nil {
		l.between("drain")
		owner := l.byWd[wd]
		_, err = l.queue.drain()
		switch {
		case err != nil:
		case l.queue.moving(n.parent.wd, n.name):
			if owner == nil {
				unix.InotifyRmWatch(l.queue.fd, uint32(wd))
			}
			err = errFlux
		case owner != nil:
			err = l.takeOver(owner)
		}
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	n.wd, n.dev, n.ino = wd, uint64(st.Dev), st.Ino
	l.byWd[wd] = n
	l.loose--
	n.refused = false
	return fd, nil
}

// errTwice says that a directory is watched already, under another name.
var errTwice = errors.New("the directory is at two places")

// takeOver is for a directory that is watched already, as another node's. Where
// that one's place no longer leads to it, it was moved out of a directory that is
// watched into one that was not yet: the notice of its leaving waits. Where it
// does, the directory lies at two places, as bind mounts have it.
func (l *tree) takeOver(owner *node) error {
	if owner == l.held {
		l.release()
	}
	if _, err := l.open(owner); err == nil {
		return errTwice
	}
	delete(l.byWd, owner.wd)
	owner.wd = -1
	l.loose++
	return nil
}

// unattached judges why a directory is not watched.
func (l *tree) unattached(n *node, err error) error {
	var reason string
	switch {
	case errors.Is(err, errFlux), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP), errors.Is(err, unix.ESTALE):
		return nil
	case errors.Is(err, errTwice):
		reason = wire.UnwatchedTwice
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		reason = wire.UnwatchedForbidden
	case errors.As(err, new(overflow)):
		return err
	default:
		return limited(err, l.target.Path+"/"+n.path())
	}
	if n.refused {
		return nil
	}
	n.refused = true
	return l.tell(wire.WatchEvent{Event: wire.WatchUnwatched, Path: wire.Bytes(n.path()), Directory: true, Reason: reason})
}

// maxListed bounds the names that are remembered of a listing.
const maxListed = 1 << 16

// list tells of what is in a directory that is watched already.
func (l *tree) list(n *node, fd int) error {
	var names []string
	for {
		size, err := unix.ReadDirent(fd, l.buf)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if errors.Is(err, unix.ENOENT) || size <= 0 && err == nil {
			break
		}
		if err != nil {
			return limited(err, l.target.Path+"/"+n.path())
		}
		for b := l.buf[:size]; len(b) > 0; {
			var e entry
			if e, b = parseEntry(b); e.name == "" || e.name == "." || e.name == ".." {
				continue
			}
			if e.unknown {
				var st unix.Stat_t
				if unix.Fstatat(fd, e.name, &st, unix.AT_SYMLINK_NOFOLLOW) != nil {
					continue
				}
				e.dir = st.Mode&unix.S_IFMT == unix.S_IFDIR
			}
			if err := l.found(n, e); err != nil {
				return err
			}
			if len(names) < maxListed {
				names = append(names, e.name)
			}
		}
	}
	if _, err := l.queue.drain(); err != nil {
		return err
	}
	if n.until = l.queue.waiting(); n.until == 0 || l.kind == wire.WatchExists && !l.target.Initial {
		return nil
	}
	n.listed = make(map[string]bool, len(names))
	for _, name := range names {
		n.listed[name] = true
	}
	return nil
}

// found is an entry of a listing.
func (l *tree) found(n *node, e entry) error {
	if e.dir && l.target.deep() && n.children[e.name] == nil {
		n.child(e.name)
		l.loose++
	}
	if l.kind == wire.WatchExists && !l.target.Initial || n == l.root && !l.target.meant(e.name) {
		return nil
	}
	return l.tell(wire.WatchEvent{Event: l.kind, Path: wire.Bytes(n.join(e.name)), Directory: e.dir})
}

// entry is one of a directory, as getdents64(2) has it.
type entry struct {
	name         string
	dir, unknown bool
}

func parseEntry(b []byte) (entry, []byte) {
	const head = 19 // inode, offset, length and type
	if len(b) < head {
		return entry{}, nil
	}
	size := int(binary.NativeEndian.Uint16(b[16:]))
	if size < head || size > len(b) {
		return entry{}, nil
	}
	name, _, _ := strings.Cut(string(b[head:size]), "\x00")
	return entry{name: name, dir: b[18] == unix.DT_DIR, unknown: b[18] == unix.DT_UNKNOWN}, b[size:]
}

// settle watches what is not watched yet of a directory and all below it.
func (l *tree) settle(n *node) error {
	if l.loose == 0 {
		return nil
	}
	for todo := []*node{n}; len(todo) > 0; {
		x := todo[0]
		todo = todo[1:]
		if x.wd < 0 {
			if err := l.attach(x); err != nil {
				return err
			}
		}
		for _, c := range x.children {
			todo = append(todo, c)
		}
	}
	return nil
}

// drop forgets a directory and all below it.
func (l *tree) drop(n *node) {
	if n == l.held {
		l.release()
	}
	if n.wd >= 0 {
		delete(l.byWd, n.wd)
		unix.InotifyRmWatch(l.queue.fd, uint32(n.wd)) // it may be gone by itself
	} else {
		l.loose--
	}
	for _, c := range n.children {
		l.drop(c)
	}
	if n.parent != nil && n.parent.children[n.name] == n {
		delete(n.parent.children, n.name)
	}
}

// limited gives the system's limits their names, and what can be done.
func limited(err error, path string) error {
	const hint = "raise it there with `sysctl %s=NUMBER` (and in /etc/sysctl.d, to keep it), or watch less, as with --shallow"
	switch {
	case errors.Is(err, unix.ENOSPC):
		return &Error{Code: wire.CodeWatchLimit, Msg: fmt.Sprintf("cannot watch %s: the account has as many watches as it may have%s", path, now("max_user_watches")),
			Hint: fmt.Sprintf(hint, "fs.inotify.max_user_watches")}
	case errors.Is(err, unix.EMFILE):
		if fd, err := unix.Open("/", unix.O_PATH|unix.O_CLOEXEC, 0); err == nil { // the process itself has room for files
			unix.Close(fd)
			return &Error{Code: wire.CodeWatchLimit, Msg: fmt.Sprintf("cannot watch %s: the account has as many inotify instances as it may have%s", path, now("max_user_instances")),
				Hint: fmt.Sprintf(hint, "fs.inotify.max_user_instances")}
		}
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return &Error{Code: wire.CodeForbidden, Msg: fmt.Sprintf("the account may not read %s", path)}
	}
	return &Error{Code: wire.CodeInternal, Msg: fmt.Sprintf("cannot watch %s: %v", path, err)}
}

// now is the value of one of the system's limits, in words.
func now(limit string) string {
	b, err := os.ReadFile("/proc/sys/fs/inotify/" + limit)
	if err != nil {
		return ""
	}
	return fmt.Sprintf(" (fs.inotify.%s is %s)", limit, strings.TrimSpace(string(b)))
}
