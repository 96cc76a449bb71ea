package shim

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/agentd/spool"
	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// drainIdle is how long the shim of an ended session waits for an attached
// client that takes nothing. agentd serves the rest from the spool.
const drainIdle = 30 * time.Second

// abandonedAfterExit is how long the last output of an ended command waits for
// room that only a client's taking can make, while none is attached. It is
// longer than a client whose connection is lost tries to come back. Then the
// oldest output goes: a session that nobody follows would never end, and hold
// up updates and drains for as long.
const abandonedAfterExit = 3 * time.Minute

// shim is the state that connections share.
type shim struct {
	cfg    *Config
	lock   *os.File // held, by being open, for as long as the session is not over
	umask  int      // before this session
	digest secret.Digest
	spool  *spool.Spool
	cmd    *command // nil: it could not be started
	input  *input

	mu      sync.Mutex
	conns   map[*conn]struct{}
	left    chan struct{} // a connection has ended
	exit    *frame.ExitStatus
	exited  chan struct{} // closed when exit is set
	touched atomic.Int64  // when a client last took something, Unix nanoseconds

	again, others <-chan os.Signal // see heed

	listen   net.Listener
	at       os.FileInfo   // what stood at the socket's path when listen was made
	accepted chan struct{} // closed when listen brings no more connections
	wg       sync.WaitGroup
}

// A shim hosts sessions one after the other, at most maxSessions of them, and
// none after one with more than maxOutput bytes, which leaves it larger than a
// new one.
const (
	maxSessions = 1000
	maxOutput   = 4 << 20
)

// Main is the whole program. It returns the process's exit code.
func Main() int {
	debug.SetGCPercent(40)
	debug.SetMemoryLimit(16 << 20)
	again, others := heed()
	syscall.CloseOnExec(ReadyFD) // the command must not hold it
	ready := os.NewFile(ReadyFD, "ready")
	in := bufio.NewReader(sessions())
	for n := 1; ; n++ {
		cfg, err := readConfig(in)
		if errors.Is(err, errNoSession) {
			return 0
		}
		var s *shim
		if err == nil {
			s, err = setUp(cfg)
		} else {
			err = fmt.Errorf("cannot read configuration: %w", err)
		}
		if err != nil {
			fmt.Fprintf(ready, "-%s", err)
			return 1
		}
		s.again, s.others = again, others
		s.startCommand()
		ready.Write([]byte{'+'}) // an agentd that is gone hears of the session from its directory
		s.run()
		st, _ := s.spool.State()
		syscall.Umask(s.umask)
		s.lock.Close()
		if n == maxSessions || st.End > maxOutput {
			return 0
		}
		if _, err := ready.Write([]byte{Idle}); err != nil {
			return 0
		}
	}
}

// sessions is where sessions come from, with the poller waiting for them: see
// awaitExit.
func sessions() *os.File {
	syscall.SetNonblock(0, true)
	return os.NewFile(0, "sessions")
}

// heed takes signals over. HUP asks for the socket to be made again, when
// something removed it. The others are not for the shim: the command gets its
// own. It comes before the lock, which is what leads a sender of HUP to this
// process. A handler, unlike SIG_IGN, is not inherited by the command.
func heed() (again, others <-chan os.Signal) {
	hup, rest := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(hup, syscall.SIGHUP)
	signal.Notify(rest, syscall.SIGINT, syscall.SIGTERM, syscall.SIGQUIT, syscall.SIGPIPE, syscall.SIGTTIN, syscall.SIGTTOU, syscall.SIGTSTP)
	return hup, rest
}

// setUp takes the lock, makes the spool and listens.
func setUp(cfg *Config) (*shim, error) {
	if err := redirectErrors(filepath.Join(cfg.Dir, StderrFile)); err != nil {
		return nil, fmt.Errorf("cannot open %s: %w", StderrFile, err)
	}
	lock, err := os.OpenFile(filepath.Join(cfg.Dir, LockFile), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return nil, fmt.Errorf("cannot open lock: %w", err)
	}
	if err := takeLock(lock); err != nil {
		return nil, fmt.Errorf("cannot lock session: %w", err)
	}
	if _, err := fmt.Fprintf(lock, "%d\n", os.Getpid()); err != nil {
		return nil, fmt.Errorf("cannot write lock: %w", err)
	}
	sp, err := spool.Create(filepath.Join(cfg.Dir, SpoolDir), cfg.Limit, cfg.Drop)
	if err != nil {
		return nil, fmt.Errorf("cannot make spool: %w", err)
	}
	s := &shim{cfg: cfg, lock: lock, digest: secret.Of(cfg.Token).Digest(), spool: sp,
		conns: map[*conn]struct{}{}, left: make(chan struct{}, 1), exited: make(chan struct{})}
	cfg.Token = ""
	if err := s.bind(); err != nil {
		return nil, fmt.Errorf("cannot listen: %w", err)
	}
	s.umask = syscall.Umask(cfg.Umask) // the command's; files of the shim's own have explicit modes
	return s, nil
}

// redirectErrors sends what a panic prints to a file of the session.
func redirectErrors(name string) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Dup2(int(f.Fd()), 2)
}

