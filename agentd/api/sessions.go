package api

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/agentd/session"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/loopback"
	"fleet.example/fleet/core/wire"
)

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) {
	list, err := s.Sessions.List(r.Context())
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return
	}
	own := list[:0]
	for _, one := range list {
		one.Schema = ""
		if scope := scopeOf(r); scope == "" || scope == one.Workspace {
			own = append(own, one)
		}
	}
	answer(w, wire.Sessions{Schema: wire.SchemaSessions, Sessions: own})
}

func (s *Server) showSession(w http.ResponseWriter, r *http.Request) {
	if !s.mayReach(w, r) {
		return
	}
	one, err := s.Sessions.Get(r.Context(), r.PathValue("id"))
	if err != nil {
		refuseSession(w, err)
		return
	}
	answer(w, one)
}

// mayReach refuses a session that is not within the token's scope as one that
// is not there.
func (s *Server) mayReach(w http.ResponseWriter, r *http.Request) bool {
	scope := scopeOf(r)
	if scope == "" {
		return true
	}
	in, err := s.Sessions.WorkspaceOf(r.PathValue("id"))
	if err == nil && in != scope {
		err = session.ErrNotFound
	}
	if err != nil {
		refuseSession(w, err)
		return false
	}
	return true
}

// createSession starts a session. With Upgrade the connection becomes its
// stream at once, which saves a round trip.
func (s *Server) createSession(w http.ResponseWriter, r *http.Request) {
	var req wire.SessionRequest
	if !readBody(w, r, &req) {
		return
	}
	// A request that is made again may have started its session before the drain.
	if _, err := s.Sessions.WorkspaceOf(req.ID); err != nil && s.Agent.Draining() {
		refuseHint(w, http.StatusConflict, wire.CodeDraining, "this machine is draining and starts no session", "fleet undrain lets it accept work again")
		return
	}
	if scope := scopeOf(r); scope != "" {
		if req.Workspace == "" {
			req.Workspace = scope
		}
		in, err := s.Sessions.WorkspaceOf(req.ID)
		if req.Workspace != scope || err == nil && in != scope {
			refuseScope(w, scope)
			return
		}
	}
	if req.Workspace != "" {
		leave, err := s.enter(r.Context(), &req)
		if err != nil {
			refuseWorkspace(w, err)
			return
		}
		defer leave()
	}
	id, err := s.Sessions.Create(r.Context(), req)
	if err != nil {
		refuseSession(w, err)
		return
	}
	s.Sessions.SweepSoon()
	if wantsStream(r) {
		s.stream(w, r, id, req.First)
		return
	}
	one, err := s.Sessions.Get(r.Context(), id)
	if err != nil {
		refuseSession(w, err)
		return
	}
	answerWith(w, http.StatusCreated, one)
}

func (s *Server) signalSession(w http.ResponseWriter, r *http.Request) {
	var req wire.SignalRequest
	if !readBody(w, r, &req) {
		return
	}
	if !s.mayReach(w, r) {
		return
	}
	id := r.PathValue("id")
	if err := s.Sessions.Signal(r.Context(), id, req.Signal); err != nil {
		refuseSession(w, err)
		return
	}
	s.Logger.Info("session signalled", "session", id, "signal", strings.ToUpper(req.Signal))
	one, err := s.Sessions.Get(r.Context(), id)
	if err != nil {
		refuseSession(w, err)
		return
	}
	answer(w, one)
}

func refuseSession(w http.ResponseWriter, err error) {
	var bad *session.RequestError
	switch {
	case errors.As(err, &bad), errors.Is(err, session.ErrBadSignal):
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, err.Error())
	case errors.Is(err, session.ErrNotFound):
		refuse(w, http.StatusNotFound, wire.CodeNotFound, err.Error())
	case errors.Is(err, session.ErrEnded):
		refuse(w, http.StatusConflict, wire.CodeConflict, err.Error())
	case errors.Is(err, session.ErrTooMany):
		refuse(w, http.StatusTooManyRequests, wire.CodeBusy, err.Error())
	case errors.Is(err, session.ErrUnclear):
		refuse(w, http.StatusServiceUnavailable, wire.CodeCannotTell, err.Error())
	default:
		refuse(w, http.StatusInternalServerError, wire.CodeSessionUnusable, err.Error())
	}
}

func wantsStream(r *http.Request) bool {
	return strings.EqualFold(r.Header.Get("Upgrade"), wire.UpgradeSession)
}

