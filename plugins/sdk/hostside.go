package sdk

import (
	"context"
	"crypto/rand"
	"fmt"
	"io/fs"
	"path"
	"sync"

	"google.golang.org/grpc"

	hostv1 "fleet.example/fleet/plugins/proto/fleet/host/v1"
	probev1 "fleet.example/fleet/plugins/proto/fleet/probe/v1"
	servicev1 "fleet.example/fleet/plugins/proto/fleet/service/v1"
	transportv1 "fleet.example/fleet/plugins/proto/fleet/transport/v1"
)

// What stands in this file is the host's side of the protocols. A plugin has no
// use for it.

// Machines is the set of machines that a plugin may act on at this moment. A
// machine is in it for the time of one call, under a random handle.
type Machines struct {
	desc Description
	mu   sync.Mutex
	in   map[string]Host
}

// NewMachines makes an empty set for the plugin that d describes.
func NewMachines(d Description) *Machines {
	return &Machines{desc: d, in: map[string]Host{}}
}

func (m *Machines) lend(h Host) (handle string, back func()) {
	handle = rand.Text()
	m.mu.Lock()
	defer m.mu.Unlock()
	m.in[handle] = h
	return handle, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.in, handle)
	}
}

func (m *Machines) get(handle string) (Host, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	h, ok := m.in[handle]
	if !ok {
		return nil, ErrorToWire(fmt.Errorf("no such machine handle: %w", fs.ErrNotExist))
	}
	return h, nil
}

// Register serves HostService for the set.
func (m *Machines) Register(g *grpc.Server) { hostv1.RegisterHostServiceServer(g, hostServer{m: m}) }

// hostServer is the host's side of a Host. It holds the rules that no plugin
// and no implementation of Host has to be trusted with: absolute paths, bounds,
// and what may run before changes are allowed.
type hostServer struct {
	hostv1.UnimplementedHostServiceServer
	m *Machines
}

func (s hostServer) Facts(ctx context.Context, r *hostv1.FactsRequest) (*hostv1.FactsResponse, error) {
	h, err := s.m.get(r.GetMachine())
	if err != nil {
		return nil, err
	}
	f, err := h.Facts(ctx)
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return &hostv1.FactsResponse{Facts: factsToWire(f)}, nil
}

func absolute(p string) error {
	if !path.IsAbs(p) {
		return fmt.Errorf("%w: path %q is not absolute", ErrInvalid, p)
	}
	return nil
}

func (s hostServer) Statfs(ctx context.Context, r *hostv1.StatfsRequest) (*hostv1.StatfsResponse, error) {
	h, err := s.m.get(r.GetMachine())
	if err != nil {
		return nil, err
	}
	if err := absolute(r.GetPath()); err != nil {
		return nil, ErrorToWire(err)
	}
	f, err := h.Statfs(ctx, r.GetPath())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return &hostv1.StatfsResponse{
		BytesTotal: f.BytesTotal, BytesFree: f.BytesFree,
		FilesTotal: f.FilesTotal, FilesFree: f.FilesFree, ReadOnly: f.ReadOnly,
	}, nil
}

// mayRun refuses what the phase does not allow (R2).
func (m *Machines) mayRun(f Facts, c Command) error {
	switch f.Phase {
	case PhaseChange, PhaseResident:
		return nil
	}
	switch {
	case c.AsRoot:
		return fmt.Errorf("%w: nothing runs as root before a person asked for changes", ErrDenied)
	case len(c.Stdin) > 0:
		return fmt.Errorf("%w: nothing gets input before a person asked for changes", ErrDenied)
	case !m.desc.Allows(c.Argv):
		return fmt.Errorf("%w: %s does not describe %q as read-only", ErrDenied, m.desc.FileName(), c.Argv)
	}
	return nil
}

