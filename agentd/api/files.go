package api

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"os"
	"strconv"
	"strings"
	"time"

	"fleet.example/fleet/agentd/files"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

const (
	// stallTimeout is how long a client may neither send nor take a piece of a
	// file. There is no bound on the whole.
	stallTimeout = 60 * time.Second
	// pieceSize is how much of a file is in memory at a time.
	pieceSize = 64 << 10
	// maxFileCalls bounds how many files and directories are open at a time.
	maxFileCalls = 128
)

// files answers what is asked of a file. The path is one escaped segment, which
// a multiplexer would make clean.
func (s *Server) files(w http.ResponseWriter, r *http.Request) {
	select {
	case s.fileCalls <- struct{}{}:
		defer func() { <-s.fileCalls }()
	default:
		refuse(w, http.StatusTooManyRequests, wire.CodeBusy, "too many files are open")
		return
	}
	p, err := url.PathUnescape(strings.TrimPrefix(r.URL.EscapedPath(), wire.PathFiles))
	if err != nil {
		refuse(w, http.StatusBadRequest, wire.CodeBadRequest, "the path is not escaped well")
		return
	}
	f, release, err := s.filesOf(r)
	if err != nil {
		refuseFile(w, err)
		return
	}
	defer release()
	defer func() { // the connection's next request has its own time
		rc := http.NewResponseController(w)
		rc.SetReadDeadline(time.Time{})
		rc.SetWriteDeadline(time.Time{})
	}()
	q := r.URL.Query()
	switch {
	case r.Method == http.MethodGet && q.Has("stat"):
		var i *wire.FileInfo
		if i, err = f.Stat(p, q.Has("follow")); err == nil {
			i.Schema = wire.SchemaFile
			answer(w, i)
		}
	case r.Method == http.MethodGet && q.Has("list"):
		listFiles(w, f, p)
	case r.Method == http.MethodGet:
		err = readFile(w, r, f, p)
	case r.Method == http.MethodPut:
		err = s.writeFile(w, r, f, p, q)
	case r.Method == http.MethodDelete:
		if err = f.Remove(p, unquote(r.Header.Get("If-Match")), q.Has("recursive")); err == nil {
			w.WriteHeader(http.StatusNoContent)
		}
	default:
		refuse(w, http.StatusMethodNotAllowed, wire.CodeBadRequest, "this path does not take "+r.Method)
	}
	if err != nil {
		refuseFile(w, err)
	}
}

func refuseFile(w http.ResponseWriter, err error) {
	d := fileDetail(err)
	status := http.StatusInternalServerError
	switch d.Code {
	case wire.CodeNotFound:
		status = http.StatusNotFound
	case wire.CodeForbidden:
		status = http.StatusForbidden
	case wire.CodePrecondition:
		status = http.StatusPreconditionFailed
	case wire.CodeTooLarge:
		status = http.StatusRequestEntityTooLarge
	case wire.CodeDiskFull:
		status = http.StatusInsufficientStorage
	case wire.CodeBadRequest, wire.CodeDamaged, wire.CodeNotJSON:
		status = http.StatusBadRequest
	case wire.CodeNotAFile, wire.CodeNotADir, wire.CodeExists, wire.CodeNotEmpty, wire.CodeConflict:
		status = http.StatusConflict
	case wire.CodeBadRange:
		status = http.StatusRequestedRangeNotSatisfiable
	}
	refuseHint(w, status, d.Code, d.Message, d.Hint)
}

func fileDetail(err error) wire.ErrorDetail {
	if e := new(files.Error); errors.As(err, &e) {
		return wire.ErrorDetail{Code: e.Code, Message: e.Msg, Hint: e.Hint}
	}
	if e := new(tree.Error); errors.As(err, &e) {
		return wire.ErrorDetail{Code: e.Code, Message: e.Msg, Hint: e.Hint}
	}
	return wire.ErrorDetail{Code: wire.CodeInternal, Message: err.Error()}
}

// listFiles streams a directory, a line for each entry.
func listFiles(w http.ResponseWriter, f *files.Files, p string) {
	enc := json.NewEncoder(moving{w, http.NewResponseController(w)})
	begun := false
	err := f.List(p, func(i *wire.FileInfo) error {
		begun = true
		return enc.Encode(wire.FileLine{File: i})
	})
	switch {
	case err == nil:
		enc.Encode(wire.FileLine{End: true})
	case !begun:
		refuseFile(w, err)
	default:
		d := fileDetail(err)
		enc.Encode(wire.FileLine{Error: &d})
	}
}

