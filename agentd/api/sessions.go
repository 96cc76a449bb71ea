package api

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/agentd/session"
	"fleet.example/fleet/core/frame"
	"fleet.example/fleet/core/wire"
)

func (s *Server) listSessions(w http.ResponseWriter, r *http.Request) {
	list, err := s.Sessions.List(r.Context())
	if err != nil {
		refuse(w, http.StatusInternalServerError, wire.CodeInternal, err.Error())
		return
	}
	for i := range list {
		list[i].Schema = ""
	}
	answer(w, wire.Sessions{Schema: wire.SchemaSessions, Sessions: list})
}

func (s *Server) showSession(w http.ResponseWriter, r *http.Request) {
	one, err := s.Sessions.Get(r.Context(), r.PathValue("id"))
	if err != nil {
		refuseSession(w, err)
		return
	}
	answer(w, one)
}

// createSession starts a session. With Upgrade the connection becomes its
// stream at once, which saves a round trip.
func (s *Server) createSession(w http.ResponseWriter, r *http.Request) {
	var req wire.SessionRequest
	if !readBody(w, r, &req) {
		return
	}
	if s.Agent.Draining() {
		refuseHint(w, http.StatusConflict, wire.CodeDraining, "this machine is draining and starts no session", "fleet undrain lets it accept work again")
		return
	}
	if req.Workspace != "" {
		refuse(w, http.StatusNotFound, wire.CodeWorkspaceMissing, "no workspace has this name")
		return
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
	s.stream(w, r, r.PathValue("id"), nil)
}

// stream turns the connection into the session's stream, which begins with what
// the request brought of it. From then on agentd only moves bytes between the
// client and the shim.
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
	if rw.Flush() != nil {
		if shim != nil {
			shim.Close()
		}
		return
	}
	nc.SetDeadline(time.Time{})
	if shim == nil {
		if err := s.Sessions.Replay(nc, frame.NewReader(io.MultiReader(bytes.NewReader(first), rw.Reader)), id); err != nil {
			s.Logger.Debug("replay ended", "session", id, "error", err)
		}
		return
	}
	if len(first) > 0 {
		if _, err := shim.Write(first); err != nil {
			shim.Close()
			return
		}
	}
	splice(nc, rw.Reader, shim)
}

// splice moves bytes until either side ends. When the client ends, or the shim
// takes nothing more, the shim is told so and ends the stream itself: a shim
// that has sent its last frame and left takes no acknowledgement any more, and
// that frame is still to be passed on.
func splice(client net.Conn, buffered *bufio.Reader, shim net.Conn) {
	up := make(chan struct{})
	go func() {
		defer close(up)
		defer endOfInput(shim)
		// What came with the request is in the buffer; the rest is moved
		// without one, by the kernel where it can.
		if n := buffered.Buffered(); n > 0 {
			head, _ := buffered.Peek(n)
			if _, err := shim.Write(head); err != nil {
				return
			}
		}
		io.Copy(shim, plain(client))
	}()
	io.Copy(plain(client), shim)
	client.Close()
	shim.Close()
	<-up
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
	if s, ok := c.(*slotConn); ok {
		return s.UnixConn
	}
	return c
}
