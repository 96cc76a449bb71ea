package sdk

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"google.golang.org/grpc"

	probev1 "fleet.example/fleet/plugins/proto/fleet/probe/v1"
	servicev1 "fleet.example/fleet/plugins/proto/fleet/service/v1"
	transportv1 "fleet.example/fleet/plugins/proto/fleet/transport/v1"
)

// serviceClient is the host's side of a ServiceManager.
type serviceClient struct {
	c servicev1.ServiceManagerServiceClient
	m *Machines
}

func (s serviceClient) Detect(ctx context.Context, h Host) (Detection, error) {
	machine, back := s.m.lend(h)
	defer back()
	r, err := s.c.Detect(ctx, &servicev1.DetectRequest{Machine: machine})
	if err != nil {
		return Detection{}, ErrorFromWire(err)
	}
	return detectionFromWire(r), nil
}

func (s serviceClient) Render(ctx context.Context, f Facts, spec Spec) (Rendered, error) {
	r, err := s.c.Render(ctx, &servicev1.RenderRequest{Facts: factsToWire(f), Spec: specToWire(spec)})
	if err != nil {
		return Rendered{}, ErrorFromWire(err)
	}
	return renderedFromWire(r), nil
}

func (s serviceClient) Reload(ctx context.Context, h Host, spec Spec) error {
	machine, back := s.m.lend(h)
	defer back()
	_, err := s.c.Reload(ctx, &servicev1.ReloadRequest{Machine: machine, Spec: specToWire(spec)})
	return ErrorFromWire(err)
}

func (s serviceClient) Enable(ctx context.Context, h Host, spec Spec) error {
	machine, back := s.m.lend(h)
	defer back()
	_, err := s.c.Enable(ctx, &servicev1.EnableRequest{Machine: machine, Spec: specToWire(spec)})
	return ErrorFromWire(err)
}

func (s serviceClient) Start(ctx context.Context, h Host, spec Spec) error {
	machine, back := s.m.lend(h)
	defer back()
	_, err := s.c.Start(ctx, &servicev1.StartRequest{Machine: machine, Spec: specToWire(spec)})
	return ErrorFromWire(err)
}

func (s serviceClient) Stop(ctx context.Context, h Host, spec Spec) error {
	machine, back := s.m.lend(h)
	defer back()
	_, err := s.c.Stop(ctx, &servicev1.StopRequest{Machine: machine, Spec: specToWire(spec)})
	return ErrorFromWire(err)
}

func (s serviceClient) Restart(ctx context.Context, h Host, spec Spec) error {
	machine, back := s.m.lend(h)
	defer back()
	_, err := s.c.Restart(ctx, &servicev1.RestartRequest{Machine: machine, Spec: specToWire(spec)})
	return ErrorFromWire(err)
}

func (s serviceClient) Disable(ctx context.Context, h Host, spec Spec) error {
	machine, back := s.m.lend(h)
	defer back()
	_, err := s.c.Disable(ctx, &servicev1.DisableRequest{Machine: machine, Spec: specToWire(spec)})
	return ErrorFromWire(err)
}

func (s serviceClient) Status(ctx context.Context, h Host, spec Spec) (Status, error) {
	machine, back := s.m.lend(h)
	defer back()
	r, err := s.c.Status(ctx, &servicev1.StatusRequest{Machine: machine, Spec: specToWire(spec)})
	if err != nil {
		return Status{State: StateUnknown}, ErrorFromWire(err)
	}
	return statusFromWire(r), nil
}

func (s serviceClient) Logs(ctx context.Context, h Host, spec Spec, lines int) ([]byte, error) {
	machine, back := s.m.lend(h)
	defer back()
	r, err := s.c.Logs(ctx, &servicev1.LogsRequest{Machine: machine, Spec: specToWire(spec), Lines: uint32(clampLines(lines))})
	return r.GetText(), ErrorFromWire(err)
}

func (s serviceClient) Linger(ctx context.Context, h Host, spec Spec, enable bool) (Linger, error) {
	machine, back := s.m.lend(h)
	defer back()
	r, err := s.c.Linger(ctx, &servicev1.LingerRequest{Machine: machine, Spec: specToWire(spec), Enable: enable})
	if err != nil {
		return Linger{}, ErrorFromWire(err)
	}
	return Linger{Enabled: r.GetEnabled(), Remedy: r.GetRemedy()}, nil
}

// ProbeClient is the host's side of a Probe.
type ProbeClient struct {
	c probev1.ProbeServiceClient
	m *Machines
}

// Codes asks the plugin which codes it may report.
func (p *ProbeClient) Codes(ctx context.Context) ([]string, error) {
	r, err := p.c.Codes(ctx, &probev1.CodesRequest{})
	return r.GetCodes(), ErrorFromWire(err)
}

// maxFindings bounds what one probe may report.
const maxFindings = 64

// Probe asks for the complete set of findings. A set that breaks the rules of
// the interface is an error: it must not be read as "nothing blocks".
func (p *ProbeClient) Probe(ctx context.Context, h Host) ([]Finding, error) {
	codes, err := p.Codes(ctx)
	if err != nil {
		return nil, err
	}
	machine, back := p.m.lend(h)
	defer back()
	r, err := p.c.Probe(ctx, &probev1.ProbeRequest{Machine: machine})
	if err != nil {
		return nil, ErrorFromWire(err)
	}
	if len(r.GetFindings()) > maxFindings {
		return nil, fmt.Errorf("%d findings, more than %d", len(r.GetFindings()), maxFindings)
	}
	var out []Finding
	for _, f := range r.GetFindings() {
		switch {
		case !slices.Contains(codes, f.GetCode()):
			return nil, fmt.Errorf("finding %q is none of the probe's codes", f.GetCode())
		case slices.ContainsFunc(out, func(o Finding) bool { return o.Code == f.GetCode() }):
			return nil, fmt.Errorf("finding %q came twice", f.GetCode())
		case !printable(f.GetDetail(), 1024) || !printable(f.GetRemedy(), 1024):
			return nil, fmt.Errorf("finding %q has words that cannot be shown", f.GetCode())
		}
		out = append(out, Finding{
			Code: f.GetCode(), Severity: severities.toWord(f.GetSeverity(), SeverityBlock),
			Detail: f.GetDetail(), Remedy: f.GetRemedy(),
		})
	}
	return out, nil
}

