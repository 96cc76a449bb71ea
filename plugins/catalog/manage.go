package catalog

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"

	"fleet.example/fleet/core/durable"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/plugins/catalog/lock"
	"fleet.example/fleet/plugins/sdk"
)

// SchemaPlugins names the document of a list.
const SchemaPlugins = "fleet.plugins/v1"

// ListDoc is fleet.plugins/v1, what `fleet plugin ls --json` prints.
type ListDoc struct {
	Schema  string      `json:"schema"`
	Plugins []PluginDoc `json:"plugins"`
	Paths   []PathDoc   `json:"paths"` // everything that was looked at, in order
}

// PluginDoc is one file with a plugin's name.
type PluginDoc struct {
	File       string `json:"file"` // base name
	Kind       string `json:"kind"`
	Name       string `json:"name"`
	Path       string `json:"path"`
	State      string `json:"state"` // taken | shadowed | refused
	Why        string `json:"why"`
	FirstParty bool   `json:"first_party"`
	Locked     bool   `json:"locked"`
	SHA256     string `json:"sha256"`  // as locked
	Version    string `json:"version"` // as locked
	Summary    string `json:"summary"`
}

// PathDoc is one path that was looked at.
type PathDoc struct {
	Path   string `json:"path"`
	Source string `json:"source"`
	State  string `json:"state"` // searched | absent | taken | shadowed | refused | ignored
	Why    string `json:"why"`
}

// List makes the document. It executes nothing. With an error the document is
// still what can be told.
func (c *Catalog) List() (ListDoc, error) {
	found, tried, err := c.Discover()
	doc := ListDoc{Schema: SchemaPlugins, Plugins: []PluginDoc{}, Paths: []PathDoc{}}
	for _, f := range found {
		doc.Plugins = append(doc.Plugins, f.doc())
	}
	for _, t := range tried {
		doc.Paths = append(doc.Paths, PathDoc(t))
	}
	return doc, err
}

func (f Found) doc() PluginDoc {
	return PluginDoc{
		File: filepath.Base(f.Path), Kind: string(f.Kind), Name: f.Name, Path: f.Path,
		State: f.State, Why: f.Why, FirstParty: f.Own, Locked: f.Entry.File != "",
		SHA256: f.Entry.SHA256, Version: f.Entry.Description.Version, Summary: f.Entry.Description.Summary,
	}
}

// Lookup finds a plugin by file name (fleet-probe-host), by KIND-NAME
// (probe-host), or by name where only one kind has it.
func (c *Catalog) Lookup(what string) (Found, error) {
	found, _, err := c.Discover()
	if err != nil {
		return Found{}, err
	}
	var hits []Found
	for _, f := range found {
		base := filepath.Base(f.Path)
		if f.State != StateShadowed && (base == what || base == "fleet-"+what || f.Name == what) {
			hits = append(hits, f)
		}
	}
	switch len(hits) {
	case 0:
		return Found{}, fault.New(fault.NotFound, CodeMissing, "no plugin %q", what).
			WithHint("fleet plugin ls shows every path that was tried")
	case 1:
		return hits[0], nil
	}
	return Found{}, fault.Usagef("%q is the name of %d plugins: use the file's name, as %s", what, len(hits), filepath.Base(hits[0].Path))
}

// Describe runs a plugin's `describe` from a private copy of its bytes. Nothing
// else of it runs. It returns the SHA-256 of those bytes too.
func (c *Catalog) Describe(ctx context.Context, path string) (sdk.Description, string, error) {
	return c.describe(ctx, path, path)
}

