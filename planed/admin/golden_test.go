package admin

import (
	"testing"

	"fleet.example/fleet/core/golden"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"plane-status":    Status{Schema: SchemaStatus},
		"plane-check":     Report{Schema: SchemaReport},
		"plane-recovered": Recovered{Schema: SchemaRecovered},
	})
}
