//go:build linux

package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"
)

// Logger is where the lab says what it does; a testing.TB is one.
type Logger interface {
	Logf(format string, args ...any)
}

// Options are the settings of a lab.
type Options struct {
	// Label stands in the lab's record, for people who list labs. Default: the name of the program.
	Label string
}

// Lab is one network of hosts. Its methods may be called concurrently.
type Lab struct {
	id      int
	dir     string
	token   string
	log     Logger
	watcher *watcher
	closing chan struct{}

	mu     sync.Mutex
	record Record
	hosts  []*Host // by number; a slot is taken before its host is up
	closed bool
}

// New brings up the network of a lab without hosts, after it cleaned up after labs whose owners are dead. The
// context bounds New alone. Whoever calls New calls Close.
func New(ctx context.Context, log Logger, opts Options) (_ *Lab, err error) {
	if err := Available(); err != nil {
		return nil, fmt.Errorf("cannot start a lab: %w", err)
	}
	if opts.Label == "" {
		opts.Label = filepath.Base(os.Args[0])
	}
	id, token, err := claim(ctx, log, opts.Label)
	if err != nil {
		return nil, err
	}
	l := &Lab{id: id, dir: filepath.Join(baseDir, strconv.Itoa(id)), token: token, log: log, closing: make(chan struct{})}
	l.watcher, err = startWatcher(l.dir, token)
	if err != nil {
		return nil, errors.Join(err, teardown(context.WithoutCancel(ctx), l.dir, token))
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Close())
		}
	}()
	if l.record, err = readRecord(l.dir); err != nil {
		return nil, fmt.Errorf("cannot read lab record: %w", err)
	}
	l.record.KeyPath = l.KeyPath()
	if err := run(ctx, "", "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "lab", "-f", l.KeyPath()); err != nil {
		return nil, err
	}
	if err := l.startNetwork(ctx); err != nil {
		return nil, err
	}
	return l, l.save(func(*Record) {})
}

// ID is the lab's number, and the third byte of its addresses.
func (l *Lab) ID() int { return l.id }

// PlaneAddr is the address in the root namespace that hosts reach: listen here.
func (l *Lab) PlaneAddr() string { return planeAddr(l.id) }

// RouterAddr is the address under which PlaneAddr sees every host.
func (l *Lab) RouterAddr() string { return routerAddr(l.id) }

// OperatorAddr is the address from which the root namespace reaches hosts, without asking for it.
func (l *Lab) OperatorAddr() string { return operatorAddr(l.id) }

// KeyPath is a private ed25519 key without passphrase that every account of every host accepts, unless its
// HostSpec says NoLabKey. The public key stands beside it in KeyPath.pub.
func (l *Lab) KeyPath() string { return filepath.Join(l.dir, "key") }

// Hosts returns the hosts that are up or were, in the order in which they were asked for.
func (l *Lab) Hosts() []*Host {
	l.mu.Lock()
	defer l.mu.Unlock()
	var out []*Host
	for _, h := range l.hosts {
		if h != nil {
			out = append(out, h)
		}
	}
	return out
}

// Record returns what the lab's file says now.
func (l *Lab) Record() Record {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.record
	r.Hosts = append([]HostInfo{}, r.Hosts...)
	return r
}

// Close ends every process of the lab at once, as if the power failed, and removes all that New and Host made. It
// has a deadline of its own. Closing twice is no error.
func (l *Lab) Close() error {
	l.mu.Lock()
	again := l.closed
	l.closed = true
	l.mu.Unlock()
	if again {
		return nil
	}
	close(l.closing)
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Second)
	defer cancel()
	err := l.watcher.close(ctx)
	for _, h := range l.Hosts() {
		h.wait(ctx)
	}
	return err
}

// save changes the record and writes it. After Close it does nothing: the file is gone for good.
func (l *Lab) save(change func(*Record)) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.record)
	if l.closed {
		return nil
	}
	if err := writeRecord(l.dir, l.record); err != nil {
		return fmt.Errorf("cannot write lab record: %w", err)
	}
	return nil
}

func (l *Lab) publicKey() (string, error) {
	data, err := os.ReadFile(l.KeyPath() + ".pub")
	if err != nil {
		return "", fmt.Errorf("cannot read lab key: %w", err)
	}
	return strings.TrimSpace(string(data)), nil
}
