package api

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"strconv"
	"strings"
	"syscall"
	"time"

	"fleet.example/fleet/agentd/files"
	"fleet.example/fleet/core/splice"
	"fleet.example/fleet/core/wire"
)

const (
	// forwardTimeout bounds how long a target may take to accept.
	forwardTimeout = 10 * time.Second
	// maxForwards bounds how many connections are forwarded at a time.
	maxForwards = 512
)

// forward makes the connection one to a port of this machine or to a UNIX
// socket, with the account's own rights. It leads nowhere else.
// With a workspace's token the socket is one of that.
func (s *Server) forward(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), wire.UpgradeForward) {
		w.Header().Set("Upgrade", wire.UpgradeForward)
		refuse(w, http.StatusUpgradeRequired, wire.CodeBadRequest, "a forward needs Upgrade: "+wire.UpgradeForward)
		return
	}
	select {
	case s.forwards <- struct{}{}:
		defer func() { <-s.forwards }()
	default:
		refuse(w, http.StatusTooManyRequests, wire.CodeBusy, fmt.Sprintf("%d connections are forwarded already", maxForwards))
		return
	}
	f, release, err := s.filesOf(r)
	if err != nil {
		refuseFile(w, err)
		return
	}
	to := r.URL.Query().Get("to")
	far, err := dialTarget(r.Context(), f, to)
	release()
	if err != nil {
		refuseTarget(w, to, err)
		return
	}
	defer far.Close()
	near, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return
	}
	defer near.Close()
	near.SetDeadline(time.Now().Add(headerTimeout))
	io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+wire.UpgradeForward+"\r\n\r\n")
	if rw.Flush() != nil {
		return
	}
	near.SetDeadline(time.Time{})
	splice.Conns(ahead{plain(near), rw.Reader}, far)
}

// ahead is a connection of which some bytes were read already.
type ahead struct {
	net.Conn
	r *bufio.Reader
}

func (a ahead) Read(p []byte) (int, error) { return a.r.Read(p) }

// CloseWrite passes a half-close on.
func (a ahead) CloseWrite() error {
	if h, ok := a.Conn.(interface{ CloseWrite() error }); ok {
		return h.CloseWrite()
	}
	return a.Conn.Close()
}

var errTarget = errors.New("it is neither a port nor the path of a socket")

func dialTarget(ctx context.Context, f *files.Files, to string) (net.Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, forwardTimeout)
	defer cancel()
	var d net.Dialer
	if strings.HasPrefix(to, "~/") || strings.HasPrefix(to, "/") {
		at, release, err := f.Socket(to)
		if err != nil {
			return nil, err
		}
		defer release()
		return d.DialContext(ctx, "unix", at)
	}
	port, err := strconv.ParseUint(to, 10, 16)
	if err != nil || port == 0 {
		return nil, errTarget
	}
	far, err := d.DialContext(ctx, "tcp", net.JoinHostPort("127.0.0.1", to))
	if errors.Is(err, syscall.ECONNREFUSED) { // a program may listen on the other loopback alone
		if six, err6 := d.DialContext(ctx, "tcp", net.JoinHostPort("::1", to)); err6 == nil {
			return six, nil
		}
	}
	return far, err
}

func refuseTarget(w http.ResponseWriter, to string, err error) {
	if confined := new(files.Error); errors.As(err, &confined) {
		refuseFile(w, err)
		return
	}
	switch {
	case errors.Is(err, errTarget):
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, fmt.Sprintf("cannot forward to %.64q: %v", to, err))
	case errors.Is(err, syscall.ECONNREFUSED), errors.Is(err, fs.ErrNotExist), errors.Is(err, context.DeadlineExceeded):
		refuse(w, http.StatusBadGateway, wire.CodeNoListener, fmt.Sprintf("nothing listens at %.64s on the machine", to))
	case errors.Is(err, fs.ErrPermission):
		refuse(w, http.StatusForbidden, wire.CodeForbidden, fmt.Sprintf("the account may not connect to %.64s", to))
	default:
		refuse(w, http.StatusBadGateway, wire.CodeNoListener, fmt.Sprintf("cannot connect to %.64s on the machine: %v", to, err))
	}
}
