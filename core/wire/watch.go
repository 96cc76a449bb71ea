package wire

// PathWatch follows what changes below a directory, or to one file: an answer of
// JSON Lines, each a WatchEvent, that goes on until the client leaves. Its query:
// path; shallow, for the directory alone; initial, for what is there already;
// from, the token of the last event that a client has.
const PathWatch = "/v1/watch"

// SchemaWatch names the WatchEvent document.
const SchemaWatch = "fleet.watch/v1"

// What a WatchEvent tells of. Events come in the order in which things happened
// and may come twice: one says what to look at, not what is there by now.
const (
	WatchReady      = "ready"      // from now on every change is told of
	WatchExists     = "exists"     // it was there already; only with initial, before ready
	WatchCreated    = "created"    // it is there, made, linked or moved in from elsewhere
	WatchModified   = "modified"   // a file's content changed
	WatchWritten    = "written"    // a file that was open for writing was closed
	WatchAttributes = "attributes" // mode, owner, times, number of links
	WatchRemoved    = "removed"    // it is gone, removed or moved elsewhere, with all that was below it
	WatchRenamed    = "renamed"    // from From to Path, with all that is below it; whatever Path was is gone
	// WatchOverflow says that changes were lost, for the Reason given: look again
	// at everything once WatchReady has come, or, with initial, forget everything
	// and take what comes.
	WatchOverflow = "overflow"
	// WatchUnwatched says that what is below a directory is not told of, for the
	// Reason given.
	WatchUnwatched = "unwatched"
	// WatchEnded is the last event: Error says why nothing more can come.
	WatchEnded = "ended"
)

// Reasons of WatchOverflow and WatchUnwatched.
const (
	OverflowKernel  = "kernel"  // its queue was full: changes came faster than they were taken
	OverflowReader  = "reader"  // the client did not keep up
	OverflowResume  = "resume"  // the agent has no longer what the client missed
	OverflowChanged = "changed" // a file system was unmounted, or directories changed places

	UnwatchedForbidden = "forbidden" // the account may not read it
	UnwatchedTwice     = "twice"     // it is the same directory as another below the watched one
)

// Codes of refusals and ends of watches.
const (
	CodeWatchLimit = "watch_limit" // the system's limit on watches, which the hint names
	CodeWatchGone  = "watch_gone"  // what was watched was removed or moved away
)

// WatchEvent is fleet.watch/v1: something changed.
type WatchEvent struct {
	Schema  string `json:"schema,omitempty"`
	Machine string `json:"machine,omitempty"`
	Event   string `json:"event"` // one of the Watch constants
	// Path is relative to what is watched; the latter itself is "".
	Path      Bytes        `json:"path,omitempty"`
	From      Bytes        `json:"from,omitempty"`      // of renamed
	Directory bool         `json:"directory,omitempty"` // it is one, or was
	Root      Bytes        `json:"root,omitempty"`      // of ready: the absolute path of what is watched
	Reason    string       `json:"reason,omitempty"`
	Error     *ErrorDetail `json:"error,omitempty"` // of ended
	// Token stands for the place in the stream: a client that comes back with it
	// gets what follows, or an overflow.
	Token string `json:"token"`
}
