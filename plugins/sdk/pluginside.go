package sdk

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/grpc"

	hostv1 "fleet.example/fleet/plugins/proto/fleet/host/v1"
	probev1 "fleet.example/fleet/plugins/proto/fleet/probe/v1"
	servicev1 "fleet.example/fleet/plugins/proto/fleet/service/v1"
	transportv1 "fleet.example/fleet/plugins/proto/fleet/transport/v1"
)

// attachment is the plugin's connection to its host's services.
type attachment struct {
	hostv1.UnimplementedPluginServiceServer
	dial func(brokerID uint32) (*grpc.ClientConn, error)

	mu   sync.Mutex
	conn *grpc.ClientConn
}

func (a *attachment) Attach(_ context.Context, r *hostv1.AttachRequest) (*hostv1.AttachResponse, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn != nil {
		return nil, ErrorToWire(errors.New("attached already"))
	}
	conn, err := a.dial(r.GetBrokerId())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	a.conn = conn
	return &hostv1.AttachResponse{}, nil
}

var errNotAttached = errors.New("the host did not attach before its first call")

func (a *attachment) get() (*grpc.ClientConn, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.conn == nil {
		return nil, errNotAttached
	}
	return a.conn, nil
}

func (a *attachment) host(machine string) (Host, error) {
	conn, err := a.get()
	if err != nil {
		return nil, err
	}
	return hostClient{hostv1.NewHostServiceClient(conn), machine}, nil
}

// serviceServer is the plugin's side of a ServiceManager.
type serviceServer struct {
	servicev1.UnimplementedServiceManagerServiceServer
	m ServiceManager
	a *attachment
}

func (s serviceServer) Detect(ctx context.Context, r *servicev1.DetectRequest) (*servicev1.DetectResponse, error) {
	h, err := s.a.host(r.GetMachine())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	d, err := s.m.Detect(ctx, h)
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return detectionToWire(d), nil
}

func (s serviceServer) Render(ctx context.Context, r *servicev1.RenderRequest) (*servicev1.RenderResponse, error) {
	out, err := s.m.Render(ctx, factsFromWire(r.GetFacts()), specFromWire(r.GetSpec()))
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return renderedToWire(out), nil
}

// act runs one of the calls that answer nothing.
func (s serviceServer) act(ctx context.Context, machine string, spec *servicev1.Spec, f func(context.Context, Host, Spec) error) error {
	h, err := s.a.host(machine)
	if err != nil {
		return ErrorToWire(err)
	}
	return ErrorToWire(f(ctx, h, specFromWire(spec)))
}

func (s serviceServer) Reload(ctx context.Context, r *servicev1.ReloadRequest) (*servicev1.ReloadResponse, error) {
	return &servicev1.ReloadResponse{}, s.act(ctx, r.GetMachine(), r.GetSpec(), s.m.Reload)
}

func (s serviceServer) Enable(ctx context.Context, r *servicev1.EnableRequest) (*servicev1.EnableResponse, error) {
	return &servicev1.EnableResponse{}, s.act(ctx, r.GetMachine(), r.GetSpec(), s.m.Enable)
}

func (s serviceServer) Start(ctx context.Context, r *servicev1.StartRequest) (*servicev1.StartResponse, error) {
	return &servicev1.StartResponse{}, s.act(ctx, r.GetMachine(), r.GetSpec(), s.m.Start)
}

func (s serviceServer) Stop(ctx context.Context, r *servicev1.StopRequest) (*servicev1.StopResponse, error) {
	return &servicev1.StopResponse{}, s.act(ctx, r.GetMachine(), r.GetSpec(), s.m.Stop)
}

func (s serviceServer) Restart(ctx context.Context, r *servicev1.RestartRequest) (*servicev1.RestartResponse, error) {
	return &servicev1.RestartResponse{}, s.act(ctx, r.GetMachine(), r.GetSpec(), s.m.Restart)
}

func (s serviceServer) Disable(ctx context.Context, r *servicev1.DisableRequest) (*servicev1.DisableResponse, error) {
	return &servicev1.DisableResponse{}, s.act(ctx, r.GetMachine(), r.GetSpec(), s.m.Disable)
}