// describe is Describe for a file that people know under another path.
func (c *Catalog) describe(ctx context.Context, path, shown string) (sdk.Description, string, error) {
	file := filepath.Base(path)
	if _, _, ok := sdk.ParseFileName(file); !ok {
		return sdk.Description{}, "", fault.Usagef("%q is not of the form fleet-KIND-NAME, where KIND is transport, service or probe", file)
	}
	if err := runnable(path); err != nil {
		return sdk.Description{}, "", c.problem(CodeNotTaken, shown, "", "is not taken: %s", err).
			WithHint(hintOurs)
	}
	dir, err := c.newRunDir()
	if err != nil {
		return sdk.Description{}, "", err
	}
	defer dir.remove()
	img, err := newImage(path, dir.path)
	if err != nil {
		return sdk.Description{}, "", c.problem(CodeNotStarted, shown, "", "cannot be read: %s", err)
	}
	defer img.close()
	d, err := c.describeImage(ctx, shown, img)
	return d, img.sha256, err
}

func (c *Catalog) describeImage(ctx context.Context, path string, img *image) (sdk.Description, error) {
	file := filepath.Base(path)
	allowed := c.Limits.withDefaults().Describe
	ctx, cancel := context.WithTimeout(ctx, allowed)
	defer cancel()
	cmd := exec.Command(img.path)
	cmd.Args = []string{file, "describe"}
	cmd.Dir, cmd.Env = "/", pluginEnv()
	p, err := newProcess(file, cmd)
	if err != nil {
		return sdk.Description{}, err
	}
	if err := p.Start(ctx); err != nil {
		return sdk.Description{}, c.problem(CodeNotStarted, path, "", "was not started: %s", err).
			WithHint("check that the file was made for this system")
	}
	words := &tail{max: 8 << 10}
	drained := make(chan struct{})
	go func() { // ends when the pipe does, which process sees to
		defer close(drained)
		_, _ = io.Copy(words, p.Stderr())
	}()
	out := make(chan []byte, 1)
	go func() { // likewise
		b, _ := io.ReadAll(io.LimitReader(p.Stdout(), sdk.MaxDescription+1))
		out <- b
	}()
	var text []byte
	select {
	case <-p.exited:
		text = <-out
	case text = <-out:
		if len(text) <= sdk.MaxDescription {
			p.await(ctx)
		}
	case <-ctx.Done():
	}
	late := ctx.Err() != nil
	_ = p.Kill(ctx)
	<-p.exited
	<-drained
	switch {
	case late:
		return sdk.Description{}, c.problem(CodeSlow, path, "", "did not describe itself within %s", allowed).
			WithHint("it may not be a plugin of fleet")
	case p.state != nil && len(text) <= sdk.MaxDescription:
		return sdk.Description{}, c.problem(CodeCrashed, path, "", "did not describe itself (%s); %s", p.ended(), lastWords(words.String())).
			WithHint("it may not be a plugin of fleet, or one that needs a newer SDK")
	}
	d, err := sdk.ParseDescription(bytes.TrimSpace(text))
	if err == nil && d.FileName() != file {
		err = fmt.Errorf("it describes itself as %s", d.FileName())
	}
	if err != nil {
		return sdk.Description{}, c.problem(CodeGarbled, path, d.Version, "does not describe itself: %s", err).
			WithHint("it may not be a plugin of fleet")
	}
	return d, nil
}

// await waits for the process's own end.
func (p *process) await(ctx context.Context) {
	select {
	case <-p.exited:
	case <-ctx.Done():
	}
}

