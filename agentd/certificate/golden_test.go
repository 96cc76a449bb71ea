package certificate

import (
	"testing"

	"fleet.example/fleet/core/golden"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"machine-certificate": file{Schema: fileSchema},
	})
}
