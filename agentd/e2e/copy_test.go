package e2e

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync"
	"testing"

	"fleet.example/fleet/core/wire"
)

func TestFrontCopies(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	dir := m.root + "/c"
	sh := func(script string) string {
		t.Helper()
		cmd := exec.Command("sh", "-ec", script)
		cmd.Dir = dir
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%s: %v: %s", script, err, out)
		}
		return string(out)
	}
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	sh(`mkdir -p src/sub/empty; echo a >src/a; echo b >src/sub/b; chmod 640 src/a; chmod 750 src/sub; ln -s ../a src/sub/l
		head -c 3000000 /dev/urandom >src/large; touch -d '2001-02-03 04:05:06.789' src/sub/b src/sub; mkfifo src/pipe`)
	for _, x := range []struct {
		args string
		errs string
		exit int
		want string
	}{
		{args: "cp DIR/src/a box:DIR/a2", want: "cmp src/a a2"},
		{args: "cp box:DIR/src/large DIR/l2", want: "cmp src/large l2"},
		{args: "cp box:DIR/src/large other:DIR/l3", want: "cmp src/large l3"},
		{args: "cp DIR/src box:DIR/t1", errs: "is a directory", exit: 9},
		{args: "cp -r DIR/src box:DIR/t1", errs: "pipe is a FIFO, which is not copied", exit: 3, want: "rm src/pipe; diff -r --no-dereference src t1"},
		{args: "cp -r box:DIR/src DIR/t1", want: "diff -r --no-dereference src t1/src"},
		{args: "cp -r box:DIR/src/. other:DIR/t2", want: "diff -r --no-dereference src t2"},
		{args: "cp box:DIR/none DIR/x", errs: "no such file or directory", exit: 5},
		{args: "cp DIR/none box:DIR/x", errs: "no such file or directory", exit: 5},
		{args: "cp DIR/src/a box:DIR/none/x", errs: "no such file or directory", exit: 5},
		{args: "cp -r box:DIR/src other:DIR/src/sub", errs: "cannot be copied into itself", exit: 9},
		{args: "cp -r box:DIR/src other:DIR/src/new", errs: "cannot be copied into itself", exit: 9},
		{args: "cp a b", errs: "is on a machine", exit: 2},
	} {
		out, errOut, exit := m.front("", strings.Fields(strings.ReplaceAll(x.args, "DIR", dir))...)
		if out != "" || exit != x.exit || !strings.Contains(errOut, x.errs) || x.errs == "" && errOut != "" {
			t.Errorf("%s: exit %d, stdout %q, stderr %q", x.args, exit, out, errOut)
		}
		if x.want != "" {
			sh(x.want)
		}
	}
	out, _, exit := m.front("", "cp", "-r", "--json", "box:"+dir+"/src", dir+"/t3")
	var doc wire.Copy
	if err := json.Unmarshal([]byte(out), &doc); err != nil || exit != 0 || doc.Files != 3 || doc.Directories != 3 || doc.Symlinks != 1 || doc.Bytes != 3000004 {
		t.Errorf("exit %d: %v: %s", exit, err, out)
	}
}

// breaking reaches the agent over connections that end after some bytes, either
// way, as long as there are any left to break.
type breaking struct {
	target
	mu    sync.Mutex
	after []int  // bytes of each connection
	then  func() // what else happens when one breaks
}

func (b *breaking) Dial(ctx context.Context) (net.Conn, error) {
	conn, err := b.target.Dial(ctx)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err != nil || len(b.after) == 0 {
		return conn, err
	}
	c := &brokenConn{Conn: conn, left: b.after[0], then: b.then}
	b.after = b.after[1:]
	return c, nil
}

type brokenConn struct {
	net.Conn
	mu   sync.Mutex
	left int
	then func()
}

func (c *brokenConn) spend(n int) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.left > 0 {
		if c.left -= n; c.left <= 0 {
			c.Conn.Close()
			if c.then != nil {
				c.then()
			}
		}
	}
	if c.left <= 0 {
		return errors.New("the cable broke")
	}
	return nil
}

func (c *brokenConn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	if broken := c.spend(n); broken != nil {
		return 0, broken
	}
	return n, err
}

func (c *brokenConn) Write(p []byte) (int, error) {
	if err := c.spend(len(p)); err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// A copy goes on after every cut, to, from and between machines, and what
// arrives is what was there.
func TestACopyGoesOnAfterEveryCut(t *testing.T) {
	m, _, _ := installed(t)
	m.start()
	dir := m.root + "/c"
	if err := os.MkdirAll(dir+"/src/sub", 0o700); err != nil {
		t.Fatal(err)
	}
	large := make([]byte, 9<<20+17)
	rand.Read(large)
	for name, content := range map[string][]byte{"large": large, "sub/large": large[5:]} {
		if err := os.WriteFile(dir+"/src/"+name, content, 0o640); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 300 {
		if err := os.WriteFile(fmt.Sprintf("%s/src/sub/%03d", dir, i), bytes.Repeat([]byte("x"), i), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, x := range []struct {
		args string
		kill bool
	}{{args: "DIR/src box:DIR/up"}, {args: "box:DIR/src DIR/down"}, {args: "box:DIR/src other:DIR/over"}, {args: "DIR/src box:DIR/killed", kill: true}} {
		way := &breaking{target: target{m}, after: []int{3_000_000, 100_000, 6_000_000, 2_000_000, 4_000_000}}
		if x.kill { // the agent dies with each connection, and is started again
			way.then = func() { m.kill(); m.start() }
		}
		out, errOut, exit := m.frontOver(way, "", strings.Fields("cp -r --json "+strings.ReplaceAll(x.args, "DIR", dir))...)
		var doc wire.Copy
		if err := json.Unmarshal([]byte(out), &doc); err != nil || exit != 0 || doc.Files != 302 || doc.KeptBytes == 0 {
			t.Fatalf("%s: exit %d: %v: %s%s", x.args, exit, err, out, errOut)
		}
		if len(way.after) != 0 {
			t.Errorf("%s: %d cuts were not made", x.args, len(way.after))
		}
		to := x.args[strings.LastIndex(x.args, "/")+1:]
		if x.kill { // it leaves what it was writing, under its temporary name
			exec.Command("find", dir+"/"+to, "-name", ".fleet-tmp-*", "-delete").Run()
		}
		if diff, err := exec.Command("diff", "-r", dir+"/src", dir+"/"+to).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", x.args, err, diff)
		}
		if left, _ := exec.Command("find", dir+"/"+to, "-name", ".fleet-tmp-*").Output(); len(left) != 0 {
			t.Errorf("%s: %s are left", x.args, left)
		}
	}
}
