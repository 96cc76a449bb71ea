package tree

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/core/wire"
)

// Problem is an entry that is not copied, and why.
type Problem = wire.CopyProblem

// Error is a refusal with a code of package wire.
type Error struct {
	Code, Msg, Hint string
}

func (e *Error) Error() string { return e.Msg }

func refuse(code, format string, args ...any) *Error {
	return &Error{Code: code, Msg: fmt.Sprintf(format, args...)}
}

// Result is what became of a copy, as its receiver has it.
type Result struct {
	Files       int64 `json:"files"`
	Directories int64 `json:"directories"`
	Links       int64 `json:"links"`
	Bytes       int64 `json:"bytes"` // of content in place
	Kept        int64 `json:"kept"`  // of these, bytes that were there already
	// Error is why the copy ended before its end.
	Error *wire.ErrorDetail `json:"error,omitempty"`
}

// told gives an error of the system its code and words.
func told(err error, at string) *Error {
	if e := new(Error); errors.As(err, &e) {
		return e
	}
	var why error = err
	if e := new(fs.PathError); errors.As(err, &e) {
		why = e.Err
	} else if e := new(os.LinkError); errors.As(err, &e) {
		why = e.Err
	}
	code := wire.CodeInternal
	switch {
	case isDiskFull(err):
		code = wire.CodeDiskFull
	case errors.Is(err, fs.ErrNotExist):
		code = wire.CodeNotFound
	case errors.Is(err, fs.ErrPermission), errors.Is(err, unix.EROFS):
		code = wire.CodeForbidden
	case errors.Is(err, fs.ErrExist):
		code = wire.CodeExists
	case errors.Is(err, unix.ENOTDIR):
		code = wire.CodeNotADir
	case errors.Is(err, unix.EISDIR), errors.Is(err, errNotRegular):
		code = wire.CodeNotAFile
	case errors.Is(err, unix.ENAMETOOLONG), errors.Is(err, unix.ELOOP), errors.Is(err, unix.EINVAL):
		code = wire.CodeBadRequest
	}
	words := why.Error()
	if words == "path escapes from parent" { // os.Root has no value for it
		code, words = wire.CodeForbidden, "the path leads out of what this token is for"
	}
	return refuse(code, "%s: %s", at, words)
}

func problem(path string, err error) Problem {
	e := told(err, path)
	return Problem{Path: wire.Bytes(path), Code: e.Code, Message: e.Msg}
}
