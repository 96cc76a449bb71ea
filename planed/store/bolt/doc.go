// Package bolt keeps the plane's store in one bbolt file. It is the default
// store of a plane that is one process.
//
// # Shape
//
// The file is the truth. In memory, in shards, lies what a plain check needs of
// each machine: its digests, the instance and sequence number it counts in, the
// digest of its last body, its open requests. A plain check locks one shard,
// compares, stores a number and is done; no lock is ever held across I/O.
// Presence is computed by whoever reads; there are no timers.
//
// The times of last checks lie in pages of 448 machines by dense index, both in
// memory and in the file, and are flushed in groups: 100,000 of them are about
// 230 pages, whatever order the machines check in.
//
// Everything else is durable before it is answered. One goroutine, the writer,
// gathers operations for up to two milliseconds and commits them in one
// transaction, so that a thousand machines that change at once cost a few
// fsyncs.
//
// # Why memory and file agree
//
//   - Only the writer changes rows, and only after it committed: an operation
//     reads its rows from the transaction, decides, writes, and leaves a
//     function that updates memory. A crash before the commit loses an
//     operation that nobody was answered; after it, memory is rebuilt from the
//     file. A failed commit leaves both as they were.
//   - Between a commit and the update of memory a plain check may be judged by
//     the row before. The operation has not been answered yet, so no order is
//     contradicted (R23: dead at once means once the deletion is answered).
//   - An operation decides before it writes. One that is refused has written
//     nothing and shares its transaction with others unharmed; one that fails
//     after writing takes the transaction down, and the others run again.
//   - A plain check changes memory alone: a sequence number and a time. The
//     writer takes the sequence number from memory when it is ahead.
package bolt
