package catalog

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/hashicorp/go-hclog"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/sdk"
)

// Dir is one directory in which plugins are looked for.
type Dir struct {
	Path   string
	Source string // where the path comes from, for people
	// Own says that the directory belongs to fleet's installation: a plugins.lock
	// in it, written by the build, decides about the plugins that it names.
	Own bool
}

// Catalog is where plugins come from. The zero value finds nothing.
type Catalog struct {
	Dirs       []Dir  // in order of precedence
	PersonLock string // the person's own lock file; empty means none
	InstallDir string // where Install puts plugins
	RunBase    string // a private, short directory in which launches get theirs; empty means one under the temporary directory
	Version    string // of the program that hosts the plugins
	Log        hclog.Logger
	Limits     Limits
}

func (c *Catalog) log() hclog.Logger {
	if c.Log == nil {
		return hclog.NewNullLogger()
	}
	return c.Log
}

// Environment is what the places of plugins depend on.
type Environment struct {
	Getenv     func(string) string
	Executable string // of the running program, absolute
	StateDir   string // fleet's state directory
	RunBase    string
}

// ForPerson is the catalog of a person's fleet.
func ForPerson(e Environment) *Catalog {
	c := &Catalog{PersonLock: filepath.Join(e.StateDir, lock.FileName), RunBase: e.RunBase}
	if d := e.Getenv("FLEET_PLUGIN_DIR"); d != "" {
		c.Dirs = append(c.Dirs, Dir{Path: d, Source: "FLEET_PLUGIN_DIR"})
	}
	data, source := e.Getenv("XDG_DATA_HOME"), "XDG_DATA_HOME"
	if !filepath.IsAbs(data) {
		if home := e.Getenv("HOME"); home != "" {
			data, source = filepath.Join(home, ".local", "share"), "home directory"
		} else {
			data = ""
		}
	}
	if data != "" {
		c.InstallDir = filepath.Join(data, "fleet", "plugins")
		c.Dirs = append(c.Dirs, Dir{Path: c.InstallDir, Source: source})
	}
	c.Dirs = append(c.Dirs, besideExecutable(e.Executable), Dir{Path: "/usr/lib/fleet/plugins", Source: "system", Own: true})
	return c
}

// ForMachine is the catalog of an installed version directory: the directory of
// the executable and nothing else.
func ForMachine(executable, runBase string) *Catalog {
	return &Catalog{Dirs: []Dir{besideExecutable(executable)}, RunBase: runBase}
}

func besideExecutable(executable string) Dir {
	if real, err := filepath.EvalSymlinks(executable); err == nil {
		executable = real
	}
	return Dir{Path: filepath.Dir(executable), Source: "beside the executable", Own: true}
}

// States of a file that was looked at.
const (
	StateTaken    = "taken"
	StateShadowed = "shadowed" // another of the same name comes first
	StateRefused  = "refused"
	StateIgnored  = "ignored" // not a plugin's name
	StateAbsent   = "absent"  // a directory that is not there
	StateSearched = "searched"
)

// Found is one file with a plugin's name.
type Found struct {
	Kind  sdk.Kind
	Name  string
	Path  string
	State string // taken | shadowed | refused
	Why   string
	Own   bool       // belongs to fleet
	Entry lock.Entry // as locked; zero if it is not locked

	code string // of the refusal
	hint string
}

// Tried is one path that discovery looked at, and what came of it.
type Tried struct {
	Path   string
	Source string
	State  string
	Why    string
}

