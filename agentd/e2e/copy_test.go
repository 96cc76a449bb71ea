package e2e

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
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
