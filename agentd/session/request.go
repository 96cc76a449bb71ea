package session

import (
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"

	"fleet.example/fleet/agentd/shim"
	"fleet.example/fleet/core/wire"
)

const (
	maxArgs     = 4096
	maxArgBytes = 1 << 20
)

// configure checks a request and makes the shim's configuration of it, all but
// what names the session. It never touches the disk: whether a program or a
// directory is there is found out by the start, and told by the exit record.
func (m *Manager) configure(req wire.SessionRequest) (*shim.Config, string, error) {
	bad := func(format string, args ...any) (*shim.Config, string, error) {
		return nil, "", &RequestError{fmt.Sprintf(format, args...)}
	}
	cfg := &shim.Config{Argv: req.Argv, Cwd: m.Account.Home, Umask: m.Umask, Stdin: req.Stdin || req.PTY != nil, PTY: req.PTY,
		Limit: DefaultLimit, Drop: !req.Attached}
	switch {
	case req.Shell && len(req.Argv) > 0:
		return bad("a session runs either argv or the login shell")
	case req.Shell:
		// A dash before the name is how a shell knows that it is a login's.
		cfg.Path, cfg.Argv = m.Account.Shell, []string{"-" + filepath.Base(m.Account.Shell)}
	case len(req.Argv) == 0 || req.Argv[0] == "":
		return bad("argv is empty")
	case len(req.Argv) > maxArgs:
		return bad("argv has %d words, at most %d are taken", len(req.Argv), maxArgs)
	}
	size := 0
	for _, a := range req.Argv {
		if strings.ContainsRune(a, 0) {
			return bad("argv contains a zero byte")
		}
		size += len(a)
	}
	env := map[string]string{}
	for _, kv := range m.Account.Environ(m.Getenv) {
		k, v, _ := strings.Cut(kv, "=")
		env[k] = v
	}
	for k, v := range req.Env {
		if k == "" || strings.ContainsAny(k, "=\x00") || strings.ContainsRune(v, 0) {
			return bad("an environment variable has a malformed name or a zero byte")
		}
		env[k] = v
		size += len(k) + len(v)
	}
	if size > maxArgBytes {
		return bad("argv and environment have %d bytes, at most %d are taken", size, maxArgBytes)
	}
	if req.PTY != nil {
		if len(req.PTY.Term) > 64 || strings.ContainsAny(req.PTY.Term, "/\x00") {
			return bad("the terminal's name is malformed")
		}
		if _, own := req.Env["TERM"]; !own {
			env["TERM"] = req.PTY.Term
			if env["TERM"] == "" {
				env["TERM"] = "dumb"
			}
		}
	}
	for _, k := range slices.Sorted(maps.Keys(env)) {
		cfg.Env = append(cfg.Env, k+"="+env[k])
	}
	if req.Dir != "" {
		if strings.ContainsRune(req.Dir, 0) {
			return bad("the directory contains a zero byte")
		}
		cfg.Cwd = req.Dir
		if !filepath.IsAbs(req.Dir) {
			cfg.Cwd = filepath.Join(m.Account.Home, req.Dir)
		}
	}
	if p := req.Spool; p != nil {
		switch p.Policy {
		case "":
		case wire.SpoolBlock:
			cfg.Drop = false
		case wire.SpoolDropOldest:
			cfg.Drop = true
		default:
			return bad("spool policy %q is neither %s nor %s", p.Policy, wire.SpoolBlock, wire.SpoolDropOldest)
		}
		if p.LimitBytes < 0 || p.LimitBytes > maxLimit {
			return bad("a spool holds up to %d bytes", int64(maxLimit))
		}
		if p.LimitBytes > 0 {
			cfg.Limit = p.LimitBytes
		}
	}
	return cfg, filepath.Base(cfg.Argv[0]), nil
}
