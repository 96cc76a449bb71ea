package sshconn

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sync/errgroup"
)

// An upload is as fast as what is under way at a time lets it be. A server lets
// 2 MiB be under way in one channel (OpenSSH's CHAN_SES_WINDOW_DEFAULT), so
// that one carries 20 MB/s over 100 ms: a large file goes over several there,
// each with a part of it. Nor is more better: what OpenSSH's server has not
// handed on yet it moves about in memory with each packet, and with 2 MiB of it
// takes five times as long as with a quarter.
type width struct {
	lanes int // channels, each with a process on the host
	depth int // packets of 32 KiB under way in each
}

var (
	near = width{1, 16}
	away = width{4, 16}
	far  = width{8, 32}
)

const (
	awayFrom = 10 * time.Millisecond // the round trip
	farFrom  = 40 * time.Millisecond
	// laneSize is the least that is worth a lane, in bytes.
	laneSize = 1 << 20
)

// width is how size bytes are best sent.
func (c *Conn) width(r io.Reader, size int64) width {
	w := near
	if _, ok := r.(io.ReaderAt); ok && c.rtt >= farFrom {
		w = far
	} else if ok && c.rtt >= awayFrom {
		w = away
	}
	w.lanes = max(1, min(w.lanes, int(size/laneSize)))
	return w
}

// uploadWide sends a file over several channels at once, each of which writes
// its part into the file that whoever comes first makes. The part of a channel
// that the server does not allow is sent over one that it does.
func (c *Conn) uploadWide(ctx context.Context, w width, path string, r io.ReaderAt, size int64, progress func(int64)) (err error) {
	tell := shared(progress)
	part := (size + int64(w.lanes) - 1) / int64(w.lanes)
	clients, refused := make([]*sftp.Client, w.lanes), make([]error, w.lanes)
	defer func() { c.closeLanes(clients, err != nil) }()
	send := func(ctx context.Context, cl *sftp.Client, i int) (err error) {
		stop := context.AfterFunc(ctx, func() { cl.Close() }) // one that failed ends all
		defer stop()
		f, err := cl.OpenFile(path, os.O_WRONLY|os.O_CREATE)
		if err != nil {
			return err
		}
		// It is closed with its channel: every write was answered by then, and
		// what arrived is hashed over there, so that the answer to a close would
		// tell nothing for its round trip.
		from := min(int64(i)*part, size)
		if _, err := f.Seek(from, io.SeekStart); err != nil {
			return err
		}
		length := min(part, size-from)
		return (&sized{r: io.NewSectionReader(r, from, length), left: length, progress: tell()}).into(f)
	}
	g, gctx := errgroup.WithContext(ctx)
	var made sync.Once
	for i := range w.lanes {
		g.Go(func() error {
			cl, err := c.sftp(gctx, w.depth)
			if err != nil {
				refused[i] = err
				return nil
			}
			clients[i] = cl
			made.Do(func() { // by name: an sftp.File does one thing after the other
				g.Go(func() error { return attributes(cl, path, size) })
			})
			return send(gctx, cl, i)
		})
	}
	if err = g.Wait(); err != nil {
		return err
	}
	one := slices.IndexFunc(clients, func(cl *sftp.Client) bool { return cl != nil })
	if one < 0 {
		return &noSFTP{errors.Join(refused...)}
	}
	for i, err := range refused {
		if err == nil {
			continue
		}
		if err := send(ctx, clients[one], i); err != nil {
			return err
		}
	}
	return nil
}

// lastWrites bounds how long a host may take to end what writes to a file.
const lastWrites = 5 * time.Second

// closeLanes ends the clients. That takes a round trip, for which nobody need
// wait but who is about to do something else with the file: what is under way
// could still write to it.
func (c *Conn) closeLanes(clients []*sftp.Client, wait bool) {
	var lanes sync.WaitGroup
	for _, cl := range clients {
		if cl != nil {
			lanes.Add(1)
			c.wg.Go(func() {
				defer lanes.Done()
				cl.Close() // comes back when the far program has ended
			})
		}
	}
	if !wait {
		return
	}
	over := make(chan struct{})
	c.wg.Go(func() {
		lanes.Wait()
		close(over)
	})
	select {
	case <-over:
	case <-time.After(lastWrites):
	}
}

// attributes makes path a private file of size bytes, which it may be already.
func attributes(cl *sftp.Client, path string, size int64) error {
	f, err := cl.OpenFile(path, os.O_WRONLY|os.O_CREATE)
	if err != nil {
		return err
	}
	return errors.Join(f.Chmod(0o600), f.Truncate(size), f.Close())
}

// noSFTP says that no channel could be opened for it: nothing was begun.
type noSFTP struct{ err error }

func (e *noSFTP) Error() string { return e.err.Error() }

// shared adds up the progress of several senders.
func shared(progress func(int64)) func() func(int64) {
	var mu sync.Mutex
	var total int64
	return func() func(int64) {
		var before int64
		return func(n int64) {
			mu.Lock()
			defer mu.Unlock()
			total += n - before
			before = n
			if progress != nil {
				progress(total)
			}
		}
	}
}

// paced learns the round trip from a handshake: the middle one of the times
// between something sent and something received. Some of them are shorter, for
// a server says parts of it without having been asked.
type paced struct {
	net.Conn
	mu      sync.Mutex
	sent    time.Time // zero: nothing since the last answer
	answers []time.Duration
	done    bool
}

// enough is how many answers tell the round trip, whatever comes after them.
const enough = 32

func (p *paced) Write(b []byte) (int, error) {
	n, err := p.Conn.Write(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done && p.sent.IsZero() {
		p.sent = time.Now()
	}
	return n, err
}

func (p *paced) Read(b []byte) (int, error) {
	n, err := p.Conn.Read(b)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.done && n > 0 && !p.sent.IsZero() && len(p.answers) < enough {
		p.answers = append(p.answers, time.Since(p.sent))
		p.sent = time.Time{}
	}
	return n, err
}

// roundTrip ends the watching.
func (p *paced) roundTrip() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	if len(p.answers) == 0 {
		return 0
	}
	slices.Sort(p.answers)
	return p.answers[len(p.answers)/2]
}
