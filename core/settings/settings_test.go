package settings

import (
	"maps"
	"os"
	"path/filepath"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/state"
)

func TestUnknownKeysAreErrors(t *testing.T) {
	home := t.TempDir()
	d := state.Dirs{UID: os.Getuid(), Getenv: func(k string) string {
		if k == "HOME" {
			return home
		}
		return ""
	}}
	if m, err := Load(d); err != nil || len(m) != 0 {
		t.Fatal(m, err)
	}
	path := filepath.Join(home, ".config/fleet/config.toml")
	if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]map[string]string{
		"plane = 'https://x'\nno_input = true\nparallel = 4\n": {"plane": "https://x", "no-input": "true", "parallel": "4"},
		"plan = 'x'\n":   nil,
		"plane = 3\n":    nil,
		"[table]\nx=1\n": nil,
		"= nonsense":     nil,
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		m, err := Load(d)
		if want == nil && (err == nil || fault.Of(err).Exit != fault.Usage) || want != nil && (err != nil || !maps.Equal(m, want)) {
			t.Errorf("%q: %v, %v", text, m, err)
		}
	}
}
