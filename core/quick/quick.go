// Package quick is the program fleet: the short way for the command that is used
// most, `fleet exec MACHINE -- CMD…` over a shared connection, and the way to
// fleet-front for all others. Most of what such a command costs is the start of
// the program: the memory of libraries that is touched for the first time, page
// by page. So this one has none, hands the words of its command line to the
// fleet-host that holds the connection, where all of that has happened long ago,
// and writes what comes back.
//
// What the short way holds to:
//   - The other side says that it begins before it does, and nothing of the
//     command is done until it has said so and that is where this side reads
//     it. When it declines instead, or ends without that word, fleet-front does
//     the command as if there were no short way. Errors are therefore never this
//     package's: the program finds them again, and says them.
//   - A command that was begun, or perhaps was, is brought to its end and done
//     once. When the other side goes away, fleet-front goes on from the byte of
//     output that was written last: the session's id is made here, before the
//     command is handed over, and starting a session again joins it.
//   - Signals are taken over while the other side gets ready, and it begins
//     after that. A signal that finds nothing begun is this process's own again.
//   - One piece of output is under way at a time, and what became of writing it
//     is told before the next: a pipe that nobody reads, and a terminal that is
//     stopped, are noticed over there as they would be here.
//   - Every frame is bounded; all waiting but that for the command has a limit.
//
// It imports neither fmt nor any other package that is slow to start, and does
// not know what a machine, a plane or SSH is.
package quick

import (
	"errors"
	"io"
	"math/rand/v2"
	"os"
	"os/signal"
	"strconv"
	"sync/atomic"
	"syscall"
	"time"

	_ "fleet.example/fleet/core/single" // the program begins on one processor
)

// Frames that the server sends.
const (
	Begin   = 'b' // the session is about to be started
	Decline = 'd' // nothing was done, and nothing will be
	Stdout  = 'o' // output of the session
	Stderr  = 'e'
	Notice  = 'n' // words of fleet's, for standard error
	Jump    = 'j' // the next output is at this offset: 8 bytes
	Exit    = 'x' // 1 byte
)

// Frames that the front sends.
const (
	Go     = 'g' // the session may be started
	Done   = 'a' // what the last output was for was written: an errno in 2 bytes
	Signal = 'k' // 2 bytes
)

// First is the time that the other side may take until it begins.
// Beyond it a person is better served by a program that says what it waits for.
const First = 3 * time.Second

const (
	// patience is how long the other side may take to let go of a command after
	// a second interrupt.
	patience    = 2 * time.Second
	interrupted = 130 // fault.Interrupted
)

// Try does the command if it can be done so. Otherwise it returns false, and
// the command line to go on with.
func Try(args []string) (exit int, done bool, goOn []string) {
	if !fits(args) {
		return 0, false, args
	}
	dir, err := Dir(os.Getenv, os.Getuid())
	if err != nil {
		return 0, false, args
	}
	exe, err := os.Executable()
	if err != nil {
		return 0, false, args
	}
	c, err := dial(dir + "/" + Name(os.Getenv, host(exe)))
	if err != nil {
		return 0, false, args
	}
	defer syscall.Close(c.fd)
	a := attempt{conn: c, args: args, program: exe, stdout: os.Stdout, stderr: os.Stderr}
	return a.run()
}

// fits reports whether the words are a command that needs nothing of this
// process but its output and signals. Nothing before the -- is a flag.
func fits(args []string) bool {
	return len(args) > 4 && args[1] == "exec" && args[2] != "" && args[2][0] != '-' && args[3] == "--"
}

type attempt struct {
	conn           *conn
	args           []string
	program        string
	stdout, stderr *os.File
	session        string
	begun          atomic.Bool
	at             int64 // offset of the next output

	frames atomic.Int64   // that came
	last   syscall.Signal // that was passed on, after so many frames
	lastAt int64
}

func (a *attempt) run() (exit int, done bool, goOn []string) {
	if !a.ask() {
		return 0, false, a.args
	}
	signals := make(chan os.Signal, 4)
	// With SIGPIPE, writing to a pipe that nobody reads is an error; it is told,
	// and the command ended, before this process is.
	taken := []os.Signal{syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGPIPE}
	if !signal.Ignored(syscall.SIGHUP) { // as under nohup
		taken = append(taken, syscall.SIGHUP)
	}
	signal.Notify(signals, taken...)
	if a.conn.send(Go, nil) != nil {
		signal.Stop(signals)
		close(signals)
		raise(signals)
		return 0, false, a.args
	}
	early, relayed := make(chan os.Signal, 1), make(chan struct{})
	go func() {
		defer close(relayed)
		a.relay(signals, early)
	}()
	exit, err := a.follow()
	if err == nil {
		return exit, true, nil
	}
	signal.Stop(signals)
	close(signals)
	<-relayed // what it knows of signals is still from here on
	if !a.begun.Load() {
		close(early)
		raise(early)
		if errors.Is(err, errDeclined) || errors.Is(err, io.EOF) {
			return 0, false, a.args
		}
	}
	rejoin := a.session + "@" + strconv.FormatInt(a.at, 10)
	if a.last != 0 && a.lastAt == a.frames.Load() { // who was told of it may have ended before it did something
		rejoin += ":" + strconv.Itoa(int(a.last))
	}
	return 0, false, append([]string{a.args[0], "exec", a.args[2], "--" + RejoinFlag, rejoin}, a.args[3:]...)
}