// Install copies a vendor's plugin into the person's plugin directory and locks
// the bytes that it copied. A name that belongs to fleet is refused.
func (c *Catalog) Install(ctx context.Context, path string) (PluginDoc, error) {
	if c.InstallDir == "" || c.PersonLock == "" {
		return PluginDoc{}, errors.New("cannot install a plugin: no home directory")
	}
	file := filepath.Base(path)
	if _, _, ok := sdk.ParseFileName(file); !ok {
		return PluginDoc{}, fault.Usagef("%q is not of the form fleet-KIND-NAME, where KIND is transport, service or probe", file)
	}
	found, _, err := c.Discover()
	if err != nil {
		return PluginDoc{}, err
	}
	if slices.ContainsFunc(found, func(f Found) bool { return f.Own && filepath.Base(f.Path) == file }) {
		return PluginDoc{}, fault.New(fault.Refused, CodeNotTaken, "%s is the name of a plugin of fleet's own", file)
	}
	if err := os.MkdirAll(c.InstallDir, 0o700); err != nil {
		return PluginDoc{}, fmt.Errorf("cannot make the plugin directory: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(c.PersonLock), 0o700); err != nil {
		return PluginDoc{}, fmt.Errorf("cannot make the state directory: %w", err)
	}
	// The copy is what is described, hashed and locked; the original may change.
	b, err := readBounded(path)
	if err != nil {
		return PluginDoc{}, fmt.Errorf("cannot read %s: %w", path, err)
	}
	staged, err := os.MkdirTemp(c.InstallDir, ".new-")
	if err != nil {
		return PluginDoc{}, fmt.Errorf("cannot make the plugin directory: %w", err)
	}
	defer os.RemoveAll(staged)
	tmp := filepath.Join(staged, file)
	if err := durable.WriteFile(tmp, b, 0o755); err != nil {
		return PluginDoc{}, fmt.Errorf("cannot copy the plugin: %w", err)
	}
	d, sum, err := c.describe(ctx, tmp, path)
	if err != nil {
		return PluginDoc{}, err
	}
	if code, why, hint := c.speaks(d); code != "" {
		return PluginDoc{}, c.problem(code, path, d.Version, "is not taken: %s", why).WithHint("%s", hint)
	}
	// The lock comes first: a crash in between leaves a name that is locked to
	// other bytes, which does not run, and installing again mends it.
	entry := lock.Entry{File: file, SHA256: sum, Description: d}
	if err := c.changeLock(func(l lock.Lock) lock.Lock { return l.With(entry) }); err != nil {
		return PluginDoc{}, err
	}
	dst := filepath.Join(c.InstallDir, file)
	if err := durable.Rename(tmp, dst); err != nil {
		return PluginDoc{}, fmt.Errorf("cannot install the plugin: %w", err)
	}
	return Found{Kind: d.Kind, Name: d.Name, Path: dst, State: StateTaken, Entry: entry}.doc(), nil
}

func readBounded(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	st, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() || st.Size() > maxPlugin {
		return nil, fmt.Errorf("not a regular file of at most %d bytes", maxPlugin)
	}
	return io.ReadAll(io.LimitReader(f, maxPlugin))
}

// Remove removes a vendor's plugin from the person's directory and lock.
func (c *Catalog) Remove(file string) error {
	if _, _, ok := sdk.ParseFileName(file); !ok {
		file = "fleet-" + file
	}
	if _, _, ok := sdk.ParseFileName(file); !ok || c.InstallDir == "" {
		return fault.New(fault.NotFound, CodeMissing, "no installed plugin %q", file)
	}
	path := filepath.Join(c.InstallDir, file)
	_, statErr := os.Lstat(path)
	l, err := c.personLock()
	if err != nil {
		return err
	}
	if _, locked := l.Get(file); !locked && errors.Is(statErr, fs.ErrNotExist) {
		return fault.New(fault.NotFound, CodeMissing, "no installed plugin %s", file).
			WithHint("fleet plugin ls shows what there is; fleet's own plugins are part of fleet")
	}
	if err := durable.Remove(path); err != nil {
		return fmt.Errorf("cannot remove the plugin: %w", err)
	}
	return c.changeLock(func(l lock.Lock) lock.Lock { return l.Without(file) })
}

// changeLock reads, changes and writes the person's lock while no other does.
func (c *Catalog) changeLock(change func(lock.Lock) lock.Lock) error {
	unlock, err := flock(c.PersonLock+".lock", 10*time.Second)
	if err != nil {
		return fmt.Errorf("cannot change %s: %w", c.PersonLock, err)
	}
	defer unlock()
	l, err := c.personLock()
	if err != nil {
		return err
	}
	if err := lock.Write(c.PersonLock, change(l)); err != nil {
		return fmt.Errorf("cannot write %s: %w", c.PersonLock, err)
	}
	return nil
}
