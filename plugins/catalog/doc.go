// Package catalog finds plugins, decides which may run, starts them and ends
// them. Every program that hosts plugins does so through it: fleet-host on a
// person's machine, agentd-probes on an installed one.
//
// What holds, and why:
//
//   - Nothing runs that was not locked. A plugin is a file with exactly a
//     plugin's name in one of fleet's own directories, never PATH; neither it
//     nor a directory above it may be written by anybody but root and the
//     account. Its bytes are read once from one open file into a private copy
//     while they are hashed; the hash must be the one in the lock, and the copy
//     is what is executed (R40).
//   - Nothing hangs. The start, every call and the end have deadlines. Ending
//     kills the process group, and the pipes of a process whose descendants
//     keep them open are closed on our side, so that no wait depends on a
//     plugin's good will (R41).
//   - Nothing is left behind. The host holds a pipe that ends with it; a plugin
//     built with the SDK then removes the launch's directory and ends its group.
//     On Linux the kernel also sends SIGTERM when the starting thread dies,
//     which ends a plugin that never listened. A directory that a lost launch
//     left is recognised by its free lock and removed by the next launch.
//   - One failure is one error, which names the file, its version, ours, and
//     what to upgrade. A plugin is never restarted by itself.
//
// The package must not know SSH, the plane or what a plugin is used for.
package catalog
