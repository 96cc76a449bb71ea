package credential

import (
	"testing"

	"fleet.example/fleet/core/golden"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"machine-secret": file{Schema: fileSchema},
	})
}
