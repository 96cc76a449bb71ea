package e2e

import (
	"bytes"
	"cmp"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"fleet.example/fleet/agentd/fakeplane"
	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// pinOf is the pin of a root.
func pinOf(t *testing.T, rootPEM string) string {
	t.Helper()
	block, _ := pem.Decode([]byte(rootPEM))
	root, err := x509.ParseCertificate(block.Bytes)
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(root.RawSubjectPublicKeyInfo)
	return "sha256:" + hex.EncodeToString(sum[:])
}

// TestLoginMeetsWhatIsNoPlane: whatever answers under the plane's name, no login
// is kept, and the one that is there goes on.
func TestLoginMeetsWhatIsNoPlane(t *testing.T) { // R22
	w := newWorld(t)
	p, _ := fakeplane.Start(t)
	pin := pinOf(t, p.Roots)
	codes := map[string]string{"a cut answer": "plane_unreachable", "an oversized answer": "too_large"}
	for name, answer := range map[string]func(http.ResponseWriter){
		"a captive portal": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			io.WriteString(w, "<html><script>alert(1)</script>please log in</html>")
		},
		"a portal with a status of its own": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "text/html")
			w.WriteHeader(http.StatusNetworkAuthenticationRequired)
			io.WriteString(w, "<html>please log in</html>")
		},
		"a redirect": func(w http.ResponseWriter) {
			w.Header().Set("Location", "https://portal.invalid/login")
			w.WriteHeader(http.StatusFound)
		},
		"a cut answer": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{"nonce":"abc`)
		},
		"an oversized answer": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			w.Write(append([]byte(`{"nonce":"`), bytes.Repeat([]byte("a"), 32<<20)...))
		},
		"an empty answer": func(w http.ResponseWriter) {
			w.Header().Set("Content-Type", "application/json")
			io.WriteString(w, `{}`)
		},
	} {
		p.Lock()
		p.Answer = func(rw http.ResponseWriter, _ *http.Request) bool { answer(rw); return true }
		p.Unlock()
		r := w.run("fleet", "login", p.URL, "--ca-pin", pin, "--key", w.lab.KeyPath(), "--json")
		var e wire.CLIError
		if err := json.Unmarshal([]byte(r.err), &e); err != nil || r.exit == 0 || e.Error.Code != cmp.Or(codes[name], "not_a_plane") || r.out != "" {
			t.Errorf("%s: %.600s", name, r)
		}
		if strings.Contains(r.err, "<html>") || len(r.err) > 2000 {
			t.Errorf("%s: what came is shown: %.600s", name, r.err)
		}
		w.fails(4, "", "whoami", "--plane", p.URL)
	}
	// Its certificate alone is enough where nothing else is known of the plane.
	w.fails(7, "certificate", "login", p.URL, "--key", w.lab.KeyPath())
	if out := w.must("fleet", "whoami"); !strings.Contains(out, w.url) {
		t.Errorf("the login that was there is gone: %s", out)
	}
}

// uname answers for machines that nobody has here, by the account that asks.
const uname = `#!/bin/sh
case $(id -un) in
riscv) system=Linux hardware=riscv64 ;;
bsd) system=FreeBSD hardware=amd64 ;;
odd) system=Linux hardware='x86_64 $(touch /tmp/ran)' ;;
*) exec /usr/bin/uname "$@" ;;
esac
case $* in
-s) echo "$system" ;;
-m) echo "$hardware" ;;
*) echo "$system h1 $hardware" ;;
esac
`

func TestUnknownPlatformIsRefusedBeforeAnythingIsWritten(t *testing.T) { // R3
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "riscv"}, {Name: "bsd"}, {Name: "odd"}},
		Prepare: func(root string) error {
			return os.WriteFile(filepath.Join(root, "usr/local/bin/uname"), []byte(uname), 0o755)
		}})
	const supported = ": fleet runs on linux and darwin, amd64 and arm64"
	for account, want := range map[string]struct {
		exit  int
		words string
	}{
		"riscv": {9, "unsupported platform Linux/riscv64" + supported}, "bsd": {9, "unsupported platform FreeBSD/amd64" + supported},
		"odd": {1, "cannot tell what the host is"},
	} {
		before := w.sh(h, account, "find ~ -mindepth 1 | sort")
		for _, verb := range []string{"install", "test"} {
			args := append([]string{verb}, w.dest(h, account)...)
			if verb == "install" {
				args = append(args, "--fingerprint", w.fingerprint(h))
			}
			r := w.run("fleet", args...)
			if said := r.out + r.err; r.exit != want.exit || !strings.Contains(said, want.words) {
				t.Errorf("%s on %s: %s", verb, account, r)
			}
		}
		if after := w.sh(h, account, "find ~ -mindepth 1 | sort; ls /tmp/ran 2>/dev/null || true"); after != before {
			t.Errorf("%s: something was written:\n%s", account, difference(before, after))
		}
	}
	if n := len(w.machines()); n != 0 {
		t.Errorf("%d machines were admitted", n)
	}
}

