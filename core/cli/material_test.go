package cli

import (
	"encoding/json"
	"net/http"
	"slices"

	"fleet.example/fleet/core/wire"
)

// sampleRotation waits for stragglers, one of which is no machine.
func sampleRotation() wire.MaterialRotation {
	return wire.MaterialRotation{Schema: wire.SchemaMaterialRotation, Kind: wire.MaterialGate, State: wire.RotationRunning, Step: wire.StepRoll,
		Version: 4, From: 4, To: 5, Target: 5, Retiring: 4, By: "person:dana", StartedAt: at("2026-01-02T03:00:00Z"), StepAt: at("2026-01-02T03:00:01Z"),
		Waiting: "machines to present the new version", Machines: wire.RotationMachines{All: 3, Moved: 2},
		Uses:  wire.RotationUses{Count: 3, LastAt: at("2026-01-02T03:00:05Z"), FlatS: 2, NeededS: 70},
		Leave: []string{}, Missed: []wire.RotationStraggler{},
		Stragglers: []wire.RotationStraggler{
			{Machine: idWeb, Name: "web-1\x1b[31m", Presence: wire.Absent, LastCheck: at("2026-01-01T03:00:05Z"), Version: 4, Uses: 2, LastUsed: at("2026-01-01T03:00:05Z")},
			{Endpoint: wire.PathEnroll, Uses: 1, LastUsed: at("2026-01-02T03:00:05Z")}},
		Replicas: []wire.RotationReplica{{ID: "planed", Versions: []int64{4, 5}, At: *at("2026-01-02T03:00:05Z")}}}
}

// rotations answers for the rotation of the gate token: it ends when both
// stragglers are left, and when it is taken back.
func (p *fakePlane) rotations(mux *http.ServeMux) {
	r := sampleRotation()
	end := func(state string, version int64) {
		r.State, r.Step, r.Version, r.EndedAt, r.ProvedAt = state, "", version, at("2026-01-02T03:05:00Z"), at("2026-01-02T03:04:59Z")
		r.Waiting, r.Stragglers = "", []wire.RotationStraggler{}
	}
	mux.HandleFunc("GET "+wire.PathRotations+"/gate", func(w http.ResponseWriter, _ *http.Request) { p.answer(w, r) })
	mux.HandleFunc("POST "+wire.PathRotations+"/gate", func(w http.ResponseWriter, req *http.Request) {
		var q wire.RotationRequest
		json.NewDecoder(req.Body).Decode(&q)
		p.did("rotation %s %v %v", q.Action, q.Drill, q.Leave)
		r.Leave = append(r.Leave, q.Leave...)
		switch {
		case q.Action == wire.RotationAbort:
			end(wire.RotationAborted, 4)
		case q.Drill:
			missed := r.Stragglers
			end(wire.RotationDrilled, 4)
			r.Drill, r.Missed = true, missed
		case slices.Contains(r.Leave, idWeb) && slices.Contains(r.Leave, wire.PathEnroll):
			end(wire.RotationDone, 5)
		}
		p.answer(w, r)
	})
}