func (s serviceServer) Status(ctx context.Context, r *servicev1.StatusRequest) (*servicev1.StatusResponse, error) {
	h, err := s.a.host(r.GetMachine())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	st, err := s.m.Status(ctx, h, specFromWire(r.GetSpec()))
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return statusToWire(st), nil
}

func (s serviceServer) Logs(ctx context.Context, r *servicev1.LogsRequest) (*servicev1.LogsResponse, error) {
	h, err := s.a.host(r.GetMachine())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	text, err := s.m.Logs(ctx, h, specFromWire(r.GetSpec()), clampLines(int(r.GetLines())))
	if err != nil {
		return nil, ErrorToWire(err)
	}
	if len(text) > MaxRead {
		text = text[len(text)-MaxRead:]
	}
	return &servicev1.LogsResponse{Text: text}, nil
}

func clampLines(n int) int {
	if n <= 0 {
		return 100
	}
	return min(n, 10000)
}

func (s serviceServer) Linger(ctx context.Context, r *servicev1.LingerRequest) (*servicev1.LingerResponse, error) {
	h, err := s.a.host(r.GetMachine())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	l, err := s.m.Linger(ctx, h, specFromWire(r.GetSpec()), r.GetEnable())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	return &servicev1.LingerResponse{Enabled: l.Enabled, Remedy: l.Remedy}, nil
}

// probeServer is the plugin's side of a Probe.
type probeServer struct {
	probev1.UnimplementedProbeServiceServer
	p Probe
	a *attachment
}

func (s probeServer) Codes(context.Context, *probev1.CodesRequest) (*probev1.CodesResponse, error) {
	return &probev1.CodesResponse{Codes: s.p.Codes()}, nil
}

func (s probeServer) Probe(ctx context.Context, r *probev1.ProbeRequest) (*probev1.ProbeResponse, error) {
	h, err := s.a.host(r.GetMachine())
	if err != nil {
		return nil, ErrorToWire(err)
	}
	found, err := s.p.Probe(ctx, h)
	if err != nil {
		return nil, ErrorToWire(err)
	}
	out := &probev1.ProbeResponse{}
	for _, f := range found {
		out.Findings = append(out.Findings, &probev1.Finding{
			Code: f.Code, Severity: severities.toEnum(f.Severity), Detail: f.Detail, Remedy: f.Remedy,
		})
	}
	return out, nil
}

// transportServer is the plugin's side of a Transport.
type transportServer struct {
	transportv1.UnimplementedTransportServiceServer
	t Transport
	a *attachment
}

func (s transportServer) Dial(ctx context.Context, r *transportv1.DialRequest) (*transportv1.DialResponse, error) {
	hostConn, err := s.a.get()
	if err != nil {
		return nil, ErrorToWire(err)
	}
	t := Target{
		Destination: r.GetDestination(), Hop: hopFromWire(r.GetTarget()), Jumps: hopsFromWire(r.GetJumps()),
		Proxy: Proxy{Command: r.GetProxyCommand(), Environ: r.GetProxyEnvironment(), Dir: r.GetProxyDirectory(),
			PassesDescriptor: r.GetProxyPassesDescriptor()},
		AddressFamily: families.toWord(r.GetAddressFamily(), "any"),
		BindAddress:   r.GetBindAddress(), ConnectTimeout: clampMillis(int64(r.GetConnectTimeoutMs())),
	}
	th := transportHostClient{transportv1.NewTransportHostServiceClient(hostConn)}
	conn, err := s.t.Dial(ctx, th, t)
	if err != nil {
		return nil, ErrorToWire(err)
	}
	remote := ""
	if a := conn.RemoteAddr(); a != nil {
		remote = a.String()
	}
	detached, err := handOver(ctx, r.GetHandoverSocket(), conn)
	if err != nil {
		conn.Close()
		return nil, ErrorToWire(err)
	}
	return &transportv1.DialResponse{Remote: remote, Detached: detached}, nil
}