// Discover looks through every directory. It executes nothing. The error says
// that a lock could not be read; what was found then is refused.
func (c *Catalog) Discover() ([]Found, []Tried, error) {
	person, err := c.personLock()
	var found []Found
	var tried []Tried
	taken := map[string]string{}
	for _, d := range c.Dirs {
		entries, readErr := os.ReadDir(d.Path)
		if readErr != nil {
			t := Tried{Path: d.Path, Source: d.Source, State: StateRefused, Why: words(readErr)}
			if errors.Is(readErr, fs.ErrNotExist) {
				t.State = StateAbsent
			}
			tried = append(tried, t)
			continue
		}
		tried = append(tried, Tried{Path: d.Path, Source: d.Source, State: StateSearched})
		own, ownErr := lock.Lock{}, error(nil)
		if d.Own {
			own, ownErr = lock.Read(filepath.Join(d.Path, lock.FileName))
			err = errors.Join(err, ownErr)
		}
		for _, e := range entries {
			p := filepath.Join(d.Path, e.Name())
			kind, name, ok := sdk.ParseFileName(e.Name())
			if !ok {
				// Beside the executable many files have nothing to do with plugins.
				if !d.Own || strings.HasPrefix(e.Name(), "fleet-") {
					tried = append(tried, Tried{Path: p, Source: d.Source, State: StateIgnored, Why: "not of the form fleet-KIND-NAME"})
				}
				continue
			}
			f := c.judge(Found{Kind: kind, Name: name, Path: p}, own, person)
			if f.State == StateTaken {
				if first, dup := taken[e.Name()]; dup {
					f.State, f.Why = StateShadowed, first+" comes first"
				} else {
					taken[e.Name()] = p
				}
			}
			found = append(found, f)
			tried = append(tried, Tried{Path: p, Source: d.Source, State: f.State, Why: f.Why})
		}
	}
	return found, tried, err
}

func (c *Catalog) personLock() (lock.Lock, error) {
	if c.PersonLock == "" {
		return lock.Lock{Schema: lock.Schema}, nil
	}
	if err := onlyOurs(c.PersonLock); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return lock.Lock{}, err
	}
	return lock.Read(c.PersonLock)
}

// judge decides about one file without opening it.
func (c *Catalog) judge(f Found, own, person lock.Lock) Found {
	base := filepath.Base(f.Path)
	refuse := func(code, why, hint string) Found {
		f.State, f.Why, f.code, f.hint = StateRefused, why, code, hint
		return f
	}
	if e, ok := own.Get(base); ok {
		f.Own, f.Entry = true, e
	} else if e, ok := person.Get(base); ok {
		f.Entry = e
	}
	if err := runnable(f.Path); err != nil {
		return refuse(CodeNotTaken, err.Error(), hintOurs)
	}
	if f.Entry.File == "" {
		return refuse(CodeNotTaken, "not locked", "if you trust it, run: fleet plugin install "+f.Path)
	}
	if code, why, hint := c.speaks(f.Entry.Description); code != "" {
		return refuse(code, why, hint)
	}
	f.State = StateTaken
	return f
}

// speaks compares protocols.
func (c *Catalog) speaks(d sdk.Description) (code, why, hint string) {
	ours := d.Kind.Protocol()
	newest := 0
	for _, p := range d.Protocols {
		if p == ours {
			return "", "", ""
		}
		var n int
		if _, err := fmt.Sscanf(p[strings.LastIndexByte(p, '.')+1:], "v%d", &n); err == nil {
			newest = max(newest, n)
		}
	}
	theirs := strings.Join(d.Protocols, ", ")
	if newest > sdk.ProtocolVersion {
		return CodeTooNew, fmt.Sprintf("speaks %s, this fleet only %s", theirs, ours), "upgrade fleet, or install an older version of the plugin"
	}
	return CodeTooOld, fmt.Sprintf("speaks %s, this fleet only %s", theirs, ours), "upgrade the plugin"
}

// hintOurs is what a file must be that may run.
const hintOurs = "a plugin and the directories above it belong to you or root and are writable by nobody else"

// runnable returns why a file must not be run, whatever it contains.
func runnable(path string) error {
	st, err := os.Stat(path) // a link's target is what would run
	if err != nil {
		return errors.New(words(err))
	}
	if !st.Mode().IsRegular() {
		return errors.New("not a regular file")
	}
	if st.Mode().Perm()&0o111 == 0 {
		return errors.New("not executable")
	}
	return onlyOurs(path)
}

