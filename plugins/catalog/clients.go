package catalog

import (
	"context"

	"google.golang.org/grpc"

	"fleet.example/fleet/plugins/sdk"
)

// Service is a running service manager plugin. It is an sdk.ServiceManager for
// any number of machines at once.
type Service struct {
	*Process
	m sdk.ServiceManager
}

// LaunchService starts the service manager of a name, as systemd.
func (c *Catalog) LaunchService(ctx context.Context, name string) (*Service, error) {
	f, err := c.Find(sdk.KindService, name)
	if err != nil {
		return nil, err
	}
	return c.launchService(ctx, f)
}

func (c *Catalog) launchService(ctx context.Context, f Found) (*Service, error) {
	machines := sdk.NewMachines(f.Entry.Description)
	p, err := c.launch(ctx, f, machines.Register)
	if err != nil {
		return nil, err
	}
	return &Service{p, sdk.RemoteService(p.conn, machines)}, nil
}

var _ sdk.ServiceManager = (*Service)(nil)

// Detect implements sdk.ServiceManager, as do the methods below.
func (s *Service) Detect(ctx context.Context, h sdk.Host) (d sdk.Detection, err error) {
	err = s.call(ctx, "Detect", func(ctx context.Context) (err error) {
		d, err = s.m.Detect(ctx, h)
		return err
	})
	return d, err
}

// Render asks for the files.
func (s *Service) Render(ctx context.Context, f sdk.Facts, spec sdk.Spec) (r sdk.Rendered, err error) {
	err = s.call(ctx, "Render", func(ctx context.Context) (err error) {
		r, err = s.m.Render(ctx, f, spec)
		return err
	})
	return r, err
}

// Reload makes the manager read its files.
func (s *Service) Reload(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	return s.call(ctx, "Reload", func(ctx context.Context) error { return s.m.Reload(ctx, h, spec) })
}

// Enable makes the service start with the machine.
func (s *Service) Enable(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	return s.call(ctx, "Enable", func(ctx context.Context) error { return s.m.Enable(ctx, h, spec) })
}

// Start starts the service.
func (s *Service) Start(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	return s.call(ctx, "Start", func(ctx context.Context) error { return s.m.Start(ctx, h, spec) })
}

// Stop ends the service's main process.
func (s *Service) Stop(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	return s.call(ctx, "Stop", func(ctx context.Context) error { return s.m.Stop(ctx, h, spec) })
}

// Restart is Stop and Start.
func (s *Service) Restart(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	return s.call(ctx, "Restart", func(ctx context.Context) error { return s.m.Restart(ctx, h, spec) })
}

// Disable undoes Enable.
func (s *Service) Disable(ctx context.Context, h sdk.Host, spec sdk.Spec) error {
	return s.call(ctx, "Disable", func(ctx context.Context) error { return s.m.Disable(ctx, h, spec) })
}

// Status says what the service is doing.
func (s *Service) Status(ctx context.Context, h sdk.Host, spec sdk.Spec) (st sdk.Status, err error) {
	st.State = sdk.StateUnknown
	err = s.call(ctx, "Status", func(ctx context.Context) (err error) {
		st, err = s.m.Status(ctx, h, spec)
		return err
	})
	return st, err
}

// Logs gives the last lines.
func (s *Service) Logs(ctx context.Context, h sdk.Host, spec sdk.Spec, lines int) (b []byte, err error) {
	err = s.call(ctx, "Logs", func(ctx context.Context) (err error) {
		b, err = s.m.Logs(ctx, h, spec, lines)
		return err
	})
	return b, err
}

// Linger reads or turns on lingering.
func (s *Service) Linger(ctx context.Context, h sdk.Host, spec sdk.Spec, enable bool) (l sdk.Linger, err error) {
	err = s.call(ctx, "Linger", func(ctx context.Context) (err error) {
		l, err = s.m.Linger(ctx, h, spec, enable)
		return err
	})
	return l, err
}

// Probe is a running probe plugin.
type Probe struct {
	*Process
	p *sdk.ProbeClient
}

// LaunchProbe starts the probe of a name, as host.
func (c *Catalog) LaunchProbe(ctx context.Context, name string) (*Probe, error) {
	f, err := c.Find(sdk.KindProbe, name)
	if err != nil {
		return nil, err
	}
	return c.launchProbe(ctx, f)
}

func (c *Catalog) launchProbe(ctx context.Context, f Found) (*Probe, error) {
	machines := sdk.NewMachines(f.Entry.Description)
	p, err := c.launch(ctx, f, machines.Register)
	if err != nil {
		return nil, err
	}
	return &Probe{p, sdk.RemoteProbe(p.conn, machines)}, nil
}

// Codes lists the codes that Probe may report.
func (p *Probe) Codes(ctx context.Context) (codes []string, err error) {
	err = p.call(ctx, "Codes", func(ctx context.Context) (err error) {
		codes, err = p.p.Codes(ctx)
		return err
	})
	return codes, err
}

// Probe gives the complete set of findings. An error means "cannot tell".
func (p *Probe) Probe(ctx context.Context, h sdk.Host) (found []sdk.Finding, err error) {
	err = p.call(ctx, "Probe", func(ctx context.Context) (err error) {
		found, err = p.p.Probe(ctx, h)
		return err
	})
	return found, err
}

// Transport is a running transport plugin.
type Transport struct {
	*Process
}

// LaunchTransport starts the transport of a name, as direct. A nil th serves
// one that asks its host for nothing.
func (c *Catalog) LaunchTransport(ctx context.Context, name string, th sdk.TransportHost) (*Transport, error) {
	f, err := c.Find(sdk.KindTransport, name)
	if err != nil {
		return nil, err
	}
	return c.launchTransport(ctx, f, th)
}

func (c *Catalog) launchTransport(ctx context.Context, f Found, th sdk.TransportHost) (*Transport, error) {
	if th == nil {
		th = sdk.NoTransportHost{}
	}
	p, err := c.launch(ctx, f, func(s *grpc.Server) { sdk.RegisterTransportHost(s, th) })
	if err != nil {
		return nil, err
	}
	return &Transport{p}, nil
}