// readFile sends a file, or the range of it that was asked for. What was sent
// and whether the file changed meanwhile stand in the trailers.
func readFile(w http.ResponseWriter, r *http.Request, f *files.Files, p string) error {
	file, i, err := f.Open(p)
	if err != nil {
		return err
	}
	defer file.Close()
	if m := unquote(r.Header.Get("If-Match")); m != "" && m != "*" && m != i.ETag {
		return &files.Error{Code: wire.CodePrecondition, Msg: string(i.Path) + " is not, or no longer, the file that was meant"}
	}
	from, to, partial, err := span(r.Header.Get("Range"), i.Size)
	if err != nil {
		return err
	}
	i.Schema = wire.SchemaFile
	described, err := json.Marshal(i)
	if err != nil {
		return err
	}
	h := w.Header()
	h.Set("Content-Type", "application/octet-stream")
	h.Set("ETag", strconv.Quote(i.ETag))
	h.Set("Accept-Ranges", "bytes")
	h.Set(wire.HeaderFile, url.QueryEscape(string(described)))
	h.Set("Trailer", wire.HeaderSHA256+", "+wire.HeaderFileState)
	status := http.StatusOK
	if partial {
		status = http.StatusPartialContent
		h.Set("Content-Range", "bytes "+strconv.FormatInt(from, 10)+"-"+strconv.FormatInt(to-1, 10)+"/"+strconv.FormatInt(i.Size, 10))
	}
	w.WriteHeader(status)
	sum := sha256.New()
	out := moving{w, http.NewResponseController(w)}
	n, err := io.CopyBuffer(io.MultiWriter(out, sum), io.NewSectionReader(file, from, to-from), make([]byte, pieceSize))
	state := wire.FileAsItWas
	if err == nil && n == to-from {
		err = f.Unchanged(file, i)
	}
	if err != nil || n != to-from {
		state = wire.CodeChanged
	}
	h.Set(wire.HeaderSHA256, hex.EncodeToString(sum.Sum(nil)))
	h.Set(wire.HeaderFileState, state)
	return nil
}

// span reads a Range header with one range of bytes. A range that begins within
// the file is cut at its end.
func span(header string, size int64) (from, to int64, partial bool, err error) {
	if header == "" {
		return 0, size, false, nil
	}
	bad := &files.Error{Code: wire.CodeBadRange, Msg: "the range is not one of the file's " + strconv.FormatInt(size, 10) + " bytes"}
	r, ok := strings.CutPrefix(header, "bytes=")
	first, last, dash := strings.Cut(r, "-")
	if !ok || !dash {
		return 0, 0, false, bad
	}
	if first == "" { // the last so many
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n <= 0 {
			return 0, 0, false, bad
		}
		return max(0, size-n), size, true, nil
	}
	from, err = strconv.ParseInt(first, 10, 64)
	if err != nil || from < 0 || from > size {
		return 0, 0, false, bad
	}
	to = size
	if last != "" {
		n, err := strconv.ParseInt(last, 10, 64)
		if err != nil || n < from {
			return 0, 0, false, bad
		}
		to = min(size, n+1)
	}
	return from, max(from, to), true, nil
}

// writeFile takes a file's content. Its checksum may follow it as a trailer.
func (s *Server) writeFile(w http.ResponseWriter, r *http.Request, f *files.Files, p string, q url.Values) error {
	i, err := f.Write(files.Content{
		Path: p, Mode: q.Get("mode"), OnConflict: q.Get("on_conflict"), Match: unquote(r.Header.Get("If-Match")),
		Body: coming{r.Body, http.NewResponseController(w)}, Sum: func() string { return r.Trailer.Get(wire.HeaderSHA256) },
	})
	if err != nil {
		return err
	}
	s.Logger.Info("file written", "bytes", i.Size)
	i.Schema = wire.SchemaFile
	answer(w, i)
	return nil
}

// unquote is an entity tag without its quotes.
func unquote(tag string) string { return strings.Trim(tag, `"`) }

// moving is a writer that gives its reader time for each piece.
type moving struct {
	io.Writer
	rc *http.ResponseController
}

func (m moving) Write(p []byte) (int, error) {
	m.rc.SetWriteDeadline(time.Now().Add(stallTimeout))
	return m.Writer.Write(p)
}

// coming is a body whose sender has time for each piece.
type coming struct {
	io.Reader
	rc *http.ResponseController
}

func (c coming) Read(p []byte) (int, error) {
	c.rc.SetReadDeadline(time.Now().Add(stallTimeout))
	n, err := c.Reader.Read(p)
	if err != nil && err != io.EOF && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = &files.Error{Code: wire.CodeDamaged, Msg: "the content was cut short"}
	}
	return n, err
}
