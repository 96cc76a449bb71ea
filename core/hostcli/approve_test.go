package hostcli

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/json"
	"encoding/pem"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"
	sshagent "golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/core/command"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// token is an agent with one security key that somebody always touches, as
// OpenSSH's PROTOCOL.u2f has it, without the hardware.
type token struct {
	sshagent.Agent // refuses the rest
	private        ed25519.PrivateKey
}

func (k token) public() ssh.PublicKey {
	pub, err := ssh.ParsePublicKey(ssh.Marshal(struct {
		Name        string
		Key         []byte
		Application string
	}{ssh.KeyAlgoSKED25519, k.private.Public().(ed25519.PublicKey), "ssh:"}))
	if err != nil {
		panic(err)
	}
	return pub
}

func (k token) List() ([]*sshagent.Key, error) {
	return []*sshagent.Key{{Format: k.public().Type(), Blob: k.public().Marshal(), Comment: "token"}}, nil
}

func (k token) Sign(pub ssh.PublicKey, data []byte) (*ssh.Signature, error) {
	if !bytes.Equal(pub.Marshal(), k.public().Marshal()) {
		return nil, errors.New("not this key")
	}
	app, msg := sha256.Sum256([]byte("ssh:")), sha256.Sum256(data)
	rest := []byte{1, 0, 0, 0, 7} // user present, counter
	return &ssh.Signature{Format: ssh.KeyAlgoSKED25519, Rest: rest, Blob: ed25519.Sign(k.private, append(append(app[:], rest...), msg[:]...))}, nil
}

// TestApprovingAnswersAPlaneThatWantsATouch: the security key in the agent
// signs for this very code, and only once the plane asks for it.
func TestApprovingAnswersAPlaneThatWantsATouch(t *testing.T) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	key := token{private: private}
	dir, err := os.MkdirTemp("/tmp", "fa")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", dir+"/a")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	go func() { // ends with the listener
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go sshagent.ServeAgent(key, c)
		}
	}()
	var touched *wire.Touch
	var url string
	say := func(w http.ResponseWriter, status int, v any) {
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		json.NewEncoder(w).Encode(v)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("POST "+wire.PathChallenge, func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, wire.ChallengeAnswer{Nonce: "n1", ExpiresAt: wire.Time{Time: time.Now().Add(time.Minute)}})
	})
	mux.HandleFunc("POST "+wire.PathEnrollmentLook, func(w http.ResponseWriter, _ *http.Request) {
		say(w, 200, wire.Enrollment{Schema: wire.SchemaEnrollment, Code: "ABCD-EFGH", Unproven: true, Report: wire.EnrollReport{Host: "box\x1b[2J", Account: "ops"}})
	})
	mux.HandleFunc("POST "+wire.PathEnrollmentApprove, func(w http.ResponseWriter, r *http.Request) {
		var req wire.CodeRequest
		json.NewDecoder(r.Body).Decode(&req)
		if touched = req.Touch; touched == nil {
			say(w, 403, wire.Error{Error: wire.ErrorDetail{Code: wire.CodeTouchRequired, Message: "a touch"}})
			return
		}
		say(w, 200, wire.Enrolled{Schema: wire.SchemaEnrolled, Status: wire.AdmitNew, Machine: "m_x", Name: "box", Owner: "dana"})
	})
	srv := httptest.NewTLSServer(mux)
	t.Cleanup(srv.Close)
	env := map[string]string{"HOME": dir, "SSH_AUTH_SOCK": dir + "/a"}
	getenv := func(k string) string { return env[k] }
	roots := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})
	p, err := state.DirsOf(getenv).SaveLogin(t.Context(), srv.URL, string(roots), "SHA256:other", wire.LoginAnswer{Token: "fs_x", Person: "dana", Role: wire.RoleOwner, ExpiresAt: wire.Time{Time: time.Now().Add(time.Hour)}})
	if err != nil {
		t.Fatal(err)
	}
	url = p.URL()
	run := func(args ...string) (string, string, int) {
		var out, errOut bytes.Buffer
		exit := Main(append([]string{"fleet"}, args...), command.IO{Stdin: strings.NewReader(""), Stdout: &out, Stderr: &errOut, Getenv: getenv}, Build{Version: "1"})
		return out.String(), errOut.String(), exit
	}
	if _, errOut, exit := run("approve", "abcd efgh"); exit != 2 || !strings.Contains(errOut, "--yes") || !strings.Contains(errOut, "nobody has vouched") || strings.Contains(errOut, "\x1b") || touched != nil {
		t.Fatal(exit, errOut)
	}
	out, errOut, exit := run("approve", "abcd-efgh", "--yes")
	if exit != 0 || !strings.Contains(out, "belongs to dana") || !strings.Contains(errOut, "touch your security key") {
		t.Fatal(exit, out, errOut)
	}
	sig, err := sshsig.Unarmor([]byte(touched.Signature))
	if err != nil {
		t.Fatal(err)
	}
	msg := wire.AdmitMessage("n1", url, wire.ApproveSubject("ABCDEFGH"))
	if err := sshsig.Verify(bytes.NewReader(msg), sig, key.public(), sig.HashAlgorithm, wire.NamespaceAdmit); err != nil {
		t.Fatal(err)
	}
	l.Close()
	if _, errOut, exit := run("approve", "abcd-efgh", "--yes"); exit != 9 || !strings.Contains(errOut, "security key") {
		t.Fatal(exit, errOut)
	}
}
