package api

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/agentclient"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/tree"
	"fleet.example/fleet/core/wire"
)

// swapEnv makes this program the hostile neighbour of the workspace that it
// names.
const swapEnv = "FLEET_TEST_SWAP"

func TestMain(m *testing.M) {
	if dir := os.Getenv(swapEnv); dir != "" {
		swap(dir)
	}
	os.Exit(m.Run())
}

// swap turns dir/swap from a link out into the directory dir/real and back,
// until its standard input ends.
func swap(dir string) {
	over := make(chan struct{})
	go func() { // ends with the process
		io.Copy(io.Discard, os.Stdin)
		close(over)
	}()
	for {
		select {
		case <-over:
			os.Exit(0)
		default:
		}
		os.Symlink(dir+"/../..", dir+"/tmp")
		os.Rename(dir+"/tmp", dir+"/swap")
		os.Remove(dir + "/swap")
		os.Rename(dir+"/real", dir+"/swap")
		os.Rename(dir+"/swap", dir+"/real")
	}
}

// hostile runs a second process that changes what dir/swap is, all the time.
func (a *apart) hostile(dir string) {
	a.t.Helper()
	exe, err := os.Executable()
	if err != nil {
		a.t.Fatal(err)
	}
	c := exec.Command(exe)
	c.Env = append(os.Environ(), swapEnv+"="+dir)
	in, err := c.StdinPipe()
	if err != nil {
		a.t.Fatal(err)
	}
	if err := c.Start(); err != nil {
		a.t.Fatal(err)
	}
	a.t.Cleanup(func() { in.Close(); c.Wait() })
}

// near reaches a server over its socket with one token.
type near struct {
	socket string
	tok    secret.Text
}

func (n near) Dial(ctx context.Context) (net.Conn, error) {
	return new(net.Dialer).DialContext(ctx, "unix", n.socket)
}
func (n near) Token(context.Context, bool) (secret.Text, error) { return n.tok, nil }

// serve serves the socket, and gives a client for each token.
func (a *apart) serve() func(tok secret.Text) *agentclient.Client {
	a.t.Helper()
	dir, err := os.MkdirTemp("", "fa")
	if err != nil {
		a.t.Fatal(err)
	}
	l, err := net.Listen("unix", dir+"/s")
	if err != nil {
		a.t.Fatal(err)
	}
	srv := a.s.AgentServer()
	over := make(chan struct{})
	go func() { srv.Serve(l); close(over) }()
	a.t.Cleanup(func() { a.s.Watches.Close(); srv.Close(); <-over; os.RemoveAll(dir) })
	return func(tok secret.Text) *agentclient.Client {
		c := agentclient.New(near{dir + "/s", tok})
		a.t.Cleanup(c.Close)
		return c
	}
}

func newID() string {
	b := make([]byte, 16)
	rand.Read(b)
	return hex.EncodeToString(b)
}

// fetch copies what is at a path of the machine to a new name in here.
func fetch(ctx context.Context, c *agentclient.Client, path, here string, recursive bool) error {
	dst, err := tree.OpenDestination(tree.Local{}, here, "x", "")
	if err != nil {
		return err
	}
	defer dst.Close()
	conn, _, err := c.Tree(ctx, wire.TreeRequest{Op: wire.TreeSend, ID: newID(), Path: wire.Bytes(path), Recursive: recursive})
	if err != nil {
		return err
	}
	_, err = tree.NewReceiver(ctx, conn, dst, tree.ReceiveOptions{Recursive: recursive}).Run()
	return err
}

// bring copies what is here to a path of the machine.
func bring(ctx context.Context, c *agentclient.Client, here, path string) error {
	src, err := tree.OpenSource(tree.Local{}, here, true)
	if err != nil {
		return err
	}
	defer src.Close()
	conn, _, err := c.Tree(ctx, wire.TreeRequest{Op: wire.TreeReceive, ID: newID(), Path: wire.Bytes(path), Base: wire.Bytes(filepath.Base(here)), Recursive: true})
	if err != nil {
		return err
	}
	_, err = tree.NewSender(ctx, conn, src, tree.SendOptions{}).Run()
	return err
}

