package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func TestFrontFiles(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	dir := m.root + "/files"
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	front := func(stdin string, args ...string) (string, string, int) {
		t.Helper()
		return m.front(stdin, append([]string{"file"}, args...)...)
	}
	for _, x := range []struct {
		name   string
		stdin  string
		args   string
		out    string
		errOut string // a part of it
		exit   int
	}{
		{name: "new", stdin: "one\n", args: "write box:DIR/a"},
		{name: "cat", args: "cat box:DIR/a", out: "one\n"},
		{name: "part", args: "cat box:DIR/a --from 1 --bytes 2", out: "ne"},
		{name: "rest", args: "cat box:DIR/a --from 2", out: "e\n"},
		{name: "at the end", args: "cat box:DIR/a --from 4", out: ""},
		{name: "past the end", args: "cat box:DIR/a --from 5", errOut: "not one of the file's 4 bytes", exit: 2},
		{name: "no bytes", args: "cat box:DIR/a --bytes 0", out: ""},
		{name: "there", stdin: "two\n", args: "write box:DIR/a --on-conflict fail", errOut: "is there already", exit: 9},
		{name: "odd way", stdin: "two\n", args: "write box:DIR/a --on-conflict keep", errOut: "--on-conflict is one of", exit: 2},
		{name: "mode", stdin: "two\n", args: "write box:DIR/a --mode 0600 --on-conflict replace"},
		{name: "another", stdin: "3\n", args: "write box:DIR/a --if-match nonsense", errOut: "is not, or no longer, the file that was meant", exit: 9},
		{name: "none", args: "cat box:DIR/none", errOut: "no such file or directory", exit: 5},
		{name: "a directory", args: "cat box:DIR", errOut: "is a directory, not a file", exit: 9},
		{name: "no parent", stdin: "x", args: "write box:DIR/none/a", errOut: "no such file or directory", exit: 5},
		{name: "no colon", args: "ls box", errOut: `"box" is not MACHINE:PATH`, exit: 2},
		{name: "no path", args: "rm box: -r", errOut: "PATH is missing", exit: 2},
		{name: "home", args: "rm box:. -r", errOut: "home directory", exit: 9},
		{name: "json", stdin: `{"a":1}`, args: "write box:DIR/j --on-conflict merge-json"},
		{name: "more json", stdin: `{"b":2}`, args: "write box:DIR/j --on-conflict merge-json"},
		{name: "no json", stdin: `[`, args: "write box:DIR/j --on-conflict merge-json", errOut: "no JSON object", exit: 2},
		{name: "merged", args: "cat box:DIR/j", out: "{\n  \"a\": 1,\n  \"b\": 2\n}\n"},
		{name: "remove", args: "rm box:DIR/a"},
		{name: "removed", args: "rm box:DIR/a", errOut: "no such file", exit: 5},
	} {
		out, errOut, exit := front(x.stdin, strings.Fields(strings.ReplaceAll(x.args, "DIR", dir))...)
		if out != x.out || exit != x.exit || !strings.Contains(errOut, x.errOut) || x.errOut == "" && errOut != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", x.name, exit, out, errOut)
		}
	}
	// Names are bytes, and what would control a terminal is not shown to it.
	for _, name := range []string{"plain", "new\nline", "\xff", "esc\x1b[31m"} {
		if err := os.WriteFile(dir+"/"+name, []byte(name), 0o640); err != nil {
			t.Fatal(err)
		}
		if out, errOut, exit := front("", "cat", "box:"+dir+"/"+name); out != name || exit != 0 {
			t.Errorf("%q: %q, %q, exit %d", name, out, errOut, exit)
		}
	}
	out, _, exit := front("", "ls", "box:"+dir)
	if exit != 0 || strings.Contains(out, "\x1b") || strings.Count(out, "\n") != 6 {
		t.Errorf("exit %d: %q", exit, out)
	}
	out, _, _ = front("", "ls", "box:"+dir, "--json")
	var list wire.Files
	if err := json.Unmarshal([]byte(out), &list); err != nil || list.Schema != wire.SchemaFiles || len(list.Files) != 5 || list.Machine != "m_x" {
		t.Errorf("%v: %+v", err, list)
	}
	names := map[wire.Bytes]string{}
	for _, f := range list.Files {
		names[f.Name] = f.Mode
	}
	if names["\xff"] != "0640" || names["new\nline"] != "0640" {
		t.Errorf("%q", names)
	}
	if out, errOut, exit := front("", "ls", "box:"+dir+"/j", "--json"); exit != 0 || !strings.Contains(out, `"type": "file"`) {
		t.Errorf("exit %d: %s%s", exit, out, errOut)
	}
}

