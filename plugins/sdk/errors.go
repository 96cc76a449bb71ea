package sdk

import (
	"context"
	"errors"
	"io/fs"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// Errors that keep their meaning between a plugin and its host. Other errors
// keep their words alone.
var (
	ErrDenied      = errors.New("not permitted")
	ErrUnreachable = errors.New("machine out of reach")
	ErrUnsupported = errors.New("not supported")
	ErrInvalid     = errors.New("invalid")
)

// kept pairs meanings with gRPC codes.
var kept = []struct {
	code codes.Code
	err  error
}{
	{codes.NotFound, fs.ErrNotExist},
	{codes.PermissionDenied, ErrDenied},
	{codes.PermissionDenied, fs.ErrPermission},
	{codes.FailedPrecondition, ErrUnreachable},
	{codes.Unimplemented, ErrUnsupported},
	{codes.InvalidArgument, ErrInvalid},
	{codes.DeadlineExceeded, context.DeadlineExceeded},
	{codes.Canceled, context.Canceled},
}

// maxErrorText bounds an error's words on the wire, in bytes.
const maxErrorText = 4 << 10

// ErrorToWire turns an error into a gRPC status.
func ErrorToWire(err error) error {
	if err == nil {
		return nil
	}
	code := codes.Unknown
	for _, k := range kept {
		if errors.Is(err, k.err) {
			code = k.code
			break
		}
	}
	text := err.Error()
	if len(text) > maxErrorText {
		text = text[:maxErrorText]
	}
	return status.Error(code, text)
}

// remoteError has the words of the other side and the meaning of its code.
type remoteError struct {
	text    string
	meaning error
	lost    bool
}

func (e *remoteError) Error() string { return e.text }
func (e *remoteError) Unwrap() error { return e.meaning }

// ErrorFromWire turns a gRPC error back into the words and meaning that
// ErrorToWire put into it.
func ErrorFromWire(err error) error {
	if err == nil {
		return nil
	}
	s, ok := status.FromError(err)
	if !ok {
		return err
	}
	for _, k := range kept {
		if k.code == s.Code() {
			return &remoteError{text: s.Message(), meaning: k.err}
		}
	}
	return &remoteError{text: s.Message(), lost: s.Code() == codes.Unavailable}
}

// ConnectionLost reports whether an error that ErrorFromWire gave says that the
// other process is gone. Neither side sends that code by itself.
func ConnectionLost(err error) bool {
	var r *remoteError
	return errors.As(err, &r) && (r.lost || r.meaning == context.Canceled)
}
