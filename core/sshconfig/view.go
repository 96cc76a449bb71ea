package sshconfig

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	systemDir = "/etc/ssh"
	// maxDepth is how deep ssh lets Include nest.
	maxDepth = 16
	// maxFiles and maxFile bound what is read of a configuration, as a number
	// and in bytes each.
	maxFiles = 512
	maxFile  = 1 << 20
	// settleTime is longer than any file system's tick.
	settleTime = 3 * time.Second
)

// view is everything that an answer of ssh's depends on, as it is now.
type view struct {
	key        string // names the answer; "" if it is not to be kept
	programKey string // names what depends on the ssh program and account alone
	why        string // why it is not to be kept

	files  []stamp          // those that ssh reads
	stamps map[string]stamp // of everything looked at, by name

	sum    hash.Hash
	home   string // of the environment: ssh's glob takes it for ~
	getenv func(string) string
}

// stamp tells a file from another one that stood in its place, and from itself
// before a change.
type stamp struct {
	dev, ino     uint64
	ctime, mtime int64 // nanoseconds
	size         int64
	missing      bool
}

func stampOf(st fs.FileInfo) (stamp, bool) {
	sys, ok := st.Sys().(*syscall.Stat_t)
	if !ok {
		return stamp{}, false
	}
	return stamp{dev: uint64(sys.Dev), ino: sys.Ino, ctime: changed(sys), mtime: st.ModTime().UnixNano(), size: st.Size()}, true
}

// errNotKept is why an answer is not kept.
type errNotKept string

func (e errNotKept) Error() string { return string(e) }

// look makes the view for one question.
func (r Resolver) look(program string, f Flags, args []string) *view {
	v := &view{sum: sha256.New(), getenv: r.Getenv, home: r.Getenv("HOME"), stamps: map[string]stamp{}}
	if r.Cache == nil {
		v.why = "there is no cache"
		return v
	}
	err := v.program(program)
	if err == nil {
		v.programKey = hex.EncodeToString(v.sum.Sum(nil))
		err = v.question(f, args)
	}
	if err != nil {
		v.why = err.Error()
		return v
	}
	v.key = hex.EncodeToString(v.sum.Sum(nil))
	return v
}

func (v *view) add(parts ...string) {
	for _, p := range parts {
		fmt.Fprintf(v.sum, "%d:", len(p))
		io.WriteString(v.sum, p)
	}
}

// program takes in the ssh program and who runs it where. A script by the name
// of ssh may do anything, so only machine code is trusted to be OpenSSH.
func (v *view) program(program string) error {
	f, err := os.Open(program)
	if err != nil {
		return errNotKept("the ssh program cannot be read")
	}
	defer f.Close()
	head := make([]byte, 4)
	if _, err := io.ReadFull(f, head); err != nil || !isMachineCode(head) {
		return errNotKept("the ssh program is a script")
	}
	st, err := f.Stat()
	if err != nil {
		return err
	}
	s, ok := stampOf(st)
	if !ok {
		return errNotKept("files cannot be told apart here")
	}
	v.stamps[program] = s
	name, home := account()
	fips, _ := os.ReadFile("/proc/sys/crypto/fips_enabled") // is not there on most systems
	v.add("fleet-ssh-config-2", program, fmt.Sprint(s), strconv.Itoa(os.Getuid()), strconv.Itoa(os.Geteuid()), name, home, localHost(), string(fips))
	// The environment's say in what the dynamic linker loads, and in what a
	// wildcard fits.
	for _, k := range []string{"LD_PRELOAD", "LD_LIBRARY_PATH", "DYLD_INSERT_LIBRARIES", "DYLD_LIBRARY_PATH", "OPENSSL_CONF", "LC_ALL", "LC_CTYPE", "LANG"} {
		v.add(v.getenv(k))
	}
	return nil
}

func isMachineCode(head []byte) bool {
	for _, magic := range []string{"\x7fELF", "\xcf\xfa\xed\xfe", "\xca\xfe\xba\xbe"} {
		if bytes.HasPrefix(head, []byte(magic)) {
			return true
		}
	}
	return false
}

// question takes in the arguments and the files.
func (v *view) question(f Flags, args []string) error {
	v.add(v.home)
	v.add(args...)
	for _, o := range f.Options {
		if err := v.line(o, false, -1); err != nil {
			return fmt.Errorf("-o %s: %w", o, err)
		}
	}
	for _, w := range append([]string{f.Jump, f.User}, f.Identities...) {
		if strings.ContainsRune(w, '$') {
			return errNotKept("it refers to the environment")
		}
	}
	for _, i := range f.Identities {
		// ssh drops an identity that is not there.
		if strings.HasPrefix(i, "~") {
			return errNotKept("it has -i with ~")
		}
		_, err := os.Stat(i)
		v.add(strconv.FormatBool(err == nil))
	}
	if f.ConfigFile != "" {
		if strings.EqualFold(f.ConfigFile, "none") {
			return nil
		}
		path, err := filepath.Abs(f.ConfigFile)
		if err != nil {
			return err
		}
		return v.file(path, true, 0)
	}
	_, home := account()
	if !filepath.IsAbs(home) {
		return errNotKept("the account's home directory is not known")
	}
	if err := v.file(filepath.Join(home, ".ssh", "config"), true, 0); err != nil {
		return err
	}
	system := systemDir + "/ssh_config"
	if err := v.file(system, false, 0); err != nil {
		return err
	}
	// Only a file that ssh reads shows that this is where it looks.
	if v.stamps[system].missing {
		return errNotKept(system + " is not there")
	}
	return nil
}

