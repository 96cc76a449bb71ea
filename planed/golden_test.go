package planed

import (
	"testing"

	"fleet.example/fleet/core/golden"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"plane-ca":         authorityDoc{Schema: schemaAuthority},
		"plane-new-root":   newRootDoc{Schema: schemaNewRoot},
		"plane-ca-renewal": renewalDoc{Schema: schemaRenewal},
	})
}
