package mux

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/carry"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

// CodeDeclined is what a server answers that does not take a copy: the client
// makes it itself, over a stream.
const CodeDeclined = "copy_declined"

// CopyOrder follows the final answer to OpCopy, after one byte with which the
// descriptor comes that Hand is of, if there is one (unix(7), SCM_RIGHTS). From
// then on the client says nothing; that it closes its end ends the copy.
type CopyOrder struct {
	Request wire.TreeRequest `json:"request"`
	Hand    tree.Handed      `json:"hand"`
	// Groups are those that the client's files would belong to, its own first.
	Groups []int `json:"groups"`
}

// CopyNews is what a server says of a copy. One with Over is the last.
type CopyNews struct {
	Files   int64         `json:"files,omitempty"` // how far it is
	Bytes   int64         `json:"bytes,omitempty"`
	Problem *tree.Problem `json:"problem,omitempty"`

	Over   bool         `json:"over,omitempty"`
	Result *tree.Result `json:"result,omitempty"`
	As     string       `json:"as,omitempty"`
	Begun  bool         `json:"begun,omitempty"`
	// What ended it: a refusal of the command, one of the copy itself, a breach
	// of its protocol, or a connection's end.
	Error     *wire.CLIErrorDetail `json:"error,omitempty"`
	Refused   *wire.ErrorDetail    `json:"refused,omitempty"`
	Malformed string               `json:"malformed,omitempty"`
	Lost      string               `json:"lost,omitempty"`
}

// Ended is the last news of a copy.
func Ended(o carry.Outcome, err error) CopyNews {
	n := CopyNews{Over: true, Result: &o.Result, As: o.As, Begun: o.Begun}
	var refused *tree.Error
	var f *fault.Error
	switch {
	case err == nil:
	case errors.As(err, &refused):
		n.Refused = &wire.ErrorDetail{Code: refused.Code, Message: refused.Msg, Hint: refused.Hint}
	case errors.Is(err, tree.ErrMalformed):
		n.Malformed = err.Error()
	case errors.As(err, &f):
		n.Error = Exit(err)
	default:
		n.Lost = err.Error()
	}
	return n
}

func (n *CopyNews) outcome() (o carry.Outcome, err error) {
	if n.Result != nil {
		o.Result = *n.Result
	}
	o.As, o.Begun = n.As, n.Begun
	switch {
	case n.Refused != nil:
		err = &tree.Error{Code: n.Refused.Code, Msg: n.Refused.Message, Hint: n.Refused.Hint}
	case n.Malformed != "":
		err = &breach{n.Malformed}
	case n.Error != nil:
		err = &fault.Error{Code: n.Error.Code, Exit: n.Error.Exit, Msg: n.Error.Message, Hint: n.Error.Hint}
	case n.Lost != "":
		err = errors.New(n.Lost)
	}
	return o, err
}

// breach is a tree.ErrMalformed that another process met.
type breach struct{ msg string }

func (b *breach) Error() string { return b.msg }
func (b *breach) Unwrap() error { return tree.ErrMalformed }

const (
	// lastNews is how long a copy that its client ends may take to end.
	lastNews = 3 * time.Second
	// NewsEvery is how often a server says something at least, and silence how
	// long it may say nothing.
	NewsEvery = 15 * time.Second
	silence   = 60 * time.Second
)

// HandOver has the server behind a connection that was answered to OpCopy make a
// copy's attempt. It closes the connection. The context's end ends the attempt.
func HandOver(ctx context.Context, conn *net.UnixConn, c carry.Copy) (o carry.Outcome, err error) {
	defer conn.Close()
	order := CopyOrder{Request: c.Request, Groups: Groups()}
	var file *os.File
	if c.Source != nil {
		order.Hand, file = c.Source.Hand()
	} else {
		order.Hand, file = c.Destination.Hand()
	}
	stop := context.AfterFunc(ctx, func() { // what was begun is tidied up first
		conn.CloseWrite()
		conn.SetReadDeadline(time.Now().Add(lastNews))
	})
	defer stop()
	conn.SetWriteDeadline(time.Now().Add(silence))
	if err = give(conn, file); err == nil {
		err = WriteMessage(conn, order)
	}
	for err == nil {
		conn.SetReadDeadline(time.Now().Add(silence))
		if ctx.Err() != nil {
			conn.SetReadDeadline(time.Now().Add(lastNews))
		}
		var n CopyNews
		if err = ReadMessage(conn, &n); err != nil {
			break
		}
		switch {
		case n.Over:
			if ctx.Err() != nil {
				return o, ctx.Err()
			}
			return n.outcome()
		case n.Problem != nil:
			c.Trouble(*n.Problem)
		default:
			c.Progress(n.Files, n.Bytes)
		}
	}
	if ctx.Err() != nil {
		return o, ctx.Err()
	}
	return carry.Outcome{Begun: true}, fmt.Errorf("fleet-host ended: %w", err)
}

// Groups are this process's: the one of its new files, and those in which it is.
func Groups() []int {
	all, err := os.Getgroups()
	if err != nil {
		return nil
	}
	slices.Sort(all)
	return append([]int{os.Getegid()}, slices.Compact(all)...)
}

// give sends one byte, and a descriptor with it.
func give(conn *net.UnixConn, file *os.File) error {
	var rights []byte
	if file != nil {
		rights = unix.UnixRights(int(file.Fd()))
	}
	_, _, err := conn.WriteMsgUnix([]byte{0}, rights, nil)
	return err
}

// Take reads what give sent. The file is nil if there was none.
func Take(conn *net.UnixConn) (*os.File, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(4*4))
	n, oobn, flags, _, err := conn.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, err
	}
	var fds []int
	if messages, err := unix.ParseSocketControlMessage(oob[:oobn]); err == nil {
		for _, m := range messages {
			got, err := unix.ParseUnixRights(&m)
			if err != nil {
				continue
			}
			fds = append(fds, got...)
		}
	}
	for _, fd := range fds {
		unix.CloseOnExec(fd)
	}
	if n != 1 || len(fds) > 1 || flags&unix.MSG_CTRUNC != 0 {
		for _, fd := range fds {
			unix.Close(fd)
		}
		return nil, fmt.Errorf("%w: %d bytes with %d descriptors", ErrMalformed, n, len(fds))
	}
	if len(fds) == 0 {
		return nil, nil
	}
	return os.NewFile(uintptr(fds[0]), "handed"), nil
}
