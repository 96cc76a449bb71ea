package planeclient

import "fleet.example/fleet/core/wire"

// complete reports whether an answer of success has what it is for. A server
// that failed half way, or that is no plane, may well say `{}`; what is missing
// then must not be stored or shown as if it were empty.
func complete(out any) bool {
	switch a := out.(type) {
	case *wire.Version:
		return a.Schema == wire.SchemaVersion
	case *wire.ChallengeAnswer:
		return a.Nonce != ""
	case *wire.LoginAnswer:
		return a.Token != "" && a.Person != "" && a.Role != "" && !a.ExpiresAt.IsZero()
	case *wire.Whoami:
		return a.Schema == wire.SchemaWhoami && a.Name != ""
	case *wire.AdmitAnswer:
		return a.Machine != "" && a.Status != ""
	case *wire.Machine:
		return a.ID != ""
	case *wire.Machines:
		return a.Schema == wire.SchemaMachines
	case *wire.DeleteAnswer:
		return a.Machine != ""
	case *wire.Audit:
		return a.Schema == wire.SchemaAudit
	case *wire.PersonInvited:
		return a.Invitation != ""
	case *wire.WebLink:
		return a.URL != ""
	case *wire.EnrollAnswer:
		return a.Code != "" && a.URL != "" && a.ExpiresS > 0
	case *wire.EnrollPollAnswer:
		return a.Status == wire.EnrollWaiting || a.Status == wire.EnrollApproved
	case *wire.Enrollment:
		return a.Schema == wire.SchemaEnrollment
	case *wire.Enrolled:
		return a.Schema == wire.SchemaEnrolled
	case *wire.Person:
		return a.Name != ""
	case *wire.Persons:
		return a.Schema == wire.SchemaPersons
	case *wire.PersonChanged:
		return a.Schema == wire.SchemaPersonChanged
	case *wire.TokenCreated:
		return a.Secret != ""
	case *wire.MaterialRotation:
		return a.Schema == wire.SchemaMaterialRotation && a.Kind != "" && a.State != ""
	case *wire.Tokens:
		return a.Schema == wire.SchemaTokens
	}
	return true
}