// outside are paths that lead out of the workspace mine, in every spelling.
func (a *apart) outside() []string {
	mine := a.dir + "/workspaces/mine"
	return []string{a.dir + "/secret", "../../secret", "~/../../secret", mine + "/../../secret", mine + "/../mine/../../secret", "up/secret", "link", "beside/file",
		mine + "x/file", a.dir + "/workspaces/other/file", a.bound + "/../secret", "/etc/passwd", "/proc/self/root/etc/passwd", "/", "..", "up", "beside"}
}

func (a *apart) links() string {
	mine := a.dir + "/workspaces/mine"
	for _, link := range [][2]string{{a.dir, mine + "/up"}, {a.dir + "/secret", mine + "/link"}, {"../other", mine + "/beside"}} {
		if err := os.Symlink(link[0], link[1]); err != nil {
			a.t.Fatal(err)
		}
	}
	return mine
}

// code is what a read of the path is refused with.
func (a *apart) code(path string) string {
	var e wire.Error
	if err := json.Unmarshal(a.ask(a.mine, "GET", wire.PathFiles+url.PathEscape(path), "").Body.Bytes(), &e); err != nil {
		a.t.Fatal(err)
	}
	return e.Error.Code
}

func forbidden(err error) bool {
	return err != nil && fault.Of(err).Code != "" && !errors.Is(err, context.DeadlineExceeded)
}

