package api

import (
	"errors"

	"fleet.example/fleet/core/loopback"
)

// LoopbackServer serves what agent.sock does, by the same tokens. Its places
// are its own: who takes them all takes nothing from those who come by the
// UNIX socket.
func (s *Server) LoopbackServer() (*HTTP, error) {
	if s.Tokens == nil {
		return nil, errors.New("no tokens are there, and without one nobody may ask")
	}
	srv := s.AgentServer()
	loopback.Guarded(srv.Server)
	return srv, nil
}
