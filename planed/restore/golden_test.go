package restore

import (
	"testing"

	"fleet.example/fleet/core/golden"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{"plane-restored": Report{Schema: Schema, Replayed: &Replayed{}}})
}