// Every entry of a large directory comes, and memory does not grow with it on
// the machine.
func TestListingOfALargeDirectory(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	dir := m.root + "/many"
	os.Mkdir(dir, 0o700)
	const n = 30_000
	for i := range n {
		f, err := os.Create(fmt.Sprintf("%s/%06d", dir, i))
		if err != nil {
			t.Fatal(err)
		}
		f.Close()
	}
	seen := map[wire.Bytes]bool{}
	if err := m.client().List(ctx(t), dir, func(i wire.FileInfo) error { seen[i.Name] = true; return nil }); err != nil || len(seen) != n {
		t.Errorf("%d of %d entries, %v", len(seen), n, err)
	}
	out, errOut, exit := m.front("", "file", "ls", "box:"+dir)
	if lines := strings.Count(out, "\n"); exit != 0 || lines != n+2 { // two tables
		t.Errorf("exit %d, %d lines: %s", exit, lines, errOut)
	}
}

// cutting reaches the agent over connections that end after some bytes, as long
// as there are any left to cut.
type cutting struct {
	*machine
	mu   sync.Mutex
	cuts []int64
}

func (c *cutting) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := c.machine.Dial(ctx)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil || len(c.cuts) == 0 {
		return conn, err
	}
	n := c.cuts[0]
	c.cuts = c.cuts[1:]
	return &cutConn{Conn: conn, left: n}, nil
}

func (c *cutting) Token(ctx context.Context, renew bool) (secret.Text, error) {
	return c.machine.Token(ctx, renew)
}

type cutConn struct {
	net.Conn
	left int64
}

func (c *cutConn) Read(p []byte) (int, error) {
	if c.left <= 0 {
		c.Conn.Close()
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.Conn.Read(p[:min(int64(len(p)), c.left)])
	c.left -= int64(n)
	return n, err
}

func TestAReadGoesOnAfterEveryCut(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	content := make([]byte, 3<<20+17)
	rand.Read(content)
	file := m.root + "/large"
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	d := &cutting{machine: m, cuts: []int64{10, 400, 5000, 900_000, 1_000_000, 1}}
	c := agentclient.New(d)
	defer c.Close()
	var out bytes.Buffer
	if _, err := c.Read(ctx(t), file, 5, -1, &out); err != nil || !bytes.Equal(out.Bytes(), content[5:]) {
		t.Fatalf("%v: %d bytes of %d", err, out.Len(), len(content)-5)
	}
	if len(d.cuts) != 0 {
		t.Errorf("%d cuts were not made", len(d.cuts))
	}
	// What is another file by then is not gone on with.
	d.cuts = []int64{900_000}
	_, err := c.Read(ctx(t), file, 0, -1, writer(func(p []byte) (int, error) {
		return len(p), os.WriteFile(file, []byte("another"), 0o600)
	}))
	if f := fault.Of(err); f.Code != wire.CodeChanged {
		t.Errorf("%v", err)
	}
}

type writer func([]byte) (int, error)

func (w writer) Write(p []byte) (int, error) { return w(p) }

// Whatever ends a write in the middle, the old content stands.
func TestAWriteThatIsCutChangesNothing(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	file := m.root + "/config"
	if err := os.WriteFile(file, []byte("old"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := m.client()
	broken := errors.New("the pipe broke")
	if _, err := c.Write(ctx(t), file, agentclient.Put{}, io.MultiReader(strings.NewReader(strings.Repeat("new", 100_000)), reader(func([]byte) (int, error) { return 0, broken }))); !errors.Is(err, broken) {
		t.Errorf("%v", err)
	}
	m.await("the temporary file's end", func() bool { l, _ := filepath.Glob(m.root + "/.fleet-tmp-*"); return len(l) == 0 })
	if got := read(t, file); got != "old" {
		t.Errorf("%.20q", got)
	}
	half := make(chan struct{})
	sent := false
	_, err := c.Write(ctx(t), file, agentclient.Put{}, reader(func(p []byte) (int, error) {
		if sent {
			m.kill() // with half of it there
			close(half)
			return 0, io.EOF
		}
		sent = true
		return copy(p, strings.Repeat("new", 1000)), nil
	}))
	<-half
	if err == nil {
		t.Error("a write to an agent that died is said to have been made")
	}
	if got := read(t, file); got != "old" {
		t.Errorf("%.20q", got)
	}
	m.start()
	if _, err := c.Write(ctx(t), file, agentclient.Put{}, strings.NewReader("new")); err != nil {
		t.Error(err)
	}
	if got := read(t, file); got != "new" {
		t.Errorf("%.20q", got)
	}
}

type reader func([]byte) (int, error)

func (r reader) Read(p []byte) (int, error) { return r(p) }
