package sshconn

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/pkg/sftp"

	"fleet.example/fleet/core/fault"
)

// uploadTimeout bounds one upload.
const uploadTimeout = 15 * time.Minute

// sftpStart bounds how long the sftp subsystem may take to answer.
const sftpStart = 10 * time.Second

// Upload writes size bytes of r to a new file at path with mode 0600. The
// caller names a temporary path, has the host hash what arrived, and renames.
// It goes by SFTP, or through cat where there is none; how is "sftp" or "cat".
// r is read again from its start when SFTP turns out to be unusable.
func (c *Conn) Upload(ctx context.Context, path string, r io.ReadSeeker, size int64, progress func(sent int64)) (how string, err error) {
	if err := c.checkConfirmed(); err != nil {
		return "", err
	}
	ctx, cancel := context.WithTimeout(ctx, uploadTimeout)
	defer cancel()
	err = c.uploadBySFTP(ctx, path, r, size, progress)
	if err == nil {
		return "sftp", nil
	}
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	select {
	case <-c.Done():
		return "", fault.New(fault.Unreachable, "unreachable", "cannot upload to %s: %w", c.Config, err)
	default:
	}
	if none := new(noSFTP); errors.As(err, &none) {
		c.notef("no sftp at %s (%v), using cat", c.Config, err)
	} else {
		c.notef("sftp upload to %s failed (%v), trying cat", c.Config, err)
		if _, err := r.Seek(0, io.SeekStart); err != nil {
			return "", err
		}
	}
	if err := c.uploadCat(ctx, path, r, size, progress); err != nil {
		return "", err
	}
	return "cat", nil
}

func (c *Conn) uploadBySFTP(ctx context.Context, path string, r io.ReadSeeker, size int64, progress func(int64)) error {
	w := c.width(r, size)
	if w.lanes > 1 {
		return c.uploadWide(ctx, w, path, r.(io.ReaderAt), size, progress)
	}
	client, err := c.sftp(ctx, w.depth)
	if err != nil {
		return &noSFTP{err}
	}
	defer client.Close()
	stop := context.AfterFunc(ctx, func() { client.Close() })
	defer stop()
	return uploadSFTP(client, path, r, size, progress)
}

// sftp starts a client with depth packets under way per file.
func (c *Conn) sftp(ctx context.Context, depth int) (*sftp.Client, error) {
	type result struct {
		client *sftp.Client
		err    error
	}
	session, gone, err := c.session(ctx)
	if err != nil {
		return nil, err
	}
	in, err1 := session.StdinPipe()
	out, err2 := session.StdoutPipe()
	end := func() { session.Close(); gone() }
	if err := errors.Join(err1, err2); err != nil {
		end()
		return nil, err
	}
	if err := session.RequestSubsystem("sftp"); err != nil {
		end()
		return nil, err
	}
	done := make(chan result, 1)
	go func() { // ends with the hello's answer, or when the session is closed
		cl, err := sftp.NewClientPipe(out, in, sftp.UseConcurrentWrites(true), sftp.MaxConcurrentRequestsPerFile(depth))
		done <- result{cl, err}
	}()
	timer := time.NewTimer(sftpStart)
	defer timer.Stop()
	select {
	case r := <-done:
		if r.err != nil {
			end()
			return nil, r.err
		}
		c.wg.Go(func() { // ends with the client, or with the connection
			r.client.Wait()
			end()
		})
		return r.client, nil
	case <-timer.C:
		err = errors.New("no answer to the sftp hello")
	case <-ctx.Done():
		err = ctx.Err()
	}
	end()
	<-done
	return nil, err
}

func uploadSFTP(client *sftp.Client, path string, r io.Reader, size int64, progress func(int64)) (err error) {
	f, err := client.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Chmod(0o600); err != nil {
		return err
	}
	return (&sized{r: r, left: size, progress: progress}).into(f)
}

// sized tells the sftp client how much there is, without which it sends one
// packet at a time.
type sized struct {
	r        io.Reader
	left     int64
	sent     int64
	progress func(int64)
}

func (s *sized) Size() int64 { return s.left + s.sent }

// into sends all of it to f.
func (s *sized) into(f *sftp.File) error {
	n, err := f.ReadFrom(s)
	if err == nil && n != s.Size() {
		err = fmt.Errorf("%d of %d bytes were sent", n, s.Size())
	}
	return err
}

func (s *sized) Read(p []byte) (int, error) {
	if s.left == 0 {
		return 0, io.EOF
	}
	if int64(len(p)) > s.left {
		p = p[:s.left]
	}
	n, err := s.r.Read(p)
	s.left -= int64(n)
	s.sent += int64(n)
	if s.progress != nil {
		s.progress(s.sent)
	}
	return n, err
}

func (c *Conn) uploadCat(ctx context.Context, path string, r io.Reader, size int64, progress func(int64)) error {
	res, err := c.run(ctx, Script{
		Body: `umask 077
rm -f "$1"
if cat > "$1"; then
  n=$(($(wc -c < "$1")))
  [ "$n" = "$2" ] && exit 0
  echo "$n of $2 bytes arrived" >&2
fi
rm -f "$1"
exit 1`,
		Args:  []string{path, fmt.Sprint(size)},
		Stdin: &sized{r: r, left: size, progress: progress}, StdinSize: size,
		Timeout: uploadTimeout,
	})
	if err != nil {
		return err
	}
	if res.Exit != 0 {
		return fault.New(fault.Failure, "upload", "cannot write %s on %s: %w", path, c.Config, res.Err())
	}
	return nil
}

// CheckSFTP reports whether the host has a usable sftp subsystem. It opens it
// and says nothing, so it may be asked before the key is confirmed.
func (c *Conn) CheckSFTP(ctx context.Context) error {
	client, err := c.sftp(ctx, near.depth)
	if err != nil {
		return err
	}
	return client.Close()
}