// bind listens on the socket, replacing what stands there: the lock says that
// nobody else may.
func (s *shim) bind() error {
	os.Remove(s.cfg.Socket)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: s.cfg.Socket, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	at, err := os.Lstat(s.cfg.Socket)
	if err == nil {
		err = os.Chmod(s.cfg.Socket, 0o600)
	}
	if err != nil {
		l.Close()
		return err
	}
	if s.listen != nil {
		s.listen.Close()
	}
	accepted := make(chan struct{})
	s.listen, s.at, s.accepted = l, at, accepted
	s.wg.Go(func() {
		defer close(accepted)
		s.accept(l)
	})
	return nil
}

// there reports whether what stands at the socket's path is what s listens on.
func (s *shim) there() bool {
	now, err := os.Lstat(s.cfg.Socket)
	return err == nil && os.SameFile(s.at, now)
}

func (s *shim) accept(l net.Listener) {
	for {
		c, err := l.Accept()
		if err != nil {
			if ne, ok := err.(interface{ Temporary() bool }); ok && ne.Temporary() {
				time.Sleep(50 * time.Millisecond) // out of descriptors: the next may succeed
				continue
			}
			return
		}
		s.serve(c)
	}
}

// startCommand starts the command, or records why it did not start.
func (s *shim) startCommand() {
	cmd, err := start(s.cfg)
	s.cfg.Env = nil // it may carry what should not stay in memory
	if err != nil {
		e := startError(err)
		e.At = wire.Time{Time: time.Now()}
		s.spool.Close()
		s.finish(e)
		return
	}
	s.cmd = cmd
	s.input = newInput(cmd.stdin, cmd.tty != nil)
}

// run lives until the command has ended and every client has what it wants.
func (s *shim) run() {
	ended := make(chan struct{})
	if s.cmd != nil {
		s.wg.Go(func() {
			defer close(ended)
			s.supervise()
		})
	} else {
		close(ended)
	}
	for running := true; running; {
		select {
		case <-s.again: // perhaps meant for the session before this one
			if !s.there() {
				s.bind()
			}
		case <-s.others:
		case <-ended:
			running = false
		}
	}
	s.drain()
	os.Remove(s.cfg.Socket)
	s.listen.Close()
	<-s.accepted
	s.drain() // who came meanwhile
	s.mu.Lock()
	for c := range s.conns {
		c.nc.Close()
	}
	s.mu.Unlock()
	s.wg.Wait()
}

// supervise follows the command to its end and records it.
func (s *shim) supervise() {
	pumps := s.cmd.pump(s.spool)
	s.wg.Go(s.input.run)
	exit := s.cmd.wait()
	s.input.close()
	ended := time.Now()
	followed, letGo := ended, time.Time{}
	end := func() {
		letGo = time.Now()
		pumps.end()
	}
	limit := time.After(maxAfterExit)
	tick := time.NewTicker(idleAfterExit / 4)
	defer tick.Stop()
	for open := true; open; {
		select {
		case <-pumps.ended:
			open = false
		case <-limit:
			end()
		case <-tick.C:
			silent := pumps.silent(idleAfterExit)
			switch {
			case !letGo.IsZero(): // a pump that cannot be woken is left behind
				open = !silent || time.Since(letGo) < maxAfterExit
			case silent && time.Since(ended) > idleAfterExit:
				end()
			}
			// A command that waits for room in the spool is not silent.
			if s.clients() > 0 {
				followed = time.Now()
			} else if s.spool.Waiting() && time.Since(followed) > abandonedAfterExit {
				s.spool.Drop()
			}
		}
	}
	s.cmd.closeOutputs()
	s.spool.Close()
	s.finish(exit)
}

// finish tells the clients and writes the exit record. While the disk takes no
// record the shim stays and answers from memory.
func (s *shim) finish(e wire.SessionExit) {
	st, _ := s.spool.State()
	record := Exit{End: st.End, Lost: st.Lost, SessionExit: e}
	b, err := json.Marshal(record)
	if err != nil {
		panic(err) // numbers and strings only
	}
	s.mu.Lock()
	s.exit = &frame.ExitStatus{End: st.End, SessionExit: e}
	s.mu.Unlock()
	close(s.exited)
	for gap := 100 * time.Millisecond; durable.WriteFile(filepath.Join(s.cfg.Dir, ExitFile), b, 0o600) != nil; gap = min(2*gap, 30*time.Second) {
		time.Sleep(gap)
	}
}

// drain waits until no client is left, or none of them takes anything.
func (s *shim) drain() {
	s.touched.Store(time.Now().UnixNano())
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for {
		s.mu.Lock()
		n := len(s.conns)
		s.mu.Unlock()
		if n == 0 || time.Since(time.Unix(0, s.touched.Load())) > drainIdle {
			return
		}
		select {
		case <-s.left:
		case <-tick.C:
		}
	}
}

func (s *shim) info() frame.InfoAnswer {
	st, _ := s.spool.State()
	i := frame.InfoAnswer{State: wire.SessionRunning, Oldest: st.Oldest, End: st.End, Lost: st.Lost}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.exit != nil {
		i.State = wire.SessionExited
	}
	if s.cmd != nil {
		i.PID = s.cmd.cmd.Process.Pid
	}
	i.Clients = s.attached()
	return i
}

// attached counts the clients. The caller holds the mutex.
func (s *shim) attached() (n int) {
	for c := range s.conns {
		if c.attached.Load() {
			n++
		}
	}
	return n
}

func (s *shim) clients() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.attached()
}
