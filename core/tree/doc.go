// Package tree copies files and directories over a connection: fleet-tree/1,
// what passes between `fleet cp` and an agent after the HTTP Upgrade. One end
// sends, the other receives; both ends of every copy are this package.
//
// The sender walks and talks on without waiting: a small file is one frame, and
// a large one is announced ahead, so that the receiver's answer is there when
// its turn comes. Further connections, lanes, carry blocks of large files alone
// (see frame.go for the frames).
//
// What it holds to, and why that holds:
//
//   - Neither end trusts the other. A frame names an entry by the number of a
//     directory that the receiver itself opened and by one name, in which no
//     slash, no zero byte, no `.` and no `..` is taken. The receiver makes,
//     opens, renames and removes only such names, relative to the descriptor of
//     that directory, and never follows a symbolic link: not one that was there,
//     nor one that the sender has just made. So nothing that a sender says leads
//     out of the destination, which the receiving side's own caller has named.
//     What the receiver says to a sender names no file at all.
//   - A name shows its old content or its new, whole. Content goes to a
//     temporary file beside it, every block is compared with its sum before it
//     is written, and the rename comes when each block of the file has been.
//     Where something is replaced, the new file has been flushed before, and
//     keeps the old one's mode, owner and attributes.
//   - A copy that was cut goes on. The temporary file of a large file has a name
//     that follows from the file, and stays; the next attempt hashes its blocks
//     and the sender leaves out those that are the same. Nothing but equal
//     hashes makes a block count as there, so it does not matter how the last
//     attempt ended. An attempt of the same copy leaves out files that are there
//     with their size and time to the nanosecond.
//   - Nothing waits on what it opens, and no device is opened: only regular
//     files and directories are, looked at first, without blocking.
//   - A file that changes while it is read is dropped and named.
//   - Memory does not grow with the tree: the walk is at most aheadMost entries
//     before what is being sent, a directory is read in pieces, and each number
//     that the other end may keep open is bounded.
//
// It knows nothing of HTTP, tokens, machines or terminals.
package tree
