// Package fault is the one form in which a fleet program ends badly: a code
// for pipelines, a message and a hint for people, an exit code for scripts.
// Any error may travel through the code; only the edge (Of) turns it into
// words and a number.
//
// It knows nothing of what went wrong, nor of who prints it.
package fault

import (
	"context"
	"errors"
	"fmt"
)

// Exit codes, the same in every command. See the exit-codes help topic.
const (
	OK           = 0
	Failure      = 1
	Usage        = 2
	Partial      = 3 // some of many failed
	NeedPerson   = 4 // a person must log in or approve
	NotFound     = 5
	HostKey      = 6 // host key unknown or changed
	Unreachable  = 7
	NotYet       = 8 // waited out
	Refused      = 9 // refused or blocked
	Interrupted  = 130
	ExecFailure  = 255 // fleet exec's own failures, as ssh does
	CodeFailure  = "failure"
	CodeUsage    = "usage"
	CodeCanceled = "interrupted"
)

// Error is a failure that knows its code and exit status. Hint says what the
// reader can do and is shown apart from the message.
type Error struct {
	Code string
	Exit int
	Msg  string
	Hint string
	Err  error // looked into by errors.Is and As; its text is already in Msg
}

func (e *Error) Error() string { return e.Msg }
func (e *Error) Unwrap() error { return e.Err }

// New makes an Error. A %w in the format is kept for errors.Is and As.
func New(exit int, code, format string, args ...any) *Error {
	wrapped := fmt.Errorf(format, args...)
	return &Error{Code: code, Exit: exit, Msg: wrapped.Error(), Err: errors.Unwrap(wrapped)}
}

// WithHint returns the error with a hint.
func (e *Error) WithHint(format string, args ...any) *Error {
	c := *e
	c.Hint = fmt.Sprintf(format, args...)
	return &c
}

// Usagef is an error of how a command was called.
func Usagef(format string, args ...any) *Error { return New(Usage, CodeUsage, format, args...) }

// Of finds the Error in err's chain, or makes one of the general kind. The
// message is always err's whole text. Of(nil) is nil.
func Of(err error) *Error {
	if err == nil {
		return nil
	}
	var e *Error
	switch {
	case errors.As(err, &e):
		c := *e
		c.Msg = err.Error()
		return &c
	case errors.Is(err, context.Canceled):
		return &Error{Code: CodeCanceled, Exit: Interrupted, Msg: "interrupted", Err: err}
	default:
		return &Error{Code: CodeFailure, Exit: Failure, Msg: err.Error(), Err: err}
	}
}
