package e2e

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/contrib/lab/wan"
	"fleet.example/fleet/core/wire"
)

// sums prints the hash of every file of the versions that have a name.
const sums = "cd " + dataGlob + "/versions 2>/dev/null && for v in [0-9a-f]*; do [ -d \"$v\" ] && find \"$v\" -type f -exec sha256sum {} + | sort; done; true"

// TestUploadsThatAreCutOff resets installs wherever it may be. What has a name
// on the machine is whole, always, and the next install finishes the job.
func TestUploadsThatAreCutOff(t *testing.T) { // R3, R6
	t.Parallel()
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana", NoLinger: true}, {Name: "eve", NoLinger: true}},
		SSHDConfig: "UsePAM no\n", Also: []lab.Server{{Port: portNoSFTP, NoSFTP: true, SSHDConfig: "UsePAM no\n"}}})
	archive, err := filepath.Glob(filepath.Join(bin, "artifacts", "*linux-amd64*.tar.gz"))
	if err != nil || len(archive) != 1 {
		t.Fatal(archive, err)
	}
	st, err := os.Stat(archive[0])
	if err != nil {
		t.Fatal(err)
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for account, port := range map[string]string{"dana": "22", "eve": fmt.Sprint(portNoSFTP)} {
		random := rand.New(rand.NewPCG(seed, uint64(len(port))))
		t.Run(account, func(t *testing.T) {
			t.Parallel()
			w := w.as(t)
			proxy, err := wan.Listen(t.Context(), w.lab.PlaneAddr()+":0", net.JoinHostPort(h.Addr(), port), wan.Profile{})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { proxy.Close() })
			_, at, _ := net.SplitHostPort(proxy.Addr())
			args := []string{"install", account + "@" + w.lab.PlaneAddr(), "-p", at, "-i", w.lab.KeyPath(), "--name", account, "--fingerprint", w.fingerprint(h), "--json"}
			var named []string
			cut := 0
			for i := range 5 {
				// From the handshake to what follows the archive. The last two
				// may come too late to cut anything off.
				n := 1 + random.Int64N(20<<10)
				switch {
				case i >= 3:
					n = random.Int64N(st.Size() + st.Size()/50)
				case i > 0:
					n = random.Int64N(st.Size())
				}
				proxy.ResetAfter(wan.Up, n)
				r := w.run("fleet", args...)
				if r.exit != 0 {
					cut++
					if !strings.Contains(r.err, `"message"`) {
						t.Errorf("cut after %d bytes: %s", n, r)
					}
				}
				named = append(named, w.sh(h, account, sums))
			}
			if cut < 3 {
				t.Errorf("only %d of the installs were cut off", cut)
			}
			proxy.ResetAfter(wan.Up, 0)
			w.again(h, account)
			whole := w.sh(h, account, sums)
			for i, s := range named {
				if s != "" && s != whole {
					t.Errorf("after cut %d the machine had\n%s\nand in the end\n%s", i+1, s, whole)
				}
			}
			if left := w.sh(h, account, "ls -d "+dataGlob+"/versions/.[!.]* "+dataGlob+"/.[!.]* 2>/dev/null || true"); left != "" {
				t.Errorf("left: %s", left)
			}
			w.must("fleet", "exec", account, "--", "true")
		})
	}
}

// TestRunningProgramsAreNotWrittenOn repairs an installation whose agent runs:
// the file it runs is as it was, and new ones take the place of what was
// altered. Every rename stays in its directory, so that files keep the label
// that their directory gives them.
func TestRunningProgramsAreNotWrittenOn(t *testing.T) { // R3
	t.Parallel()
	w := newWorld(t)
	h := w.host(lab.HostSpec{})
	w.install(h, "dana", "box")
	pid := strings.TrimSpace(w.sh(h, "root", "pgrep -x agentd"))
	running := func() string { return w.sh(h, "root", "sha256sum </proc/"+pid+"/exe; stat -Lc %i /proc/"+pid+"/exe") }
	before := running()
	w.sh(h, "dana", "cd "+dataGlob+"/current && cp agentd x && echo more >>x && mv -f x agentd && sed -i 's/a/b/' plugins.lock")

	data := strings.TrimSpace(w.sh(h, "dana", "cd "+dataGlob+" && pwd -P"))
	renames := watchRenames(t, h.Root(), []string{data, data + "/versions", data + "/service", "/home/dana/.config/systemd/user", "/home/dana/.local/share/fleet-agent"})
	var doc wire.Install
	if err := json.Unmarshal([]byte(w.must("fleet", w.installArgs(h, "dana", "box", "--json")...)), &doc); err != nil {
		t.Fatal(err)
	}
	if doc.Artifact == nil || !doc.Artifact.Sent {
		t.Errorf("%+v", doc.Artifact)
	}
	if within, across := renames(); across != 0 || within == 0 {
		t.Errorf("%d renames within a directory, %d from one to another", within, across)
	}
	if now := w.sh(h, "root", "sha256sum </proc/"+pid+"/exe 2>/dev/null || true"); now != "" && !strings.HasPrefix(before, now) {
		t.Errorf("the running agent was %s and is %s", before, now)
	}
	if said := w.must("fleet", append([]string{"test"}, w.dest(h, "dana")...)...); !strings.Contains(said, "there and intact") {
		t.Error(said)
	}
	w.must("fleet", "exec", "box", "--", "true")
}

// watchRenames counts renames from now on: those whose file stays in its
// directory, and those that leave or enter one of those watched.
func watchRenames(t *testing.T, root string, dirs []string) func() (within, across int) {
	t.Helper()
	fd, err := unix.InotifyInit1(unix.IN_NONBLOCK | unix.IN_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	watched := 0
	for _, d := range dirs {
		if _, err := unix.InotifyAddWatch(fd, filepath.Join(root, d), unix.IN_MOVED_FROM|unix.IN_MOVED_TO); err == nil {
			watched++
		}
	}
	if watched < 3 {
		t.Fatalf("%d directories can be watched", watched)
	}
	return func() (within, across int) {
		buf := make([]byte, 1<<20)
		n, err := unix.Read(fd, buf)
		if err != nil {
			return 0, 0
		}
		from := map[uint32]int32{}
		for at := 0; at+unix.SizeofInotifyEvent <= n; {
			field := func(i int) uint32 {
				return uint32(buf[at+i]) | uint32(buf[at+i+1])<<8 | uint32(buf[at+i+2])<<16 | uint32(buf[at+i+3])<<24
			}
			wd, mask, cookie, length := int32(field(0)), field(4), field(8), field(12)
			at += unix.SizeofInotifyEvent + int(length)
			switch was, known := from[cookie]; {
			case mask&unix.IN_MOVED_FROM != 0:
				from[cookie] = wd
			case known && was == wd:
				within++
				delete(from, cookie)
			default:
				across++
			}
		}
		return within, across + len(from)
	}
}
