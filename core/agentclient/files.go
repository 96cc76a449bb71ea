package agentclient

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"net/http"
	"net/url"
	"strconv"
	"sync"
	"time"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

func filePath(p string, query string) string {
	at := wire.PathFiles + url.PathEscape(p)
	if query != "" {
		at += "?" + query
	}
	return at
}

// Stat tells what a path of the machine is; with follow, what a symbolic link
// leads to.
func (c *Client) Stat(ctx context.Context, p string, follow bool) (*wire.FileInfo, error) {
	query := "stat"
	if follow {
		query += "&follow"
	}
	var i wire.FileInfo
	return &i, c.call(ctx, http.MethodGet, filePath(p, query), nil, &i)
}

// maxLine bounds a line of a listing.
const maxLine = 64 << 10

// List gives each entry of a directory, in the machine's order, as it comes. A
// listing that was cut short is an error.
func (c *Client) List(ctx context.Context, p string, each func(wire.FileInfo) error) error {
	resp, err := c.request(ctx, http.MethodGet, filePath(p, "list"), nil, "")
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	lines.Buffer(nil, maxLine)
	for lines.Scan() {
		var l wire.FileLine
		if err := json.Unmarshal(lines.Bytes(), &l); err != nil {
			return fmt.Errorf("cannot read the agent's listing: %w", err)
		}
		switch {
		case l.Error != nil:
			return (&Error{Status: resp.StatusCode, Detail: *l.Error}).asFault()
		case l.End:
			return nil
		case l.File != nil:
			if err := each(*l.File); err != nil {
				return err
			}
		}
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	return fault.New(fault.Unreachable, "agent_unreachable", "the listing was cut short")
}

// readTries is how often a file's content is asked for without a byte having
// come, before that is an error.
const readTries = 5

// Read writes a file's content to w, from offset from on, limit bytes of it;
// negative for all. A connection that is lost is made again, and the content
// goes on where it ended, if the file is still the same one. What arrived is
// compared with the machine's checksum.
func (c *Client) Read(ctx context.Context, p string, from, limit int64, w io.Writer) (*wire.FileInfo, error) {
	r := &reading{client: c, path: p, at: from, end: -1, w: w}
	if limit >= 0 {
		r.end = from + limit
	}
	for failed := 0; ; {
		before := r.at
		done, err := r.once(ctx)
		if done || err == nil {
			return r.info, err
		}
		if r.at > before {
			failed = 0
		}
		if failed++; failed >= readTries || ctx.Err() != nil {
			return nil, err
		}
		select {
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-time.After(time.Duration(failed) * 200 * time.Millisecond):
		}
	}
}

// reading is a file that is read, over one connection after the other.
type reading struct {
	client  *Client
	path    string
	at, end int64 // end < 0: the file's
	w       io.Writer
	info    *wire.FileInfo // of the first answer
}

// once reads what one connection brings. done says that there is no use in
// another.
func (r *reading) once(ctx context.Context) (done bool, err error) {
	if r.end == r.at {
		i, err := r.client.Stat(ctx, r.path, true)
		r.info = i
		return true, err
	}
	header := http.Header{}
	if r.at > 0 || r.end >= 0 {
		last := ""
		if r.end >= 0 {
			last = strconv.FormatInt(r.end-1, 10)
		}
		header.Set("Range", fmt.Sprintf("bytes=%d-%s", r.at, last))
	}
	if r.info != nil {
		header.Set("If-Match", strconv.Quote(r.info.ETag))
	}
	resp, err := r.client.requestWith(ctx, http.MethodGet, filePath(r.path, ""), header, nil, nil)
	if err != nil {
		var refused *Error
		if errors.As(err, &refused) && refused.Detail.Code == wire.CodePrecondition && r.info != nil {
			err = fault.New(fault.Failure, wire.CodeChanged, "%s changed while it was read", r.path)
		}
		return errors.As(err, &refused) || fault.Of(err).Code == wire.CodeChanged, err
	}
	defer resp.Body.Close()
	if r.info == nil {
		var i wire.FileInfo
		text, err := url.QueryUnescape(resp.Header.Get(wire.HeaderFile))
		if err != nil || json.Unmarshal([]byte(text), &i) != nil {
			return true, errors.New("cannot read the agent's description of the file")
		}
		r.info = &i
	}
	sum := sha256.New()
	out := &written{w: r.w}
	n, err := io.Copy(io.MultiWriter(out, sum), resp.Body)
	r.at += n
	switch {
	case out.err != nil:
		return true, out.err
	case err != nil && ctx.Err() != nil:
		return true, ctx.Err()
	case err != nil:
		return false, fault.New(fault.Unreachable, "agent_unreachable", "the content was cut short: %w", err)
	case resp.Trailer.Get(wire.HeaderFileState) != wire.FileAsItWas:
		return true, fault.New(fault.Failure, wire.CodeChanged, "%s changed while it was read", r.path)
	case resp.Trailer.Get(wire.HeaderSHA256) != hex.EncodeToString(sum.Sum(nil)):
		return true, fault.New(fault.Failure, wire.CodeDamaged, "%s: what arrived is not what was sent", r.path)
	}
	return true, nil
}

// written remembers that it was the writer that failed, not the reader.
type written struct {
	w   io.Writer
	err error
}

func (w *written) Write(p []byte) (int, error) {
	n, err := w.w.Write(p)
	if err != nil {
		w.err = err
	}
	return n, err
}

// Put says how content is written.
type Put struct {
	Mode       string // octal; "" keeps what is there, or is the account's default
	OnConflict string // one of the wire.Conflict constants, or ""
	Match      string // the ETag of what is replaced, * for any, "" for any or none
}

// Write makes what r brings a file's content, all of it or nothing. It is sent
// once: what was lost with a connection only its sender has.
func (c *Client) Write(ctx context.Context, p string, how Put, r io.Reader) (*wire.FileInfo, error) {
	query := url.Values{}
	if how.Mode != "" {
		query.Set("mode", how.Mode)
	}
	if how.OnConflict != "" {
		query.Set("on_conflict", how.OnConflict)
	}
	header := http.Header{}
	if how.Match != "" {
		header.Set("If-Match", strconv.Quote(how.Match))
	}
	trailer := http.Header{wire.HeaderSHA256: nil}
	body := &summed{r: r, sum: sha256.New(), trailer: trailer}
	resp, err := c.requestWith(ctx, http.MethodPut, filePath(p, query.Encode()), header, body, trailer)
	if own := body.failed(); own != nil { // no word of the agent's is the cause
		return nil, fmt.Errorf("cannot read what is to be written: %w", own)
	}
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	var i wire.FileInfo
	if err := json.NewDecoder(io.LimitReader(resp.Body, maxLine)).Decode(&i); err != nil {
		return nil, fault.New(fault.Unreachable, "agent_unreachable", "the agent's answer was cut short; whether the file was written is not known: %w", err)
	}
	return &i, nil
}

// summed is a body whose checksum follows it. An answer may come before all of
// it was read.
type summed struct {
	r       io.Reader
	sum     hash.Hash
	trailer http.Header

	mu  sync.Mutex
	err error
}

func (s *summed) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.sum.Write(p[:n])
	switch {
	case err == io.EOF:
		s.trailer.Set(wire.HeaderSHA256, hex.EncodeToString(s.sum.Sum(nil)))
	case err != nil:
		s.mu.Lock()
		s.err = err
		s.mu.Unlock()
	}
	return n, err
}