// file takes in one configuration file and what it includes.
func (v *view) file(path string, user bool, depth int) error {
	if depth > maxDepth || len(v.files) >= maxFiles {
		return errNotKept("there are very many configuration files")
	}
	content, err := v.read(path)
	if err != nil || content == nil {
		return err
	}
	for n := 1; len(content) > 0; n++ {
		var line []byte
		line, content, _ = bytes.Cut(content, []byte("\n"))
		if err := v.line(string(line), user, depth); err != nil {
			return fmt.Errorf("%s line %d: %w", path, n, err)
		}
	}
	return nil
}

// read takes in a file's content, owner and mode, or that there is none.
func (v *view) read(path string) ([]byte, error) {
	if path == "/dev/null" {
		v.add("empty", path)
		return nil, nil
	}
	// Looking first keeps a pipe from being opened, which would take from it.
	st, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		v.stamps[path] = stamp{missing: true}
		v.add("missing", path)
		return nil, nil
	}
	if err != nil {
		return nil, errNotKept(path + " cannot be looked at")
	}
	if !st.Mode().IsRegular() {
		return nil, errNotKept(path + " is no regular file")
	}
	f, err := os.OpenFile(path, os.O_RDONLY|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, errNotKept(path + " cannot be read")
	}
	defer f.Close()
	if st, err = f.Stat(); err != nil {
		return nil, err
	}
	s, ok := stampOf(st)
	if !ok {
		return nil, errNotKept("files cannot be told apart here")
	}
	content, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	switch {
	case err != nil:
		return nil, errNotKept(path + " cannot be read")
	case len(content) > maxFile:
		return nil, errNotKept(path + " is very long")
	case bytes.IndexByte(content, 0) >= 0:
		return nil, errNotKept(path + " has a NUL in it")
	}
	v.stamps[path] = s
	v.files = append(v.files, s)
	sys := st.Sys().(*syscall.Stat_t)
	v.add("file", path, st.Mode().String(), strconv.Itoa(int(sys.Uid)), string(content))
	return append(content, '\n'), nil
}

var unquote = strings.NewReplacer(`"`, "", `'`, "", `\`, "")

// line looks at one line for what makes an answer depend on more than files.
// It takes more for such a line than ssh does, and never less: quotes and
// backslashes are dropped before anything is compared.
func (v *view) line(line string, user bool, depth int) error {
	bare := strings.TrimLeft(unquote.Replace(line), " \t\r\f=")
	if bare == "" || bare[0] == '#' {
		return nil
	}
	if strings.ContainsRune(bare, '$') {
		return errNotKept("it refers to the environment")
	}
	lower := strings.ToLower(bare)
	switch {
	case strings.HasPrefix(lower, "match"):
		return matchIsPlain(lower[len("match"):])
	case strings.HasPrefix(lower, "canonical"):
		value, ok := strings.CutPrefix(lower, "canonicalizehostname")
		if value = strings.Trim(value, " \t\r\f="); !ok || value != "no" {
			return errNotKept("host names are canonicalised")
		}
	case strings.HasPrefix(lower, "include"):
		return v.include(line, user, depth)
	}
	return nil
}

// matchIsPlain reports whether criteria depend on nothing but the arguments,
// the account and the program.
func matchIsPlain(criteria string) error {
	switch {
	case strings.Contains(criteria, "exec"):
		return errNotKept("Match exec runs a program")
	case strings.Contains(criteria, "localnetwork"):
		return errNotKept("Match localnetwork looks at the network")
	}
	words := strings.FieldsFunc(criteria, func(r rune) bool { return strings.ContainsRune(" \t\r\f=", r) })
	for i := 0; i < len(words); i++ {
		switch w := strings.TrimLeft(words[i], "!"); {
		case strings.HasPrefix(w, "#"):
			return nil
		case w == "all" || w == "canonical" || w == "final":
		case slices.Contains([]string{"host", "originalhost", "user", "localuser", "tagged", "version", "sessiontype", "command"}, w):
			i++
		default:
			return errNotKept("it has a Match that is not known here")
		}
	}
	return nil
}

// include follows an Include.
func (v *view) include(line string, user bool, depth int) error {
	names, ok := includeNames(line)
	if !ok || len(names) == 0 || depth < 0 {
		return errNotKept("it has an Include that is not read with certainty")
	}
	for _, name := range names {
		if strings.ContainsAny(name, "%\\{}") {
			return errNotKept("it has an Include with a token or escape")
		}
		switch {
		case filepath.IsAbs(name):
		case !user && name[0] != '~':
			name = systemDir + "/" + name
		case !user || !filepath.IsAbs(v.home):
			return errNotKept("it has an Include from a home directory that is not known")
		case name == "~" || strings.HasPrefix(name, "~/"):
			name = v.home + name[1:]
		case name[0] == '~':
			return errNotKept("it has an Include from another account")
		default:
			name = v.home + "/.ssh/" + name
		}
		found := []string{name}
		if strings.ContainsAny(name, "*?[") {
			var err error
			if found, err = v.glob(name); err != nil {
				return err
			}
		}
		for _, path := range found {
			if err := v.file(path, user, depth+1); err != nil {
				return err
			}
		}
	}
	return nil
}

// includeNames takes the line of an Include apart, if it has nothing but plain
// words and words in double quotes.
func includeNames(line string) (names []string, ok bool) {
	if strings.ContainsAny(line, `\'`) {
		return nil, false
	}
	const blank = " \t\r\f"
	rest := strings.TrimLeft(line, blank)
	if len(rest) < len("include") || !strings.EqualFold(rest[:len("include")], "include") {
		return nil, false // the keyword itself is quoted, or something stands before it
	}
	if rest = rest[len("include"):]; rest == "" || !strings.ContainsRune(blank+"=", rune(rest[0])) {
		return nil, false
	}
	rest = strings.TrimLeft(rest, blank)
	rest = strings.TrimLeft(strings.TrimPrefix(rest, "="), blank)
	for rest != "" && rest[0] != '#' {
		var word string
		if rest[0] == '"' {
			if word, rest, ok = strings.Cut(rest[1:], `"`); !ok || rest != "" && !strings.ContainsRune(blank, rune(rest[0])) {
				return nil, false
			}
		} else {
			end := strings.IndexAny(rest, blank)
			if end < 0 {
				end = len(rest)
			}
			word, rest = rest[:end], rest[end:]
		}
		if word == "" || strings.Contains(word, `"`) {
			return nil, false
		}
		names = append(names, word)
		rest = strings.TrimLeft(rest, blank)
	}
	return names, true
}