func (s hostServer) Run(ctx context.Context, r *hostv1.RunRequest) (*hostv1.RunResponse, error) {
	h, err := s.m.get(r.GetMachine())
	if err != nil {
		return nil, err
	}
	c := Command{Argv: r.GetArgv(), AsRoot: r.GetAsRoot(), Stdin: r.GetStdin(), Limit: ClampRead(int(min(r.GetOutputLimit(), MaxRead)))}
	if len(c.Argv) == 0 || c.Argv[0] == "" || len(c.Stdin) > MaxStdin {
		return nil, ErrorToWire(fmt.Errorf("%w: no program, or too much input", ErrInvalid))
	}
	f, err := h.Facts(ctx)
	if err != nil {
		return nil, ErrorToWire(err)
	}
	if err := s.m.mayRun(f, c); err != nil {
		return nil, ErrorToWire(err)
	}
	out, err := h.Run(ctx, c)
	if err != nil {
		return nil, ErrorToWire(err)
	}
	stdout, cut1 := cut(out.Stdout, c.Limit)
	stderr, cut2 := cut(out.Stderr, c.Limit)
	return &hostv1.RunResponse{
		Exit: int32(out.Exit), Stdout: stdout, Stderr: stderr, Truncated: out.Truncated || cut1 || cut2,
	}, nil
}

func cut(b []byte, limit int) ([]byte, bool) {
	if len(b) > limit {
		return b[:limit], true
	}
	return b, false
}

func (s hostServer) ReadFile(ctx context.Context, r *hostv1.ReadFileRequest) (*hostv1.ReadFileResponse, error) {
	h, err := s.m.get(r.GetMachine())
	if err != nil {
		return nil, err
	}
	if err := absolute(r.GetPath()); err != nil {
		return nil, ErrorToWire(err)
	}
	limit := ClampRead(int(min(r.GetLimit(), MaxRead)))
	b, more, err := h.ReadFile(ctx, r.GetPath(), limit)
	if err != nil {
		return nil, ErrorToWire(err)
	}
	b, over := cut(b, limit)
	return &hostv1.ReadFileResponse{Content: b, Truncated: more || over}, nil
}

func (s hostServer) Stat(ctx context.Context, r *hostv1.StatRequest) (*hostv1.StatResponse, error) {
	h, err := s.m.get(r.GetMachine())
	if err != nil {
		return nil, err
	}
	if err := absolute(r.GetPath()); err != nil {
		return nil, ErrorToWire(err)
	}
	i, err := h.Stat(ctx, r.GetPath())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	t := hostv1.FileType_FILE_TYPE_UNSPECIFIED
	switch {
	case i.Mode.IsRegular():
		t = hostv1.FileType_FILE_TYPE_REGULAR
	case i.Mode.IsDir():
		t = hostv1.FileType_FILE_TYPE_DIRECTORY
	case i.Mode&fs.ModeSymlink != 0:
		t = hostv1.FileType_FILE_TYPE_SYMLINK
	}
	return &hostv1.StatResponse{
		Type: t, Mode: ModeToWire(i.Mode), Size: i.Size, Uid: i.UID, ModifiedS: i.Modified.Unix(),
	}, nil
}

func (s hostServer) Progress(ctx context.Context, r *hostv1.ProgressRequest) (*hostv1.ProgressResponse, error) {
	h, err := s.m.get(r.GetMachine())
	if err != nil {
		return nil, err
	}
	if m := r.GetMessage(); printable(m, 512) {
		h.Progress(ctx, m)
	}
	return &hostv1.ProgressResponse{}, nil
}

// Attach tells a plugin where its host's services are. It is the first call.
func Attach(ctx context.Context, cc grpc.ClientConnInterface, brokerID uint32) error {
	_, err := hostv1.NewPluginServiceClient(cc).Attach(ctx, &hostv1.AttachRequest{BrokerId: brokerID})
	return ErrorFromWire(err)
}

// RemoteService is a service manager plugin as its host sees it.
func RemoteService(cc grpc.ClientConnInterface, m *Machines) ServiceManager {
	return serviceClient{servicev1.NewServiceManagerServiceClient(cc), m}
}

// RemoteProbe is a probe plugin as its host sees it. Codes asks the plugin.
func RemoteProbe(cc grpc.ClientConnInterface, m *Machines) *ProbeClient {
	return &ProbeClient{probev1.NewProbeServiceClient(cc), m}
}

// RegisterTransportHost serves TransportHostService.
func RegisterTransportHost(g *grpc.Server, th TransportHost) {
	transportv1.RegisterTransportHostServiceServer(g, transportHostServer{th: th})
}