func (s *Server) streamSession(w http.ResponseWriter, r *http.Request) {
	if !wantsStream(r) {
		w.Header().Set("Upgrade", wire.UpgradeSession)
		refuse(w, http.StatusUpgradeRequired, wire.CodeBadRequest, "a stream needs Upgrade: "+wire.UpgradeSession)
		return
	}
	if s.mayReach(w, r) {
		s.stream(w, r, r.PathValue("id"), nil)
	}
}

// stream turns the connection into the session's stream, which begins with what
// the request brought of it. Once the shim has answered, agentd only moves bytes
// between the client and it.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, id string, first []byte) {
	shim, err := s.Sessions.Stream(r.Context(), id)
	if err != nil {
		refuseSession(w, err)
		return
	}
	nc, rw, err := http.NewResponseController(w).Hijack()
	if err != nil {
		if shim != nil {
			shim.Close()
		}
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return
	}
	defer nc.Close()
	nc.SetDeadline(time.Now().Add(headerTimeout))
	io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+wire.UpgradeSession+
		"\r\n"+wire.HeaderSession+": "+id+"\r\n"+wire.HeaderFirst+": "+strconv.Itoa(len(first))+"\r\n\r\n")
	err = rw.Flush()
	ahead := bytes.NewReader(first)
	in := io.MultiReader(ahead, rw.Reader)
	var opening []byte
	if err == nil {
		var t frame.Type
		var p []byte
		if t, p, err = frame.NewReader(in).Next(); err == nil {
			opening = frame.Append(nil, t, p)
		}
	}
	if err != nil {
		if shim != nil {
			shim.Close()
		}
		return
	}
	nc.SetDeadline(time.Time{})
	shim, answer, err := s.open(r.Context(), id, shim, opening)
	switch {
	case err == nil && shim != nil:
		rest, _ := io.ReadAll(ahead)
		buffered, _ := rw.Reader.Peek(rw.Reader.Buffered())
		relay(nc, append(rest, buffered...), shim, answer)
	case err == nil:
		err = s.Sessions.Replay(nc, frame.NewReader(io.MultiReader(bytes.NewReader(opening), in)), id)
	}
	if err != nil {
		s.Logger.Debug("stream ended", "session", id, "error", err)
	}
}

// open sends a client's first frame and returns the shim with the beginning of
// its answer. A shim that hangs up instead was just letting go of the session:
// it is looked for again, until it is gone and there is none.
func (s *Server) open(ctx context.Context, id string, shim net.Conn, opening []byte) (net.Conn, []byte, error) {
	ctx, cancel := context.WithTimeout(ctx, headerTimeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	answer := make([]byte, 4<<10)
	for gap := time.Millisecond; shim != nil; gap = min(2*gap, 200*time.Millisecond) {
		shim.SetDeadline(deadline)
		_, err := shim.Write(opening)
		n := 0
		if err == nil {
			n, err = shim.Read(answer)
		}
		if n > 0 {
			shim.SetDeadline(time.Time{})
			return shim, answer[:n], nil
		}
		shim.Close()
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return nil, nil, err
		}
		select {
		case <-ctx.Done():
			return nil, nil, err
		case <-time.After(gap):
		}
		if shim, err = s.Sessions.Stream(ctx, id); err != nil {
			return nil, nil, err
		}
	}
	return nil, nil, nil
}

// relay moves bytes until either side ends, first what has come of them
// already. When the client ends, or the shim takes nothing more, the shim is
// told so and ends the stream itself: a shim that has sent its last frame and
// left takes no acknowledgement any more, and that frame is still to be passed
// on.
func relay(client net.Conn, up []byte, shim net.Conn, down []byte) {
	sent := make(chan struct{})
	go func() {
		defer close(sent)
		defer endOfInput(shim)
		if len(up) > 0 {
			if _, err := shim.Write(up); err != nil {
				return
			}
		}
		io.Copy(shim, plain(client))
	}()
	if _, err := client.Write(down); err == nil {
		io.Copy(plain(client), shim)
	}
	client.Close()
	shim.Close()
	<-sent
}

// endOfInput tells the shim that the client sends nothing more, by which it
// takes the client to have left.
func endOfInput(shim net.Conn) {
	if h, ok := shim.(interface{ CloseWrite() error }); ok {
		h.CloseWrite()
		return
	}
	shim.Close()
}

// plain is the connection that io.Copy knows how to splice.
func plain(c net.Conn) net.Conn {
	if guarded, ok := c.(*loopback.Conn); ok {
		c = guarded.Stream
	}
	if s, ok := c.(*slotConn); ok {
		return s.stream
	}
	return c
}