// glob finds the files that a wildcard names. All names in the directory are
// taken in: which of them fit is ssh's business, and the same names fit the
// same way.
func (v *view) glob(pattern string) ([]string, error) {
	dir, base := filepath.Split(pattern)
	if strings.ContainsAny(dir, "*?[") {
		return nil, errNotKept("it has an Include with wildcards in a directory's name")
	}
	st, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		v.stamps[dir] = stamp{missing: true}
		v.add("missing", dir)
		return nil, nil
	}
	var entries []fs.DirEntry
	if err == nil {
		entries, err = os.ReadDir(dir)
	}
	if err != nil {
		return nil, errNotKept(dir + " cannot be read")
	}
	s, ok := stampOf(st)
	if !ok || len(entries) > maxFiles {
		return nil, errNotKept(dir + " has very many files")
	}
	v.stamps[dir] = s
	v.add("directory", dir)
	var found []string
	for _, e := range entries {
		v.add(e.Name())
		if strings.HasPrefix(e.Name(), ".") && !strings.HasPrefix(base, ".") {
			continue
		}
		if fits, err := filepath.Match(base, e.Name()); err != nil {
			return nil, errNotKept("it has an Include with a wildcard that is not known here")
		} else if fits {
			found = append(found, dir+e.Name())
		}
	}
	v.add("end")
	return found, nil
}

// readsAs says why the files that ssh read are not those of the view, or "".
func (v *view) readsAs(files *filesRead) string {
	if files.ran {
		return "ssh ran a program"
	}
	ours := map[[2]uint64]bool{}
	for _, f := range v.files {
		ours[[2]uint64{f.dev, f.ino}] = false
	}
	for _, name := range files.names {
		if name == "/dev/null" {
			continue
		}
		st, err := os.Stat(name)
		if err != nil {
			return "ssh read " + name + ", which is not there now"
		}
		s, _ := stampOf(st)
		id := [2]uint64{s.dev, s.ino}
		if _, known := ours[id]; !known {
			return "ssh also reads " + name
		}
		ours[id] = true
	}
	for _, read := range ours {
		if !read {
			return "ssh does not read all files that were found"
		}
	}
	return ""
}

// still reports whether everything looked at is what it was before.
func (v *view) still(before *view) bool {
	if len(v.stamps) != len(before.stamps) {
		return false
	}
	for name, s := range v.stamps {
		if before.stamps[name] != s {
			return false
		}
	}
	return true
}

// settled reports whether everything looked at was last changed long enough
// ago for one more change to show in its times.
func (v *view) settled(now time.Time) bool {
	for _, s := range v.stamps {
		if !s.missing && now.Add(-settleTime).UnixNano() < max(s.ctime, s.mtime) {
			return false
		}
	}
	return true
}
