// Package watch tells of what changes in a directory of this machine and in all
// below it, as the kernel says it, in order, and never pretends to know more: what
// it may have missed it says with an overflow, after which whoever follows looks
// again.
//
// On linux it is inotify, which watches directories one by one and names what
// happens in them. Three things could be lost or told wrong, and are not:
//
// What happens in a new directory before it is watched. A directory is watched
// first and listed then. What was made before the watch is in the listing, what is
// made after it has a notice, and what is made in between has both. A notice is
// heard after the listing, so the last that is told of a name is what is true of
// it: a name without a notice since the watch is as it was when it was listed, and
// readdir returns such a name exactly once. The notice of what the listing told
// is left out once.
//
// Which directory a watch is of. A notice says that there is a directory x, and by
// the time that x is opened there may be another one there. So the watch is made
// on the open directory and not on its name; then everything that the kernel has
// is taken from it; and if a notice waits by which x came, went or was moved, the
// watch is given back and that notice decides anew. If none waits, x is what
// the tree says: its directory was watched all the time, so each change of x has a
// notice, queued before the lock on the directory is let go, without which no
// second change could bring another x. On the way down from the watched
// directory no link is followed and each step's device and inode are compared with
// what is watched there, which a watch keeps from being used again. A step that
// does not compare has a notice on its way. A directory that was moved to where
// nothing was watched yet is met again there, still watched, and known by
// that; its old place no longer leads to it. One that lies at two places, as bind mounts
// have it, is watched at the first and said not to be at the second.
//
// What one system call does to two names. RENAME_EXCHANGE looks like a rename
// there and another one back. For files, it is looked whether both are there; for
// directories everything is looked at again, with an overflow. Nothing else puts a
// directory where one is without the notice of the latter's end, and whatever
// seems to has the same answer.
//
// Notices that are not taken are kept here up to a bound, and by the kernel up to
// its own; events that nobody reads up to another. Who appends waits for who
// reads, so a reader who stops fills one after the other, and at the end the kernel
// or the queue here says that it was full. After any overflow the whole is
// begun anew: other watches, another tree, another listing. Nothing of the time
// before is used.
//
// What the kernel does not tell of is not told: writes through a mapping, another
// computer's to a shared file system, and a mount that comes over a directory.
//
// Elsewhere it is fsnotify, by names.
//
// The package knows nothing of HTTP, tokens and of how a path is resolved: it is
// given an open directory.
package watch
