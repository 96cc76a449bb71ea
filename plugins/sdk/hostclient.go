package sdk

import (
	"context"
	"errors"
	"io/fs"
	"time"

	hostv1 "fleet.example/fleet/plugins/proto/fleet/host/v1"
	transportv1 "fleet.example/fleet/plugins/proto/fleet/transport/v1"
)

// hostClient is the plugin's side of a Host.
type hostClient struct {
	c       hostv1.HostServiceClient
	machine string
}

func (h hostClient) Facts(ctx context.Context) (Facts, error) {
	r, err := h.c.Facts(ctx, &hostv1.FactsRequest{Machine: h.machine})
	if err != nil {
		return Facts{}, ErrorFromWire(err)
	}
	return factsFromWire(r.GetFacts()), nil
}

func (h hostClient) Statfs(ctx context.Context, path string) (FSStat, error) {
	r, err := h.c.Statfs(ctx, &hostv1.StatfsRequest{Machine: h.machine, Path: path})
	if err != nil {
		return FSStat{}, ErrorFromWire(err)
	}
	return FSStat{
		BytesTotal: r.GetBytesTotal(), BytesFree: r.GetBytesFree(),
		FilesTotal: r.GetFilesTotal(), FilesFree: r.GetFilesFree(), ReadOnly: r.GetReadOnly(),
	}, nil
}

func (h hostClient) Run(ctx context.Context, c Command) (Result, error) {
	r, err := h.c.Run(ctx, &hostv1.RunRequest{
		Machine: h.machine, Argv: c.Argv, AsRoot: c.AsRoot, Stdin: c.Stdin, OutputLimit: uint32(ClampRead(c.Limit)),
	})
	if err != nil {
		return Result{}, ErrorFromWire(err)
	}
	return Result{Exit: int(r.GetExit()), Stdout: r.GetStdout(), Stderr: r.GetStderr(), Truncated: r.GetTruncated()}, nil
}

func (h hostClient) ReadFile(ctx context.Context, path string, limit int) ([]byte, bool, error) {
	r, err := h.c.ReadFile(ctx, &hostv1.ReadFileRequest{Machine: h.machine, Path: path, Limit: uint32(ClampRead(limit))})
	if err != nil {
		return nil, false, ErrorFromWire(err)
	}
	return r.GetContent(), r.GetTruncated(), nil
}

func (h hostClient) Stat(ctx context.Context, path string) (FileInfo, error) {
	r, err := h.c.Stat(ctx, &hostv1.StatRequest{Machine: h.machine, Path: path})
	if err != nil {
		return FileInfo{}, ErrorFromWire(err)
	}
	mode := modeFromWire(r.GetMode())
	switch r.GetType() {
	case hostv1.FileType_FILE_TYPE_REGULAR:
	case hostv1.FileType_FILE_TYPE_DIRECTORY:
		mode |= fs.ModeDir
	case hostv1.FileType_FILE_TYPE_SYMLINK:
		mode |= fs.ModeSymlink
	default:
		mode |= fs.ModeIrregular
	}
	return FileInfo{Mode: mode, Size: r.GetSize(), UID: r.GetUid(), Modified: time.Unix(r.GetModifiedS(), 0).UTC()}, nil
}

func (h hostClient) Progress(ctx context.Context, message string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = h.c.Progress(ctx, &hostv1.ProgressRequest{Machine: h.machine, Message: message}) // it is only a word to the person
}

// transportHostClient is the plugin's side of a TransportHost.
type transportHostClient struct {
	c transportv1.TransportHostServiceClient
}

func (h transportHostClient) Resolve(ctx context.Context, alias string) (Resolved, error) {
	r, err := h.c.Resolve(ctx, &transportv1.ResolveRequest{Alias: alias})
	if err != nil {
		return Resolved{}, ErrorFromWire(err)
	}
	return Resolved{Hop: hopFromWire(r.GetHop()), Jumps: hopsFromWire(r.GetJumps()), ProxyCommand: r.GetProxyCommand()}, nil
}

func (h transportHostClient) HostKeyAlgorithms(ctx context.Context, hop string) ([]string, error) {
	r, err := h.c.HostKeyAlgorithms(ctx, &transportv1.HostKeyAlgorithmsRequest{Hop: hop})
	return r.GetAlgorithms(), ErrorFromWire(err)
}

func (h transportHostClient) VerifyHostKey(ctx context.Context, hop string, key []byte, remote string) error {
	r, err := h.c.VerifyHostKey(ctx, &transportv1.VerifyHostKeyRequest{Hop: hop, Key: key, Remote: remote})
	switch {
	case err != nil:
		return ErrorFromWire(err)
	case !r.GetAccepted():
		if reason := r.GetReason(); reason != "" {
			return errors.New(reason)
		}
		return errors.New("host key refused")
	}
	return nil
}

func (h transportHostClient) AgentSocket(ctx context.Context, hop string) (string, error) {
	r, err := h.c.AgentSocket(ctx, &transportv1.AgentSocketRequest{Hop: hop})
	return r.GetPath(), ErrorFromWire(err)
}

func (h transportHostClient) Progress(ctx context.Context, message string) {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, _ = h.c.Progress(ctx, &transportv1.ProgressRequest{Message: message})
}

func (h transportHostClient) Output(ctx context.Context, data []byte) {
	for len(data) > 0 {
		n := min(len(data), maxOutput)
		callCtx, cancel := context.WithTimeout(ctx, time.Second)
		_, _ = h.c.Output(callCtx, &transportv1.OutputRequest{Data: data[:n]})
		cancel()
		data = data[n:]
	}
}

// lostTimeout bounds how long the end of a stream waits for its reason to be told.
const lostTimeout = time.Second

func (h transportHostClient) Lost(ctx context.Context, hop, reason string) {
	ctx, cancel := context.WithTimeout(ctx, lostTimeout)
	defer cancel()
	_, _ = h.c.Lost(ctx, &transportv1.LostRequest{Hop: hop, Reason: reason})
}
