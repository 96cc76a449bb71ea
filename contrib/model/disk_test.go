package model

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"sync"
	"syscall"
)

// disk is a directory. What was not synced may be lost in a power cut: content
// is torn, and of the directory's changes since the last SyncDir only some
// first ones survive.
type disk struct {
	mu      sync.Mutex // of everything; never held while anything waits
	lock    sync.Mutex // the lock of the credential's files
	now     map[string]*inode
	durable map[string]*inode
	ops     []func(map[string]*inode) // changes since the last SyncDir
	full    bool
	unread  bool // reads fail, as in a process without file descriptors
	// written is told of whole contents.
	written func(data []byte)
}

type inode struct {
	data   string
	synced bool
}

var (
	errFull = errors.New("no space left on device")
	errRead = fmt.Errorf("open: %w", syscall.EMFILE)
	errDead = errors.New("the process is dead")
)

func newDisk(written func([]byte)) *disk {
	return &disk{now: map[string]*inode{}, durable: map[string]*inode{}, written: written}
}

// images are what the disk may hold after a power cut now.
func (d *disk) images() []map[string]*inode {
	d.mu.Lock()
	defer d.mu.Unlock()
	var out []map[string]*inode
	for n := range len(d.ops) + 1 {
		m := maps.Clone(d.durable)
		for _, op := range d.ops[:n] {
			op(m)
		}
		for k, v := range m {
			switch {
			case v == nil:
				delete(m, k)
			case !v.synced:
				m[k] = &inode{data: v.data[:len(v.data)/2], synced: true}
			}
		}
		out = append(out, m)
	}
	return append(out, maps.Clone(d.now))
}

// cut is the power cut that leaves this image.
func (d *disk) cut(image map[string]*inode) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.now, d.durable, d.ops = image, maps.Clone(image), nil
}

// process is one process's view of the disk, credential.FS. After it has died
// nothing that it does has an effect.
type process struct {
	*disk
	dead    bool
	crashIn int // steps until it dies, 0: it does not
}

// step runs f with the disk at hand, unless the process dies before it.
func (p *process) step(f func() error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.crashIn > 0 {
		if p.crashIn--; p.crashIn == 0 {
			p.dead = true
		}
	}
	if p.dead {
		return errDead
	}
	return f()
}

func (p *process) alive() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.dead
}

func (p *process) die() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.dead = true
}

func (d *disk) change(op func(map[string]*inode)) {
	op(d.now)
	d.ops = append(d.ops, op)
}

func (p *process) Read(name string) ([]byte, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	f := p.now[name]
	switch {
	case p.dead:
		return nil, errDead
	case p.unread:
		return nil, errRead
	case f == nil:
		return nil, fs.ErrNotExist
	}
	return []byte(f.data), nil
}

func (p *process) Write(name string, data []byte) error {
	f := &inode{}
	err := p.step(func() error {
		p.change(func(m map[string]*inode) { m[name] = f })
		if p.full {
			f.data = string(data[:len(data)/3])
			return errFull
		}
		return nil
	})
	if err != nil {
		return err
	}
	return p.step(func() error {
		f.data = string(data)
		p.written(data)
		return nil
	})
}

func (p *process) Sync(name string) error {
	return p.step(func() error {
		if p.now[name] == nil {
			return fs.ErrNotExist
		}
		p.now[name].synced = true
		return nil
	})
}

func (p *process) Rename(from, to string) error {
	return p.step(func() error {
		switch f := p.now[from]; {
		case f == nil:
			return fs.ErrNotExist
		case p.now[to] == f:
			return nil // as POSIX has it
		}
		p.change(func(m map[string]*inode) { m[to] = m[from]; delete(m, from) })
		return nil
	})
}

func (p *process) Link(from, to string) error {
	return p.step(func() error {
		switch {
		case p.now[from] == nil:
			return fs.ErrNotExist
		case p.now[to] != nil:
			return fs.ErrExist
		}
		p.change(func(m map[string]*inode) { m[to] = m[from] })
		return nil
	})
}

func (p *process) Remove(name string) error {
	return p.step(func() error {
		p.change(func(m map[string]*inode) { delete(m, name) })
		return nil
	})
}

func (p *process) SyncDir() error {
	return p.step(func() error {
		p.ops, p.durable = nil, maps.Clone(p.now)
		return nil
	})
}

// Lock: nobody waits while he holds it, so it needs no time of the bubble's.
func (p *process) Lock() (func(), error) {
	p.lock.Lock()
	return p.lock.Unlock, nil
}
