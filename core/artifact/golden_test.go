package artifact

import (
	"testing"

	"fleet.example/fleet/core/golden"
	"fleet.example/fleet/core/wire"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"artifact": Manifest{Schema: wire.SchemaArtifact},
	})
}
