package sshconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"sync"
	"time"

	"github.com/pkg/sftp"
	"golang.org/x/sync/errgroup"
)

// What a server lets be under way in one channel is 2 MiB (OpenSSH's
// CHAN_SES_WINDOW_DEFAULT), so that one channel carries 20 MB/s over 100 ms. A
// large file goes over several channels there, each with a part of it.
const (
	maxLanes = 4
	// farAway is the round trip from which on lanes are worth their processes on
	// the host.
	farAway = 10 * time.Millisecond
	// laneSize is the least that is worth a lane, in bytes.
	laneSize = 1 << 20
)

// lanes is over how many channels size bytes are best sent.
func (c *Conn) lanes(r io.Reader, size int64) int {
	if _, ok := r.(io.ReaderAt); !ok || c.rtt < farAway {
		return 1
	}
	return max(1, min(maxLanes, int(size/laneSize)))
}

// uploadWide sends a file over several channels, all opened at once. The first
// makes the file and the others write into what it made. Channels that the
// server does not allow are done without.
func (c *Conn) uploadWide(ctx context.Context, want int, path string, r io.ReaderAt, size int64, progress func(int64)) error {
	clients, errs := make([]*sftp.Client, want), make([]error, want)
	var opening sync.WaitGroup
	for i := range want {
		opening.Go(func() { clients[i], errs[i] = c.sftp(ctx) })
	}
	opening.Wait()
	clients = slices.DeleteFunc(clients, func(cl *sftp.Client) bool { return cl == nil })
	defer func() {
		for _, cl := range clients {
			cl.Close()
		}
	}()
	if len(clients) == 0 {
		return &noSFTP{errors.Join(errs...)}
	}
	first, err := clients[0].OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	stop := context.AfterFunc(ctx, func() { // one that failed ends all
		for _, cl := range clients {
			cl.Close()
		}
	})
	defer stop()
	g.Go(func() error { return first.Chmod(0o600) })
	tell := shared(progress)
	part := (size + int64(len(clients)) - 1) / int64(len(clients))
	for i, cl := range clients {
		from := min(int64(i)*part, size)
		length := min(part, size-from)
		g.Go(func() (err error) {
			f := first
			if i > 0 {
				if f, err = cl.OpenFile(path, os.O_WRONLY); err != nil {
					return err
				}
			}
			defer func() { err = errors.Join(err, f.Close()) }()
			if _, err := f.Seek(from, io.SeekStart); err != nil {
				return err
			}
			n, err := f.ReadFrom(&sized{r: io.NewSectionReader(r, from, length), left: length, progress: tell()})
			if err == nil && n != length {
				err = fmt.Errorf("%d of %d bytes were sent", n, length)
			}
			return err
		})
	}
	return g.Wait()
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

// paced learns the round trip from a handshake: it is the shortest time between
// something sent and something received.
type paced struct {
	net.Conn
	mu       sync.Mutex
	sent     time.Time // zero: nothing since the last answer
	shortest time.Duration
	done     bool
}

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
	if !p.done && n > 0 && !p.sent.IsZero() {
		if d := time.Since(p.sent); p.shortest == 0 || d < p.shortest {
			p.shortest = d
		}
		p.sent = time.Time{}
	}
	return n, err
}

// roundTrip ends the watching.
func (p *paced) roundTrip() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done = true
	return p.shortest
}
