package wire_test

import (
	"testing"

	"fleet.example/fleet/core/golden"
	"fleet.example/fleet/core/wire"
)

// Documents change only by additions; the golden files show what a change does.
func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"agent":             wire.AgentStatus{Schema: wire.SchemaAgent},
		"agent-facts":       wire.AgentFacts{Schema: wire.SchemaAgentFacts},
		"audit":             wire.Audit{Schema: wire.SchemaAudit},
		"check-answer":      wire.CheckAnswer{},
		"check-body":        wire.CheckBody{},
		"copy":              wire.Copy{Schema: wire.SchemaCopy},
		"credential":        wire.Credential{Schema: wire.SchemaCredential},
		"error":             wire.CLIError{Schema: wire.SchemaError},
		"findings":          wire.Findings{Schema: wire.SchemaFindings},
		"forward":           wire.Forward{Schema: wire.SchemaForward},
		"identity":          wire.Identity{Schema: wire.SchemaIdentity},
		"install":           wire.Install{Schema: wire.SchemaInstall},
		"machine":           wire.Machine{Schema: wire.SchemaMachine},
		"person":            wire.Person{Schema: wire.SchemaPerson},
		"person-changed":    wire.PersonChanged{Schema: wire.SchemaPersonChanged},
		"persons":           wire.Persons{Schema: wire.SchemaPersons},
		"plane":             wire.Plane{Schema: wire.SchemaPlane},
		"mux":               wire.Mux{Schema: wire.SchemaMux},
		"enroll":            wire.EnrollRequest{},
		"enroll-answer":     wire.EnrollAnswer{},
		"enroll-poll":       wire.EnrollPollAnswer{},
		"enrolled":          wire.Enrolled{Schema: wire.SchemaEnrolled},
		"enrollment":        wire.Enrollment{Schema: wire.SchemaEnrollment},
		"registered":        wire.Registered{Schema: wire.SchemaRegistered},
		"refusal":           wire.Error{},
		"rotate":            wire.RotateRequest{},
		"rotate-answer":     wire.RotateAnswer{},
		"material":          wire.Material{Schema: wire.SchemaMaterial},
		"material-rotation": wire.MaterialRotation{Schema: wire.SchemaMaterialRotation},
		"rotation-request":  wire.RotationRequest{},
		"rotation":          wire.Rotation{Schema: wire.SchemaRotation},
		"service":           wire.ServiceRecord{Schema: wire.SchemaService},
		"session":           wire.Session{Schema: wire.SchemaSession},
		"statement":         wire.Statement{Schema: wire.SchemaStatement},
		"test":              wire.Test{Schema: wire.SchemaTest},
		"token":             wire.Token{Schema: wire.SchemaToken},
		"tree":              wire.TreeRequest{},
		"workspace":         wire.Workspace{Schema: wire.SchemaWorkspace},
		"workspaces":        wire.Workspaces{Schema: wire.SchemaWorkspaces, Workspaces: []wire.Workspace{}},
		"workspace-removed": wire.WorkspaceRemoved{Schema: wire.SchemaWorkspace},
		"watch-event":       wire.WatchEvent{Schema: wire.SchemaWatch},
		"web-link":          wire.WebLink{Schema: wire.SchemaWebLink},
	})
}
