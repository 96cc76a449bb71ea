package api

import (
	"errors"
	"net/http"
	"time"

	"fleet.example/fleet/agentd/watch"
	"fleet.example/fleet/core/wire"
)

const (
	// readerStall is how long a client may take nothing before its connection is
	// closed. It may come back with the token of what it has.
	readerStall = 10 * time.Minute
	// eventsAtOnce is about how many bytes of events are sent together.
	eventsAtOnce = 64 << 10
)

// watch sends what changes, as it changes, until the client leaves.
func (s *Server) watch(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	f, release, err := s.filesOf(r)
	if err != nil {
		refuseFile(w, err)
		return
	}
	place, err := f.Place(q.Get("path"))
	release()
	if err != nil {
		refuseFile(w, err)
		return
	}
	reader, err := s.Watches.Open(watch.Target{Dir: place.Dir, Path: place.Path, Name: place.Name, Real: !f.Confined(), Scope: scopeOf(r),
		Shallow: q.Has("shallow"), Initial: q.Has("initial")}, q.Get("from"))
	if err != nil {
		refuseWatch(w, err)
		return
	}
	defer reader.Close()
	rc := http.NewResponseController(w)
	defer rc.SetWriteDeadline(time.Time{})
	w.Header().Set("Content-Type", "application/jsonl")
	w.WriteHeader(http.StatusOK)
	rc.Flush()
	buf := make([]byte, 0, eventsAtOnce+4<<10)
	for {
		buf, err = reader.Next(r.Context(), buf[:0], eventsAtOnce)
		if err != nil || len(buf) == 0 {
			return
		}
		rc.SetWriteDeadline(time.Now().Add(readerStall))
		if _, err = w.Write(buf); err != nil {
			return
		}
		if rc.Flush() != nil {
			return
		}
	}
}

func refuseWatch(w http.ResponseWriter, err error) {
	e := new(watch.Error)
	if !errors.As(err, &e) {
		e = &watch.Error{Code: wire.CodeInternal, Msg: err.Error()}
	}
	status := http.StatusInternalServerError
	switch e.Code {
	case wire.CodeBusy, wire.CodeWatchLimit:
		status = http.StatusTooManyRequests
	case wire.CodeForbidden:
		status = http.StatusForbidden
	}
	refuseHint(w, status, e.Code, e.Msg, e.Hint)
}