// TestTornCredentialAndInstall tears the credential's file in every way and
// installs again: it ends right, or a person is told what to decide.
func TestTornCredentialAndInstall(t *testing.T) { // R6, R21
	w := newWorld(t)
	var accounts []lab.Account
	ways := []string{"cut", "empty", "garbage"}
	for _, way := range ways {
		accounts = append(accounts, lab.Account{Name: way})
	}
	h := w.host(lab.HostSpec{Accounts: accounts})
	const file = "~/.local/share/fleet-agent/*/credential"
	tear := map[string]string{
		"cut":     "f=$(echo " + file + "); head -c 40 $f > $f.x; cat $f.x > $f; rm $f.x",
		"empty":   ": > $(echo " + file + ")",
		"garbage": "head -c 300 /dev/urandom > $(echo " + file + ")",
	}
	for _, way := range ways {
		doc := w.install(h, way, way)
		w.poll("the second generation", func() error {
			if m := w.show(way); m.Credential.Generation < 2 || m.Credential.NextPending {
				return fmt.Errorf("%+v", m.Credential)
			}
			return nil
		})
		// Torn while it runs, the file could be written anew: the plane knows of a
		// promotion before the agent has noted it.
		w.sh(h, way, "systemctl --user stop fleet-agent; "+tear[way]+"; systemctl --user start fleet-agent")
		w.poll("the agent says so and stays", func() error {
			out := w.sh(h, way, "~/.local/share/fleet-agent/*/current/agentd status --json || true")
			if !strings.Contains(out, "credential_damaged") || !strings.Contains(out, `"running"`) {
				return fmt.Errorf("%s", out)
			}
			return nil
		})
		r := w.run("fleet", append([]string{"install"}, w.dest(h, way)...)...)
		if r.exit != 0 && (r.exit != 9 || !strings.Contains(r.err, "fleet delete "+doc.Machine.ID)) {
			t.Errorf("%s: it neither ended right nor said what to decide: %s", way, r)
		}
		t.Logf("%s: exit %d", way, r.exit)
		if r.exit != 0 {
			w.must("fleet", "delete", doc.Machine.ID)
			w.install(h, way, way)
		}
		w.must("fleet", "wait", way, "--for", "present", "--timeout", "30s")
		if r := w.run("fleet", "exec", way, "--", "echo", "here"); r.out != "here\n" {
			t.Error(r)
		}
	}
}

// fillingSFTP is a host's sftp server that fills the account's home before it
// answers, when a file there asks for that: what looked at the disk first found
// room, and what is written then finds none, whoever is faster.
const fillingSFTP = `#!/bin/sh
if [ -e ~/.fill-at-upload ]; then
	cat /dev/zero > ~/.filled 2>/dev/null
	rm ~/.fill-at-upload
fi
exec /usr/lib/openssh/sftp-server
`

// TestHomeFillsDuringTheUpload: the disk that was large enough at the start is
// full in the middle.
func TestHomeFillsDuringTheUpload(t *testing.T) { // R3, R6
	w := newWorld(t)
	h := w.host(lab.HostSpec{Accounts: []lab.Account{{Name: "dana", HomeBytes: 130 << 20}},
		SSHDConfig: "Subsystem sftp /usr/local/bin/filling-sftp\n",
		Prepare: func(root string) error {
			return os.WriteFile(filepath.Join(root, "usr/local/bin/filling-sftp"), []byte(fillingSFTP), 0o755)
		}})
	filledAtUpload := func(args ...string) result {
		w.sh(h, "dana", "touch ~/.fill-at-upload")
		r := w.run("fleet", args...)
		w.sh(h, "dana", "test -e ~/.filled && ! test -e ~/.fill-at-upload")
		return r
	}
	free := func() { w.sh(h, "dana", "rm ~/.filled") }
	w.must("fleet", append(append([]string{"trust"}, w.dest(h, "dana")...), "--fingerprint", w.fingerprint(h))...)
	r := filledAtUpload(w.installArgs(h, "dana", "box")...)
	if r.exit == 0 || !strings.Contains(r.err, "full") && !strings.Contains(r.err, "space") || !strings.Contains(r.err, "/home/dana") {
		t.Errorf("a full home: %s", r)
	}
	w.nothingInstalled(h, "dana")
	if out := w.sh(h, "dana", "find ~/.local -size +1M; find ~/.local -name '.unpack*'"); out != "" {
		t.Errorf("half-made: %s", out)
	}
	// Run again it says so before it begins.
	w.fails(9, "MiB free", w.installArgs(h, "dana", "box")...)
	free()
	w.again(h, "dana")
	if n := len(w.machines()); n != 1 {
		t.Errorf("%d machines", n)
	}
	if out := w.sh(h, "dana", "ls -A ~/.local/share/fleet-agent/*/versions | grep '^\\.' || true"); out != "" {
		t.Errorf("left: %s", out)
	}

	// An update that has no room leaves the version that was there, and it runs.
	before := w.versions(h)
	w.with(w.otherArtifact("8.2.0", w.agentdVersion("8.2.0")), func() {
		r := filledAtUpload("update", "dana")
		if r.exit == 0 || !strings.Contains(r.err, "full") && !strings.Contains(r.err, "space") {
			t.Errorf("an update of a machine whose home is full: %s", r)
		}
		free()
		if after := w.versions(h); strings.Fields(after)[0] != strings.Fields(before)[0] || strings.Contains(after, "8.2.0") {
			t.Errorf("an update that had no room:\n%s\n%s", before, after)
		}
		if r := w.run("fleet", "exec", "dana", "--", "echo", "alive"); r.out != "alive\n" {
			t.Error(r)
		}
		w.must("fleet", "update", "dana")
		w.runs("dana", "8.2.0")
	})
}
