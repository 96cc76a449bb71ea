package cli

import (
	"testing"

	"fleet.example/fleet/core/golden"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"agent-id":             idDoc{Schema: schemaID},
		"credential-installed": installedDoc{Schema: schemaInstalled},
		"enroll":               enrollDoc{Schema: schemaEnroll},
	})
}
