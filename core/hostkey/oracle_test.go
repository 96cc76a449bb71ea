package hostkey

import (
	"fmt"
	"math/rand/v2"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

var foundAt = regexp.MustCompile(`(?m)^# Host .* found: line (\d+)`)

// TestLinesAreThoseThatSSHKeygenFinds holds what is read of known_hosts against
// `ssh-keygen -F`: plain names, lists, wildcards, negations, [host]:port,
// markers, hashed names, and lines that are malformed in one way or another.
func TestLinesAreThoseThatSSHKeygenFinds(t *testing.T) {
	if _, err := exec.LookPath("ssh-keygen"); err != nil {
		t.Skip(err)
	}
	k, _ := newKey(t)
	key := auth(k)
	r := rand.New(rand.NewPCG(3, 1))
	pick := func(from ...string) string { return from[r.IntN(len(from))] }
	names := []string{"box", "box.example", "bastion.example", "[box]:2222", "[box.example]:22", "10.0.0.1", "[::1]:2222", "fe80::1", "xbox"}
	pattern := func() string {
		p := pick(append([]string{"*", "*.example", "b?x", "[box]:*", "[*]:2222", "10.0.0.*", "BOX", "Box.Example", "?", "box*", "*box", "[::1]:*", "***", ""}, names...)...)
		if r.IntN(5) == 0 {
			p = "!" + p
		}
		return p
	}
	line := func() string {
		var list []string
		for range 1 + r.IntN(3) {
			list = append(list, pattern())
		}
		hosts := strings.Join(list, ",")
		switch r.IntN(14) {
		case 0:
			return "@cert-authority " + hosts + " " + key
		case 1:
			return "@revoked " + hosts + " " + key
		case 2:
			return "@unknown " + hosts + " " + key
		case 3:
			return hosts + " " + key[:len(key)-9] // cut short
		case 4:
			return hosts + " ssh-moon " + strings.Fields(key)[1]
		case 5:
			return "# " + hosts + " " + key
		case 6:
			return hosts
		case 7:
			return "  \t" + hosts + "\t" + strings.ReplaceAll(key, " ", "\t") + "  a comment"
		case 8:
			return hosts + " ecdsa-sha2-nistp256 " + strings.Fields(key)[1] // of another type than it says
		case 9:
			return ""
		}
		return hosts + " " + key
	}
	for round := range 40 {
		var lines []string
		for range 12 {
			lines = append(lines, line())
		}
		file := knownFile(t, lines...)
		if round%3 == 0 { // with names hashed, where they can be
			exec.Command("ssh-keygen", "-H", "-f", file).Run()
		}
		for _, name := range names {
			out, _ := exec.Command("ssh-keygen", "-l", "-F", name, "-f", file).CombinedOutput()
			var want, got []int
			for _, m := range foundAt.FindAllStringSubmatch(string(out), -1) {
				n, _ := strconv.Atoi(m[1])
				want = append(want, n)
			}
			for _, l := range Known([]string{file}, name, "") {
				if !l.Bare {
					got = append(got, l.Number)
				}
			}
			if !slices.Equal(got, want) {
				t.Errorf("%s: lines %v, ssh-keygen finds %v in\n%s\n%s", name, got, want, strings.Join(lines, "\n"), out)
			}
		}
		if t.Failed() {
			return
		}
	}
}

// TestAKeyUnderTheNameWithoutAPortSpeaksForIt: ssh takes such a line for a host
// at another port if the key is the same; if it is not, it says nothing.
func TestAKeyUnderTheNameWithoutAPortSpeaksForIt(t *testing.T) {
	a, _ := newKey(t)
	b, _ := newKey(t)
	for line, want := range map[string]int{"box " + auth(a): 1, "box " + auth(b): 0, "@cert-authority box " + auth(a): 0} {
		e, err := Weigh(Known([]string{knownFile(t, line)}, "[box]:2222", ""), "[box]:2222", a, time.Now())
		if err != nil || len(e) != want {
			t.Errorf("%s: %v, %v", line, e, err)
		}
	}
	if _, err := Weigh(Known([]string{knownFile(t, "@revoked box "+auth(a))}, "[box]:2222", ""), "[box]:2222", a, time.Now()); err == nil {
		t.Error("a key that is revoked for the host is taken at another port")
	}
}

func TestFingerprintsAreForTheHostTheyName(t *testing.T) { // R2
	k, _ := newKey(t)
	const fp = "SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	jump := Met{Place: Place{Name: "[j]:2222"}, Key: k, Names: []string{"bastion", "[j]:2222", "j"}, Jump: true}
	target := Met{Place: Place{Name: "box"}, Key: k, Names: []string{"box"}}
	for arg, want := range map[string][2]bool{
		fp: {false, true}, "bastion=" + fp: {true, false}, "[j]:2222=" + fp + "=": {true, false}, "BOX=" + fp: {false, true}, "x=" + fp: {false, false},
	} {
		f, err := ParseFingerprints([]string{arg})
		if err != nil {
			t.Fatal(err)
		}
		if got := [2]bool{f[0].Speaks(jump), f[0].Speaks(target)}; got != want {
			t.Errorf("%s: %v, want %v", arg, got, want)
		}
		err = CheckHops(f, [][]string{jump.Names, target.Names})
		if (err == nil) != (want[0] || want[1]) {
			t.Errorf("%s: %v", arg, err)
		}
	}
	for _, bad := range []string{"bastion=", "bastion", "=" + fp, "bastion=MD5:aa"} {
		if _, err := ParseFingerprints([]string{bad}); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
	if want := fmt.Sprintf("--fingerprint bastion=%s", Describe(k)[len("ssh-ed25519 "):]); jump.Flag() != want {
		t.Error(jump.Flag())
	}
}
