package systemd

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"
	"unicode/utf8"

	"fleet.example/fleet/plugins/sdk"
)

// UnitName is the unit of a spec: NAME.service of the account's own manager, or
// NAME@ACCOUNT.service of the system's.
func UnitName(s sdk.Spec) string {
	if s.Scope == sdk.ScopeSystem {
		return s.Name + "@" + escapeInstance(s.User) + ".service"
	}
	return s.Name + ".service"
}

// escapeInstance is systemd-escape for an account's name.
func escapeInstance(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '_', c == ':', c == '.' && i > 0, c == '-':
			b.WriteByte(c)
		default:
			fmt.Fprintf(&b, `\x%02x`, c)
		}
	}
	return b.String()
}

// Render writes the unit. What a unit file cannot say exactly is refused.
func (Manager) Render(_ context.Context, f sdk.Facts, s sdk.Spec) (sdk.Rendered, error) {
	if err := check(s); err != nil {
		return sdk.Rendered{}, err
	}
	var b strings.Builder
	line := func(format string, args ...any) { fmt.Fprintf(&b, format+"\n", args...) }
	line("# Written by fleet. Changes are lost with the next install or update.")
	line("[Unit]")
	line("Description=fleet agent%s", description(s))
	line("Documentation=man:systemd.service(5)")
	if s.Scope == sdk.ScopeSystem {
		line("After=network.target")
	}
	line("ConditionPathExists=!%s", specifiers(s.Latch))
	line("StartLimitIntervalSec=0")
	line("")
	line("[Service]")
	line("Type=notify")
	line("NotifyAccess=main")
	line("ExecStart=%s", execStart(s.Argv))
	line("Restart=always")
	line("RestartSec=2")
	line("KillMode=process")
	line("Delegate=yes")
	line("OOMPolicy=continue")
	line("TimeoutStartSec=%d", wholeSeconds(s.StartTimeout, 90))
	line("TimeoutStopSec=%d", wholeSeconds(s.StopTimeout, 30))
	if s.Scope == sdk.ScopeSystem {
		line("User=%s", specifiers(s.User))
		if dir, ok := strings.CutPrefix(s.RuntimeDir, "/run/"); ok {
			line("RuntimeDirectory=%s", quote(dir))
			line("RuntimeDirectoryMode=0700")
			line("RuntimeDirectoryPreserve=yes")
		}
	}
	line("")
	line("[Install]")
	out := sdk.Rendered{Unit: UnitName(s)}
	file := sdk.File{Mode: 0o644}
	if s.Scope == sdk.ScopeSystem {
		line("WantedBy=multi-user.target")
		file.Path, file.Owner = "/etc/systemd/system/"+UnitName(s), "root"
	} else {
		line("WantedBy=default.target")
		if !path.IsAbs(f.Home) {
			return sdk.Rendered{}, fmt.Errorf("%w: the account has no home directory for its unit", sdk.ErrInvalid)
		}
		file.Path, file.Owner = path.Join(f.Home, ".config/systemd/user", UnitName(s)), s.User
	}
	// The system's unit is root's to start, unless the account is root.
	if s.Scope == sdk.ScopeUser || s.User == "root" {
		out.StartArgv, out.StopArgv, out.RestartArgv = local(s, "start"), local(s, "stop"), local(s, "restart")
	}
	file.Content = []byte(b.String())
	out.Files = []sdk.File{file}
	return out, nil
}

// local is a systemctl command that the account runs on the machine itself.
func local(s sdk.Spec, verb string) []string {
	if s.Scope == sdk.ScopeUser {
		return []string{"systemctl", "--user", verb, UnitName(s)}
	}
	return []string{"systemctl", verb, UnitName(s)}
}

func description(s sdk.Spec) string {
	if s.Scope == sdk.ScopeSystem {
		return " of " + specifiers(s.User)
	}
	return ""
}

func wholeSeconds(d time.Duration, otherwise int) int {
	if d <= 0 {
		return otherwise
	}
	return int((d + time.Second - 1) / time.Second)
}

// check refuses what cannot be said.
func check(s sdk.Spec) error {
	bad := func(format string, args ...any) error {
		return fmt.Errorf("%w spec: "+format, append([]any{sdk.ErrInvalid}, args...)...)
	}
	if s.Scope != sdk.ScopeUser && s.Scope != sdk.ScopeSystem {
		return bad("scope %q", s.Scope)
	}
	for _, c := range s.Name {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("._-", c)) {
			return bad("name %q", s.Name)
		}
	}
	if s.Name == "" || len(s.Name) > 63 || strings.HasPrefix(s.Name, ".") {
		return bad("name %q", s.Name)
	}
	if err := checkUser(s.User); err != nil {
		return err
	}
	if len(s.Argv) == 0 || !path.IsAbs(s.Argv[0]) {
		return bad("the program is not an absolute path")
	}
	if !path.IsAbs(s.Latch) {
		return bad("the latch is not an absolute path")
	}
	for _, v := range append([]string{s.Latch, s.RuntimeDir}, s.Argv...) {
		if !expressible(v) {
			return bad("%q holds control characters or is not UTF-8", v)
		}
	}
	// A condition's value is not quoted: systemd strips white space at its ends
	// and takes a final backslash for a continuation.
	if s.Latch != strings.TrimSpace(s.Latch) || strings.HasSuffix(s.Latch, `\`) {
		return bad("latch %q ends in white space or a backslash", s.Latch)
	}
	if s.Scope == sdk.ScopeSystem && strings.HasPrefix(s.RuntimeDir, "/run/") && path.Clean(s.RuntimeDir) != s.RuntimeDir {
		return bad("runtime directory %q is not clean", s.RuntimeDir)
	}
	return nil
}

// checkUser refuses names that would be another file or another option.
func checkUser(u string) error {
	if u == "" || u == "." || u == ".." || strings.HasPrefix(u, "-") || strings.ContainsAny(u, "/ \t") || !expressible(u) || len(u) > 255 {
		return fmt.Errorf("%w: account name %q", sdk.ErrInvalid, u)
	}
	return nil
}

func expressible(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, func(r rune) bool {
		return r < 0x20 || r == 0x7f || r >= 0x80 && r < 0xa0 || r == '\u2028' || r == '\u2029'
	})
}

// specifiers protects % in a value that is not quoted.
func specifiers(s string) string { return strings.ReplaceAll(s, "%", "%%") }

// quote makes one word of systemd's quoting, with % protected.
func quote(s string) string {
	if s != "" && !strings.ContainsFunc(s, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("/._-+:,@%", r))
	}) {
		return specifiers(s)
	}
	r := strings.NewReplacer(`\`, `\\`, `"`, `\"`, `%`, `%%`)
	return `"` + r.Replace(s) + `"`
}

// argument is quote for an argument of ExecStart, where $ is special too.
func argument(s string) string {
	return strings.ReplaceAll(quote(s), "$", "$$")
}

// execStart writes a command line. systemd 252 rejects a program's path that
// contains quote characters, even quoted, and does not undo $$ there, so that
// such a path stands as an argument of a shell that does nothing but exec it.
func execStart(argv []string) string {
	words := make([]string, 0, len(argv)+3)
	if strings.ContainsAny(argv[0], `"'$\`) {
		words = append(words, "/bin/sh", "-c", `"exec \"$$0\" \"$$@\""`, argument(argv[0]))
	} else {
		words = append(words, quote(argv[0]))
	}
	for _, a := range argv[1:] {
		words = append(words, argument(a))
	}
	return strings.Join(words, " ")
}
