package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"fleet.example/fleet/core/splice"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

const (
	// maxCopies bounds how many copies are under way at a time.
	maxCopies = 32
	// endTimeout bounds how long an attempt that was cut may take to end.
	endTimeout = 30 * time.Second
)

// copies are those that are under way, by their ids and by the scope of the
// token that began them: with another token none is found, joined or ended.
type copies struct {
	mu   sync.Mutex
	byID map[string]*copying
}

// copying is one copy's attempt.
type copying struct {
	end  context.CancelFunc
	over chan struct{}

	begun chan struct{} // closed once addLane is there

	mu      sync.Mutex
	src     *tree.Source         // of one that sends
	addLane func(net.Conn) error // nil once it is over
}

func (c *copies) count() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.byID)
}

// begin makes an attempt the one of its id. One that is there was cut, and ends
// first.
func (c *copies) begin(id string, end context.CancelFunc) (*copying, error) {
	timeout := time.NewTimer(endTimeout)
	defer timeout.Stop()
	for {
		c.mu.Lock()
		old := c.byID[id]
		if old == nil {
			if len(c.byID) >= maxCopies {
				c.mu.Unlock()
				return nil, fmt.Errorf("%d copies are under way already", maxCopies)
			}
			if c.byID == nil {
				c.byID = map[string]*copying{}
			}
			n := &copying{end: end, over: make(chan struct{}), begun: make(chan struct{})}
			c.byID[id] = n
			c.mu.Unlock()
			return n, nil
		}
		c.mu.Unlock()
		old.end()
		select {
		case <-old.over:
		case <-timeout.C:
			return nil, errors.New("an attempt of this copy does not end")
		}
	}
}

// sends reports whether a copy of that id sends something that is so.
func (c *copies) sends(id string, is func(*tree.Source) bool) bool {
	c.mu.Lock()
	n := c.byID[id]
	c.mu.Unlock()
	if n == nil {
		return false
	}
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.src != nil && is(n.src)
}

func (n *copying) from(src *tree.Source) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.src = src
}

func (c *copies) finish(id string, n *copying) {
	n.end()
	c.mu.Lock()
	delete(c.byID, id)
	c.mu.Unlock()
	close(n.over)
}

// tree takes part in a copy of files or directories.
func (s *Server) tree(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), wire.UpgradeTree) {
		w.Header().Set("Upgrade", wire.UpgradeTree)
		refuse(w, http.StatusUpgradeRequired, wire.CodeBadRequest, "a copy needs Upgrade: "+wire.UpgradeTree)
		return
	}
	var req wire.TreeRequest
	if !readBody(w, r, &req) {
		return
	}
	if !wire.IsTreeID(req.ID) {
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "a copy's id is 32 hexadecimal digits")
		return
	}
	switch req.Op {
	case wire.TreeSend, wire.TreeReceive:
		s.copy(w, r, req)
	case wire.TreeLane:
		s.lane(w, r, copyKey(r, req.ID))
	default:
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "a copy's op is send, receive or lane")
	}
}

// copyKey is what a copy is known by. No workspace's name has a slash in it.
func copyKey(r *http.Request, id string) string { return scopeOf(r) + "/" + id }

func (s *Server) copy(w http.ResponseWriter, r *http.Request, req wire.TreeRequest) {
	f, release, err := s.filesOf(r)
	if err != nil {
		refuseFile(w, err)
		return
	}
	defer release()
	key := copyKey(r, req.ID)
	ctx, cancel := context.WithCancel(context.WithoutCancel(r.Context()))
	n, err := s.copies.begin(key, cancel)
	if err != nil {
		cancel()
		refuse(w, http.StatusTooManyRequests, wire.CodeBusy, err.Error())
		return
	}
	defer s.copies.finish(key, n)
	as, sum := "", tree.Sum(req.Sum == wire.TreeSumXXH64)
	var run func(conn net.Conn) (tree.Result, error)
	if req.Op == wire.TreeSend {
		src, err := f.Source(string(req.Path), req.Recursive)
		if err != nil {
			refuseFile(w, err)
			return
		}
		defer src.Close()
		n.from(src)
		defer n.from(nil)
		run = func(conn net.Conn) (tree.Result, error) {
			t := tree.NewSender(ctx, conn, src, tree.SendOptions{Sum: sum, Again: req.Again})
			n.takes(t.AddLane)
			return t.Run()
		}
	} else {
		dst, err := f.Destination(string(req.Path), string(req.Base), req.As)
		if err != nil {
			refuseFile(w, err)
			return
		}
		defer dst.Close()
		if as = dst.As(); s.copies.sends(copyKey(r, req.From), dst.Within) {
			refuse(w, http.StatusConflict, wire.CodeConflict, "a directory cannot be copied into itself")
			return
		}
		run = func(conn net.Conn) (tree.Result, error) {
			t := tree.NewReceiver(ctx, conn, dst, tree.ReceiveOptions{Sum: sum, Recursive: req.Recursive, Again: req.Again})
			n.takes(t.AddLane)
			return t.Run()
		}
	}
	conn, err := upgraded(w, wire.UpgradeTree, as, sum)
	if err != nil {
		return
	}
	defer conn.Close()
	result, err := run(conn)
	n.takes(nil)
	if err != nil {
		s.Logger.Debug("copy ended", "op", req.Op, "error", err)
		return
	}
	s.Logger.Info("copied", "op", req.Op, "files", result.Files, "bytes", result.Bytes)
}

// takes says how the attempt takes further connections; nil: no more.
func (n *copying) takes(addLane func(net.Conn) error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if addLane != nil {
		close(n.begun)
	}
	n.addLane = addLane
}

// lane gives the connection to the copy, which closes it.
func (s *Server) lane(w http.ResponseWriter, r *http.Request, key string) {
	s.copies.mu.Lock()
	n := s.copies.byID[key]
	s.copies.mu.Unlock()
	if n == nil {
		refuse(w, http.StatusNotFound, wire.CodeNotFound, "no such copy is under way")
		return
	}
	conn, err := upgraded(w, wire.UpgradeTree, "", tree.SHA256)
	if err != nil {
		return
	}
	select {
	case <-n.begun:
	case <-n.over:
	}
	n.mu.Lock()
	add := n.addLane
	n.mu.Unlock()
	if add == nil || add(conn) != nil {
		conn.Close()
	}
}

// upgraded makes the request's connection one that speaks the protocol.
func upgraded(w http.ResponseWriter, protocol, as string, sum tree.Sum) (net.Conn, error) {
	conn, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return nil, err
	}
	conn.SetDeadline(time.Now().Add(headerTimeout))
	io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+protocol+"\r\n"+wire.HeaderTreeAs+": "+as+"\r\n")
	if sum == tree.XXH64 {
		io.WriteString(rw, wire.HeaderTreeSum+": "+wire.TreeSumXXH64+"\r\n")
	}
	io.WriteString(rw, "\r\n")
	if err := rw.Flush(); err != nil {
		conn.Close()
		return nil, err
	}
	conn.SetDeadline(time.Time{})
	splice.Roomy(plain(conn))
	return ahead{conn, rw.Reader}, nil
}
