package planed

import (
	"context"
	"time"

	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/api"
	"fleet.example/fleet/planed/rotation"
	"fleet.example/fleet/planed/signed"
)

// openSigned makes the engines that rotate what a person signs.
func (s *server) openSigned() error {
	o := s.opts
	s.place = signed.NewURL(o.Dir, o.Plane, s.store)
	s.place.Present = func(ctx context.Context, host string) (bool, error) {
		value := ""
		if s.gate != nil {
			if v, ok := s.gate.Value(); ok {
				value = v.Value
			}
		}
		return api.PresentAt(ctx, s.public.Handler, value, host)
	}
	s.place.Changed = func(urls []string) {
		if err := s.authority.at(urls); err != nil {
			o.Log.Error("the certificate is not for all of the plane's URLs", "error", err.Error())
		}
	}
	if err := s.rotates(wire.MaterialURL, s.place); err != nil {
		return err
	}
	if _, own := s.certs.(*authority); !own {
		return nil // somebody else vouches for what the plane presents
	}
	s.trust = &signed.Trust{Dir: o.Dir, Store: s.store, Authority: s.authority, Planes: s.place.Names, Time: time.Now}
	return s.rotates(wire.MaterialTrust, s.trust)
}

// rotates makes the engine of one kind.
func (s *server) rotates(kind string, m rotation.Material) error {
	o := s.opts
	e := &rotation.Engine{Kind: kind, Store: s.store, Replica: "planed", Log: o.Log, Now: time.Now, Material: m,
		Flat: o.Policy.Flat(), Pause: min(time.Second, o.Policy.MinGap()/4)}
	e.Init()
	s.moving = append(s.moving, e)
	return e.Reload(context.Background())
}
