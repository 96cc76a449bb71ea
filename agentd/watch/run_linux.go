package watch

import (
	"context"
	"errors"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// pairWait is how long what was moved from somewhere is waited for elsewhere. The
// kernel says both in one system call; what does not come has left the tree.
const pairWait = 2 * time.Millisecond

func (l *tree) run(ctx context.Context, t *teller) error {
	l.tell = t.tell
	fd, err := unix.Openat(l.fd, ".", unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return limited(err, l.target.Path)
	}
	err = l.list(l.root, fd)
	unix.Close(fd)
	if err == nil {
		err = l.settle(l.root)
	}
	if err == nil {
		l.kind = wire.WatchCreated
		err = t.began()
	}
	looks := time.NewTicker(lookAfter)
	defer looks.Stop()
	for err == nil {
		n, ok, failed := l.queue.next()
		if ok {
			err = l.hear(ctx, n)
			continue
		}
		if err = failed; err != nil {
			break
		}
		l.release()
		select {
		case <-ctx.Done():
			err = ctx.Err()
		case <-l.queue.come:
		case <-looks.C:
			err = l.target.there()
		}
	}
	return err
}

// hear does what a notice says, to the tree, and tells of it.
func (l *tree) hear(ctx context.Context, x notice) error {
	if x.mask&unix.IN_Q_OVERFLOW != 0 {
		return overflow{wire.OverflowKernel}
	}
	n := l.byWd[x.wd]
	if n == nil {
		return nil // of what was dropped
	}
	switch {
	case x.mask&unix.IN_UNMOUNT != 0 && n != l.root:
		return overflow{wire.OverflowChanged}
	case x.mask&unix.IN_IGNORED != 0 && n != l.root:
		delete(l.byWd, n.wd)
		n.wd = -1
		l.loose++
		return nil
	case x.mask&(unix.IN_IGNORED|unix.IN_UNMOUNT|unix.IN_DELETE_SELF|unix.IN_MOVE_SELF) != 0:
		if n == l.root {
			return gone(l.target)
		}
		return nil
	case x.name == "":
		if n == l.root && x.mask&unix.IN_ATTRIB != 0 && l.target.Name == "" {
			return l.tell(wire.WatchEvent{Event: wire.WatchAttributes, Directory: true})
		}
		return nil // its own directory says it, too
	}
	dir := x.mask&unix.IN_ISDIR != 0
	came := n.came
	if x.mask&(unix.IN_CREATE|unix.IN_MOVED_TO|unix.IN_DELETE|unix.IN_MOVED_FROM) != 0 {
		n.came = arrival{}
	}
	switch {
	case x.mask&unix.IN_CREATE != 0:
		return l.arrived(n, x.name, dir, n.knew(x.name, l.queue.current()))
	case x.mask&unix.IN_MOVED_TO != 0:
		n.knew(x.name, 0)
		n.came = arrival{name: x.name, dir: dir}
		return l.arrived(n, x.name, dir, false)
	case x.mask&unix.IN_DELETE != 0:
		return l.left(n, x.name, dir)
	case x.mask&unix.IN_MOVED_FROM != 0:
		return l.moved(ctx, n, x, came)
	case x.mask&unix.IN_MODIFY != 0:
		return l.say(wire.WatchModified, n, x.name, dir)
	case x.mask&unix.IN_CLOSE_WRITE != 0:
		return l.say(wire.WatchWritten, n, x.name, dir)
	case x.mask&unix.IN_ATTRIB != 0:
		if err := l.say(wire.WatchAttributes, n, x.name, dir); err != nil {
			return err
		}
		if c := n.children[x.name]; dir && c != nil && c.wd < 0 { // the account may be let in now
			return l.settle(c)
		}
	}
	return nil
}

func (l *tree) say(event string, n *node, name string, dir bool) error {
	if n == l.root && !l.target.meant(name) {
		return nil
	}
	return l.tell(wire.WatchEvent{Event: event, Path: wire.Bytes(n.join(name)), Directory: dir})
}

// arrived is a new entry of a directory. known says that it was told of.
func (l *tree) arrived(n *node, name string, dir, known bool) error {
	c := n.children[name]
	switch {
	case c != nil && c.wd >= 0 && dir:
		// A directory took another one's place with no word of the latter's end.
		return overflow{wire.OverflowChanged}
	case c != nil && !dir:
		l.drop(c)
	}
	if !known {
		if err := l.say(wire.WatchCreated, n, name, dir); err != nil {
			return err
		}
	}
	if !dir || !l.target.deep() {
		return nil
	}
	if c = n.children[name]; c == nil {
		c = n.child(name)
		l.loose++
	}
	return l.settle(c)
}

// left is an entry that is gone from its directory.
func (l *tree) left(n *node, name string, dir bool) error {
	n.knew(name, 0)
	if c := n.children[name]; c != nil && dir {
		l.drop(c)
	}
	return l.say(wire.WatchRemoved, n, name, dir)
}

// moved is an entry that goes elsewhere. What came to its place just before may
// have changed places with it, in one system call: then both are there.
func (l *tree) moved(ctx context.Context, n *node, x notice, came arrival) error {
	dir := x.mask&unix.IN_ISDIR != 0
	to, paired := l.pair(ctx, x.cookie)
	target := l.byWd[to.wd]
	paired = paired && target != nil
	var there, thereDir bool
	back := paired && came.from == (binding{to.wd, to.name})
	switch {
	case came.name != x.name, paired && !back && came.from.wd > 0:
		// Two names that changed places are those that both notices name.
	case back && (dir || came.dir):
		// There and back, or the two halves of an exchange: which directory is where
		// by now the notices do not say.
		return overflow{wire.OverflowChanged}
	default:
		var err error
		if there, thereDir, err = l.exists(n, x.name); err != nil || paired && !back && there && (dir || thereDir) {
			return overflow{wire.OverflowChanged}
		}
	}
	var err error
	if paired {
		target.came = arrival{to.name, dir, binding{n.wd, x.name}}
		err = l.renamed(n, x.name, target, to.name, dir)
	} else {
		err = l.left(n, x.name, dir)
	}
	if err != nil || !there {
		return err
	}
	return l.arrived(n, x.name, thereDir, false)
}

// pair waits for where something was moved to.
func (l *tree) pair(ctx context.Context, cookie uint32) (notice, bool) {
	deadline := time.NewTimer(pairWait)
	defer deadline.Stop()
	for over := false; ; {
		if _, err := l.queue.drain(); err != nil {
			return notice{}, false // which ends this look
		}
		if to, ok := l.queue.pair(cookie); ok || over {
			return to, ok
		}
		select {
		case <-l.queue.come:
		case <-ctx.Done():
			over = true
		case <-deadline.C:
			over = true
		}
	}
}

// renamed is an entry that has another place in the tree.
func (l *tree) renamed(n *node, name string, to *node, toName string, dir bool) error {
	n.knew(name, 0)
	to.knew(toName, 0)
	c, there := n.children[name], to.children[toName]
	switch {
	case there != nil && there.wd >= 0 && dir: // two directories change places
		return overflow{wire.OverflowChanged}
	case there != nil:
		l.drop(there)
	case c != nil && !dir:
		l.drop(c)
	}
	seen, seenTo := n != l.root || l.target.meant(name), to != l.root || l.target.meant(toName)
	var err error
	switch {
	case seen && seenTo:
		err = l.tell(wire.WatchEvent{Event: wire.WatchRenamed, From: wire.Bytes(n.join(name)), Path: wire.Bytes(to.join(toName)), Directory: dir})
	case seen:
		err = l.say(wire.WatchRemoved, n, name, dir)
	case seenTo:
		err = l.say(wire.WatchCreated, to, toName, dir)
	}
	if err != nil {
		return err
	}
	if !dir || !l.target.deep() {
		return nil
	}
	if c == nil {
		c = to.child(toName)
		l.loose++
	} else {
		delete(n.children, name)
		c.parent, c.name = to, toName
		if to.children == nil {
			to.children = map[string]*node{}
		}
		to.children[toName] = c
	}
	return l.settle(c)
}

// exists reports whether something has the name now, and whether that is a
// directory.
func (l *tree) exists(n *node, name string) (there, dir bool, err error) {
	fd, err := l.open(n)
	if err != nil {
		return false, false, err
	}
	var st unix.Stat_t
	err = unix.Fstatat(fd, name, &st, unix.AT_SYMLINK_NOFOLLOW)
	if errors.Is(err, unix.ENOENT) {
		return false, false, nil
	}
	return err == nil, st.Mode&unix.S_IFMT == unix.S_IFDIR, err
}