// onlyOurs returns an error if anybody but root and the account could replace
// or change the file, by way of the file or of any directory above it, at its
// name or where a link leads.
func onlyOurs(path string) error {
	abs, err := filepath.Abs(path)
	if err != nil {
		return err
	}
	real, err := filepath.EvalSymlinks(abs)
	if err != nil {
		return err
	}
	checked := map[string]bool{}
	for _, p := range []string{abs, real} {
		for {
			if !checked[p] {
				checked[p] = true
				if err := notOthers(p); err != nil {
					return err
				}
			}
			up := filepath.Dir(p)
			if up == p {
				break
			}
			p = up
		}
	}
	return nil
}

// notOthers checks one path. A sticky directory lets others add names, not
// replace ours.
func notOthers(p string) error {
	st, err := os.Lstat(p)
	if err != nil {
		return err
	}
	if st.Mode()&fs.ModeSymlink != 0 {
		return ownedByUs(p, st) // its mode says nothing; its directory is checked too
	}
	perm, sticky := st.Mode().Perm(), st.IsDir() && st.Mode()&fs.ModeSticky != 0
	byGroup := perm&0o020 != 0
	if sys, ok := st.Sys().(*syscall.Stat_t); byGroup && !sticky && perm&0o002 == 0 && ok {
		byGroup = !privateGroup(sys.Gid)
	}
	if (byGroup || perm&0o002 != 0) && !sticky {
		return fmt.Errorf("%s is writable by others (mode %04o)", p, perm)
	}
	return ownedByUs(p, st)
}

func ownedByUs(p string, st fs.FileInfo) error {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return fmt.Errorf("%s: cannot tell its owner", p)
	}
	if sys.Uid != 0 && sys.Uid != uint32(os.Geteuid()) {
		return fmt.Errorf("%s belongs to somebody else (uid %d)", p, sys.Uid)
	}
	return nil
}

// words takes the path out of a path error, which stands beside it anyway.
func words(err error) string {
	var pe *fs.PathError
	if errors.As(err, &pe) {
		return pe.Err.Error()
	}
	return err.Error()
}

// Find gives the plugin that would run, or the one error that says why there is
// none and where it was looked for.
func (c *Catalog) Find(kind sdk.Kind, name string) (Found, error) {
	file := sdk.Description{Kind: kind, Name: name}.FileName()
	found, tried, lockErr := c.Discover()
	var refused *Found
	for i, f := range found {
		if f.Kind != kind || f.Name != name {
			continue
		}
		if f.State == StateTaken {
			return f, nil
		}
		if refused == nil {
			refused = &found[i]
		}
	}
	if refused != nil {
		why, hint := refused.Why, refused.hint
		if lockErr != nil && refused.Entry.File == "" {
			why, hint = "is not locked as far as can be told: "+lockErr.Error(), "mend or remove the lock file, then install the plugin again"
		}
		return Found{}, c.problem(refused.code, refused.Path, refused.Entry.Description.Version, "is not taken: %s", why).WithHint("%s", hint)
	}
	var dirs []string
	for _, t := range tried {
		if t.State == StateSearched || t.State == StateAbsent {
			dirs = append(dirs, t.Path)
		}
	}
	return Found{}, fault.New(fault.Failure, CodeMissing, "plugin %s is missing (fleet %s): not in %s", file, c.version(), strings.Join(dirs, ", ")).
		WithHint("fleet plugin ls shows every path that was tried")
}

// Named lists the names of the plugins of a kind that would run.
func (c *Catalog) Named(kind sdk.Kind) ([]string, error) {
	found, _, err := c.Discover()
	var names []string
	for _, f := range found {
		if f.Kind == kind && f.State == StateTaken {
			names = append(names, f.Name)
		}
	}
	return names, err
}