func TestAWorkspacesCopiesStayInIt(t *testing.T) { // R33
	a := newApart(t)
	mine := a.links()
	client := a.serve()
	c, all, here := client(a.mine), client(a.all), t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for path, want := range map[string]string{"file": "mine", "~/file": "mine", mine + "/file": "mine", a.bound + "/file": "bound"} {
		to := here + "/" + newID()
		if err := fetch(ctx, c, path, to, false); err != nil {
			t.Errorf("%s: %v", path, err)
		} else if b, _ := os.ReadFile(to); string(b) != want {
			t.Errorf("%s: %q", path, b)
		}
	}
	a.put(here+"/new", "new")
	for _, path := range []string{"new", mine + "/new2", a.bound + "/new", "."} {
		if err := bring(ctx, c, here+"/new", path); err != nil {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range a.outside() {
		to := here + "/" + newID()
		if err := fetch(ctx, c, path, to, false); !forbidden(err) || fault.Of(err).Code != a.code(path) {
			t.Errorf("%s was copied: %v, and a read says %s", path, err, a.code(path))
		}
		// With -r a link is copied as one, which tells where it leads and no more.
		if err := fetch(ctx, c, path, to, true); err == nil && path != "link" && path != "up" && path != "beside" {
			t.Errorf("%s was copied with all below", path)
		}
		if err := bring(ctx, c, here+"/new", path); !forbidden(err) {
			t.Errorf("%s was written: %v", path, err)
		}
	}
	if b, err := os.ReadFile(a.dir + "/secret"); err != nil || string(b) != "secret" {
		t.Errorf("%q, %v", b, err)
	}
	if _, err := os.Lstat(a.dir + "/new"); err == nil {
		t.Error("a file was made outside")
	}
	// The whole workspace, with the links in it as links.
	if err := fetch(ctx, c, ".", here+"/whole", true); err != nil {
		t.Error(err)
	}
	if to, err := os.Readlink(here + "/whole/link"); err != nil || to != a.dir+"/secret" {
		t.Errorf("%q, %v", to, err)
	}
	// A copy that another token began is neither joined, nor ended, by its id.
	id := newID()
	conn, _, err := all.Tree(ctx, wire.TreeRequest{Op: wire.TreeSend, ID: id, Path: "workspaces/mine/file"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	if lane, _, err := c.Tree(ctx, wire.TreeRequest{Op: wire.TreeLane, ID: id}); err == nil {
		lane.Close()
		t.Error("a copy of another token was joined")
	}
	again, _, err := c.Tree(ctx, wire.TreeRequest{Op: wire.TreeSend, ID: id, Path: "file"})
	if err != nil {
		t.Fatal(err)
	}
	again.Close()
	dst, err := tree.OpenDestination(tree.Local{}, here+"/still", "x", "")
	if err != nil {
		t.Fatal(err)
	}
	defer dst.Close()
	if r, err := tree.NewReceiver(ctx, conn, dst, tree.ReceiveOptions{}).Run(); err != nil || r.Files != 1 {
		t.Errorf("the copy of the other token ended: %+v, %v", r, err)
	}
}

func TestARaceLeadsNoCopyOutOfItsWorkspace(t *testing.T) { // R33
	a := newApart(t)
	mine, here := a.dir+"/workspaces/mine", t.TempDir()
	if err := os.MkdirAll(mine+"/real/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	a.put(mine+"/real/secret", "inside")
	a.put(mine+"/real/sub/secret", "inside")
	if err := os.MkdirAll(here+"/src/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	for _, p := range []string{"/src/secret", "/src/sub/secret"} {
		a.put(here+p, "inside")
	}
	if err := os.Mkdir(a.dir+"/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	a.put(a.dir+"/sub/secret", "secret")
	c := a.serve()(a.mine)
	a.hostile(mine)
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	for i := range 150 {
		to := fmt.Sprintf("%s/%d", here, i)
		for j, path := range []string{"swap/secret", "swap/", "swap/sub/.", "."} {
			at := fmt.Sprintf("%s.%d", to, j)
			fetch(ctx, c, path, at, j > 0)
			filepath.WalkDir(at, func(p string, d os.DirEntry, err error) error {
				if err == nil && d.Type().IsRegular() {
					if b, _ := os.ReadFile(p); string(b) == "secret" {
						t.Fatalf("%s brought the outside", path)
					}
				}
				return nil
			})
			os.RemoveAll(at)
		}
		for _, path := range []string{"swap/secret", "swap/."} {
			bring(ctx, c, here+"/src/secret", path)
		}
		bring(ctx, c, here+"/src/.", "swap/.")
		bring(ctx, c, here+"/src/.", "swap")
	}
	if ctx.Err() != nil {
		t.Fatal("no end in two minutes")
	}
	for _, p := range []string{"/secret", "/sub/secret"} {
		if b, err := os.ReadFile(a.dir + p); err != nil || string(b) != "secret" {
			t.Errorf("%s: %q, %v", p, b, err)
		}
	}
}

func TestAWorkspacesWatchesStayInIt(t *testing.T) { // R33
	a := newApart(t)
	mine := a.links()
	client := a.serve()
	c, all := client(a.mine), client(a.all)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	seen := errors.New("seen")
	for path, inside := range map[string]string{".": mine, mine: mine, a.bound: a.bound} {
		err := c.Watch(ctx, agentclient.Watching{Path: path, Patience: -1}, func(ev wire.WatchEvent) error {
			switch {
			case ev.Event == wire.WatchReady:
				a.put(inside+"/now", "x")
			case ev.Path == "now":
				return seen
			}
			return nil
		})
		if err != seen {
			t.Errorf("%s: %v", path, err)
		}
	}
	for _, path := range a.outside() {
		err := c.Watch(ctx, agentclient.Watching{Path: path, Patience: -1}, func(ev wire.WatchEvent) error {
			t.Errorf("%s is watched: %+v", path, ev)
			return seen
		})
		if !forbidden(err) {
			t.Errorf("%s: %v", path, err)
		}
	}
	// The token of another's watch does not go on with that.
	var token string
	if err := all.Watch(ctx, agentclient.Watching{Path: mine, Patience: -1}, func(ev wire.WatchEvent) error {
		if token = ev.Token; ev.Event == wire.WatchReady {
			return seen
		}
		return nil
	}); err != seen {
		t.Fatal(err)
	}
	a.put(mine+"/meanwhile", "x")
	for _, x := range []struct {
		c    *agentclient.Client
		want string
	}{{c, wire.WatchOverflow}, {all, wire.WatchCreated}} {
		first := ""
		if err := x.c.Watch(ctx, agentclient.Watching{Path: mine, From: token, Patience: -1}, func(ev wire.WatchEvent) error {
			first = ev.Event
			return seen
		}); err != seen || first != x.want {
			t.Errorf("%q, %v, not %s", first, err, x.want)
		}
	}
}

func TestARaceLeadsNoWatchOutOfItsWorkspace(t *testing.T) { // R33
	a := newApart(t)
	mine := a.dir + "/workspaces/mine"
	if err := os.MkdirAll(mine+"/real", 0o700); err != nil {
		t.Fatal(err)
	}
	a.put(mine+"/real/inside", "x")
	a.put(a.dir+"/outside", "x")
	c := a.serve()(a.mine)
	a.hostile(mine)
	for i := range 60 {
		path := []string{"swap", ".", "swap/."}[i%3]
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		events := 0
		c.Watch(ctx, agentclient.Watching{Path: path, Initial: true, Patience: -1}, func(ev wire.WatchEvent) error {
			if strings.Contains(string(ev.Path), "outside") || strings.Contains(string(ev.Path), "workspaces") {
				t.Fatalf("watching %s tells of %s", path, ev.Path)
			}
			a.put(a.dir+"/outside", "y")
			if events++; events > 30 {
				cancel()
			}
			return nil
		})
		cancel()
	}
}

func TestAWorkspacesForwardsLeadToItsSocketsAndToPorts(t *testing.T) { // R33
	a := newApart(t)
	mine := a.links()
	client := a.serve()
	c := client(a.mine)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	listen := func(network, at, say string) net.Listener {
		l, err := net.Listen(network, at)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { l.Close() })
		go func() { // ends with the listener
			for {
				conn, err := l.Accept()
				if err != nil {
					return
				}
				io.WriteString(conn, say)
				conn.Close()
			}
		}()
		return l
	}
	t.Chdir(mine) // a socket's address is short
	listen("unix", "in.sock", "inside")
	t.Chdir(a.dir)
	listen("unix", "out.sock", "outside")
	port := listen("tcp", "127.0.0.1:0", "port").Addr().(*net.TCPAddr).Port
	for link, to := range map[string]string{"to.sock": "in.sock", "away.sock": a.dir + "/out.sock"} {
		if err := os.Symlink(to, mine+"/"+link); err != nil {
			t.Fatal(err)
		}
	}
	said := func(to string) (string, error) {
		conn, err := c.Forward(ctx, to)
		if err != nil {
			return "", err
		}
		defer conn.Close()
		b, err := io.ReadAll(conn)
		return string(b), err
	}
	for to, want := range map[string]string{mine + "/in.sock": "inside", "~/in.sock": "inside", fmt.Sprint(port): "port"} {
		if got, err := said(to); err != nil || got != want {
			t.Errorf("%s: %q, %v", to, got, err)
		}
	}
	for _, to := range []string{a.dir + "/out.sock", mine + "/away.sock", mine + "/up/out.sock", mine + "/../../out.sock", "~/../../out.sock", "/run/none.sock", mine + "/file", "~/"} {
		if got, err := said(to); !forbidden(err) {
			t.Errorf("%s: %q, %v", to, got, err)
		}
	}
	if conn, err := client(a.all).Forward(ctx, a.dir+"/out.sock"); err != nil {
		t.Error(err)
	} else {
		conn.Close()
	}

	// Whatever the name is at that moment.
	if err := os.Mkdir(mine+"/real", 0o700); err != nil {
		t.Fatal(err)
	}
	t.Chdir(mine + "/real")
	listen("unix", "out.sock", "inside")
	a.hostile(mine)
	for range 300 {
		if got, err := said("~/swap/out.sock"); got == "outside" {
			t.Fatal(err)
		}
	}
}

// A workspace that is gone has no files, however they are asked for.
func TestATokenOfAWorkspaceThatIsGoneOpensNothing(t *testing.T) { // R31
	a := newApart(t)
	client := a.serve()
	c := client(a.mine)
	if _, err := a.s.Workspaces.Remove(t.Context(), "mine", nil, func() (int, error) { return 0, nil }, func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for name, err := range map[string]error{
		"copy":    fetch(ctx, c, a.bound+"/file", t.TempDir()+"/x", false),
		"watch":   c.Watch(ctx, agentclient.Watching{Path: a.bound, Patience: -1}, func(wire.WatchEvent) error { return nil }),
		"forward": func() error { _, err := c.Forward(ctx, "1"); return err }(),
	} {
		if !forbidden(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
