package catalog

import (
	"testing"

	"fleet.example/fleet/core/golden"
	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/sdk"
)

func TestDocuments(t *testing.T) {
	golden.Documents(t, map[string]any{
		"plugins":      ListDoc{Schema: SchemaPlugins},
		"plugin-test":  TestDoc{Schema: SchemaPluginTest},
		"plugins-lock": lock.Lock{Schema: lock.Schema},
		"plugin":       sdk.Description{Schema: sdk.SchemaDescription},
	})
}