// RemoteDial asks a transport plugin to connect and to hand the stream over on
// a socket where the caller listens. It returns the remote address for people,
// and whether the stream is independent of the plugin.
func RemoteDial(ctx context.Context, cc grpc.ClientConnInterface, t Target, socket string) (remote string, detached bool, err error) {
	r, err := transportv1.NewTransportServiceClient(cc).Dial(ctx, &transportv1.DialRequest{
		Destination: t.Destination, Target: hopToWire(t.Hop), Jumps: hopsToWire(t.Jumps),
		ProxyCommand: t.Proxy.Command, ProxyEnvironment: t.Proxy.Environ, ProxyDirectory: t.Proxy.Dir,
		ProxyPassesDescriptor: t.Proxy.PassesDescriptor, AddressFamily: families.toEnum(t.AddressFamily),
		BindAddress: t.BindAddress, ConnectTimeoutMs: millis(t.ConnectTimeout),
		HandoverSocket: socket,
	})
	return r.GetRemote(), r.GetDetached(), ErrorFromWire(err)
}

// transportHostServer is the host's side of a TransportHost.
type transportHostServer struct {
	transportv1.UnimplementedTransportHostServiceServer
	th TransportHost
}

func (s transportHostServer) Resolve(ctx context.Context, r *transportv1.ResolveRequest) (*transportv1.ResolveResponse, error) {
	out, err := s.th.Resolve(ctx, r.GetAlias())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return &transportv1.ResolveResponse{
		Hop: hopToWire(out.Hop), Jumps: hopsToWire(out.Jumps), ProxyCommand: out.ProxyCommand,
	}, nil
}

func (s transportHostServer) HostKeyAlgorithms(ctx context.Context, r *transportv1.HostKeyAlgorithmsRequest) (*transportv1.HostKeyAlgorithmsResponse, error) {
	a, err := s.th.HostKeyAlgorithms(ctx, r.GetHop())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return &transportv1.HostKeyAlgorithmsResponse{Algorithms: a}, nil
}

func (s transportHostServer) VerifyHostKey(ctx context.Context, r *transportv1.VerifyHostKeyRequest) (*transportv1.VerifyHostKeyResponse, error) {
	if err := s.th.VerifyHostKey(ctx, r.GetHop(), r.GetKey(), r.GetRemote()); err != nil {
		return &transportv1.VerifyHostKeyResponse{Reason: err.Error()}, nil
	}
	return &transportv1.VerifyHostKeyResponse{Accepted: true}, nil
}

func (s transportHostServer) AgentSocket(ctx context.Context, r *transportv1.AgentSocketRequest) (*transportv1.AgentSocketResponse, error) {
	p, err := s.th.AgentSocket(ctx, r.GetHop())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return &transportv1.AgentSocketResponse{Path: p}, nil
}

func (s transportHostServer) Progress(ctx context.Context, r *transportv1.ProgressRequest) (*transportv1.ProgressResponse, error) {
	if m := r.GetMessage(); printable(m, 512) {
		s.th.Progress(ctx, m)
	}
	return &transportv1.ProgressResponse{}, nil
}

// maxOutput bounds what one call shows, in bytes.
const maxOutput = 64 << 10

func (s transportHostServer) Output(ctx context.Context, r *transportv1.OutputRequest) (*transportv1.OutputResponse, error) {
	if b := r.GetData(); len(b) <= maxOutput {
		s.th.Output(ctx, b)
	}
	return &transportv1.OutputResponse{}, nil
}

func (s transportHostServer) Lost(ctx context.Context, r *transportv1.LostRequest) (*transportv1.LostResponse, error) {
	if m := r.GetReason(); printable(m, 512) {
		s.th.Lost(ctx, r.GetHop(), m)
	}
	return &transportv1.LostResponse{}, nil
}

// NoTransportHost refuses everything; it serves a transport that needs nothing.
type NoTransportHost struct{}

var errNoTransportHost = errors.New("this host offers a transport nothing but the target")

// Resolve refuses.
func (NoTransportHost) Resolve(context.Context, string) (Resolved, error) {
	return Resolved{}, errNoTransportHost
}

// HostKeyAlgorithms refuses.
func (NoTransportHost) HostKeyAlgorithms(context.Context, string) ([]string, error) {
	return nil, errNoTransportHost
}

// VerifyHostKey refuses every key.
func (NoTransportHost) VerifyHostKey(context.Context, string, []byte, string) error {
	return errNoTransportHost
}

// AgentSocket refuses.
func (NoTransportHost) AgentSocket(context.Context, string) (string, error) {
	return "", errNoTransportHost
}

// Progress says nothing.
func (NoTransportHost) Progress(context.Context, string) {}

// Output says nothing.
func (NoTransportHost) Output(context.Context, []byte) {}

// Lost says nothing.
func (NoTransportHost) Lost(context.Context, string, string) {}
