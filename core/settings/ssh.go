package settings

import (
	"os"
	"path/filepath"

	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/state"
)

// Resolver is the person's own OpenSSH, with what it said before. Where no
// private directory can be had, nothing is kept.
func Resolver(getenv func(string) string) sshconfig.Resolver {
	r := sshconfig.Resolver{Getenv: getenv}
	dir, err := state.DirsOf(getenv).Cache()
	if err != nil {
		return r
	}
	dir = filepath.Join(dir, "ssh-config")
	if err := os.Mkdir(dir, 0o700); err != nil && !os.IsExist(err) {
		return r
	}
	r.Cache = sshconfig.NewCache(dir)
	return r
}