// raise has this process meet the signals that it took over for a command that
// was not begun.
func raise(signals <-chan os.Signal) {
	for s := range signals {
		if n, ok := s.(syscall.Signal); ok && n != syscall.SIGPIPE {
			syscall.Kill(syscall.Getpid(), n)
		}
	}
}

// RejoinFlag is the flag of `fleet exec` that takes SESSION@OFFSET of a command
// that was begun, or may have been, and whose output was written up to there.
// SESSION@OFFSET:SIGNAL has the number of one that came last.
const RejoinFlag = "rejoin"

// ask hands the command over.
func (a *attempt) ask() bool {
	dir, err := os.Getwd()
	if err != nil {
		dir = "/"
	}
	a.session = newSession()
	req := Request{Session: a.session, Args: a.args, Environ: os.Environ(), Dir: dir, Program: a.program}
	b, err := req.append(nil)
	return err == nil && a.conn.write(b) == nil
}

// newSession makes an id as wire.NewSessionID does.
func newSession() string {
	const letters = "abcdefghijklmnopqrstuvwxyz234567"
	id := []byte("s_0123456789")
	for i, n := 2, rand.Uint64(); i < len(id); i++ {
		id[i] = letters[n&31]
		n >>= 5
	}
	return string(id)
}

// relay passes signals on until there are no more, and the first that comes
// before the command is begun to early, too. The second that asks for an end, or
// a hangup, has the other side let go of the command; if it does not, this side
// does.
func (a *attempt) relay(signals <-chan os.Signal, early chan<- os.Signal) {
	ends := 0
	for s := range signals {
		n, ok := s.(syscall.Signal)
		if !ok || n == syscall.SIGPIPE {
			continue
		}
		if !a.begun.Load() {
			select {
			case early <- s:
			default:
			}
		}
		if ends++; ends < 2 && n == syscall.SIGHUP {
			ends = 2
		}
		if ends == 2 {
			time.AfterFunc(patience, func() {
				if a.begun.Load() {
					a.stderr.WriteString("fleet: interrupted; the session goes on\n")
				} else {
					a.stderr.WriteString("fleet: interrupted; it is not known whether the session began\n")
				}
				os.Exit(interrupted)
			})
		}
		a.last, a.lastAt = n, a.frames.Load()
		a.conn.send(Signal, []byte{byte(n >> 8), byte(n)}) // who does not take it has gone, which follow sees
	}
}

var errDeclined = errors.New("declined")

// follow writes what comes until the command's exit code does.
func (a *attempt) follow() (exit int, err error) {
	kind, _, err := a.conn.next()
	switch {
	case err != nil:
		return 0, err
	case kind == Decline:
		return 0, errDeclined
	case kind != Begin:
		return 0, errFrame
	}
	a.begun.Store(true)
	if err := a.conn.patient(); err != nil {
		return 0, err
	}
	for {
		kind, p, err := a.conn.next()
		if err != nil {
			return 0, err
		}
		a.frames.Add(1)
		switch kind {
		case Stdout, Stderr, Notice:
			out := a.stderr
			if kind == Stdout {
				out = a.stdout
			}
			n, err := out.Write(p)
			if kind != Notice {
				a.at += int64(n)
			}
			no := errno(err)
			if err := a.conn.send(Done, []byte{byte(no >> 8), byte(no)}); err != nil {
				return 0, err
			}
		case Jump:
			if len(p) != 8 {
				return 0, errFrame
			}
			a.at = 0
			for _, b := range p {
				a.at = a.at<<8 | int64(b)
			}
		case Exit:
			if len(p) != 1 {
				return 0, errFrame
			}
			return int(p[0]), nil
		default:
			return 0, errFrame
		}
	}
}

// errno is the number of a failed write. One that has none counts as EIO.
func errno(err error) syscall.Errno {
	if err == nil {
		return 0
	}
	var n syscall.Errno
	if errors.As(err, &n) && n > 0 && n < 1<<16 {
		return n
	}
	return syscall.EIO
}

var errFrame = errors.New("malformed frame")