func (s *summed) failed() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

// Remove removes a file, a symbolic link or an empty directory; with all, a
// directory with everything in it.
func (c *Client) Remove(ctx context.Context, p, match string, all bool) error {
	query := ""
	if all {
		query = "recursive"
	}
	header := http.Header{}
	if match != "" {
		header.Set("If-Match", strconv.Quote(match))
	}
	resp, err := c.requestWith(ctx, http.MethodDelete, filePath(p, query), header, nil, nil)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}

// requestWith is a request with headers of its own and a body that is sent
// once. A token that is no longer good is minted anew before a body goes out.
func (c *Client) requestWith(ctx context.Context, method, path string, header http.Header, body io.Reader, trailer http.Header) (*http.Response, error) {
	if body != nil { // a refusal for the token's sake would cost the body
		if _, err := c.Identity(ctx); err != nil {
			return nil, err
		}
	}
	for try := 0; ; try++ {
		tok, err := c.currentToken(ctx, try > 0)
		if err != nil {
			return nil, err
		}
		resp, err := c.sendWith(ctx, method, path, header, tok, body, trailer)
		if err != nil {
			return nil, unreached(ctx, err)
		}
		if resp.StatusCode < 300 {
			return resp, nil
		}
		refused := refusal(resp)
		if resp.StatusCode == http.StatusUnauthorized && try == 0 && body == nil {
			continue
		}
		return nil, refused.asFault()
	}
}

func (c *Client) sendWith(ctx context.Context, method, path string, header http.Header, token secret.Text, body io.Reader, trailer http.Header) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, body)
	if err != nil {
		return nil, err
	}
	req.Header = header
	req.Header.Set("Authorization", "Bearer "+token.Reveal())
	req.Trailer = trailer
	return c.http.Do(req)
}
