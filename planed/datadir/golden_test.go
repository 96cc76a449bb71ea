package datadir

import (
	"testing"

	"fleet.example/fleet/core/golden"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"plane-file": Plane{Schema: schemaPlaneFile},
	})
}
