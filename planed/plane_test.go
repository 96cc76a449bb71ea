package planed_test

import (
	"bytes"
	"cmp"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/programs"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

var bin string

func TestMain(m *testing.M) {
	os.Exit(programs.Main(m, &bin, func(dir string) error { return programs.Build(dir, nil, "planed") }))
}

// binary is the program under test.
func binary() string { return filepath.Join(bin, "planed") }

// plane is a real planed in a directory of its own.
type plane struct {
	t      *testing.T
	dir    string
	url    string
	pin    string
	roots  string
	invite string
	flags  []string
	// program, where set, stands before planed's own arguments in its place.
	program string

	cmd    *exec.Cmd
	log    *programs.Output
	exited chan struct{}
}

// freePort is a port that nobody listens on, below those that the system gives
// to whoever asks for any: it is given back here before the plane takes it, and
// again whenever the plane is started anew.
func freePort(t *testing.T) int {
	t.Helper()
	for range 100 {
		port := 10240 + mathrand.IntN(32768-10240)
		if l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			l.Close()
			return port
		}
	}
	t.Fatal("there is no free port")
	return 0
}

// planed runs a command of planed's to its end.
func planed(t *testing.T, args ...string) (stdout, stderr string, exit int) {
	t.Helper()
	var out, errOut bytes.Buffer
	cmd := exec.Command(binary(), args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	if _, ok := err.(*exec.ExitError); err != nil && !ok {
		t.Fatal(err)
	}
	return out.String(), errOut.String(), cmd.ProcessState.ExitCode()
}

func initPlane(t *testing.T, dir string, flags ...string) *plane {
	t.Helper()
	p := &plane{t: t, dir: dir, url: fmt.Sprintf("https://localhost:%d", freePort(t)), flags: flags, log: &programs.Output{}}
	out, errOut, exit := planed(t, "init", "--data", p.dir, "--url", p.url, "--owner", "dana", "--json")
	if exit != 0 {
		t.Fatal(errOut)
	}
	var doc wire.Plane
	if err := json.Unmarshal([]byte(out), &doc); err != nil {
		t.Fatal(err)
	}
	p.pin = doc.CAPin
	b, err := os.ReadFile(doc.InviteFile)
	if err != nil {
		t.Fatal(err)
	}
	p.invite = string(b)
	return p
}

func newPlane(t *testing.T, flags ...string) *plane {
	t.Helper()
	p := initPlane(t, filepath.Join(t.TempDir(), "data"), flags...)
	p.start()
	var err error
	if p.roots, err = planeclient.VerifyPin(t.Context(), p.url, p.pin); err != nil {
		t.Fatal(err)
	}
	return p
}

func (p *plane) start() {
	p.t.Helper()
	args := append([]string{"serve", "--data", p.dir, "--listen", "127.0.0.1" + p.url[strings.LastIndex(p.url, ":"):]}, p.flags...)
	p.cmd = exec.Command(cmp.Or(p.program, binary()), args...)
	p.cmd.Stderr, p.cmd.Stdout = p.log, p.log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	exited := make(chan struct{})
	p.exited = exited
	cmd := p.cmd
	go func() { cmd.Wait(); close(exited) }()
	p.t.Cleanup(func() {
		cmd.Process.Kill()
		<-exited
	})
	p.until("it answers", func() bool {
		select {
		case <-exited:
			p.t.Fatalf("planed ended: %s", p.log)
		default:
		}
		c, err := net.DialTimeout("tcp", "127.0.0.1"+p.url[strings.LastIndex(p.url, ":"):], time.Second)
		if err == nil {
			c.Close()
		}
		return err == nil
	})
}

// until polls, for what another process does.
func (p *plane) until(what string, f func() bool) {
	p.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if f() {
			return
		}
	}
	p.t.Fatalf("%s: not within 20 s; log:\n%s", what, p.log)
}

func (p *plane) kill() {
	p.cmd.Process.Kill()
	<-p.exited
}

// term ends the plane in good order and returns its exit code.
func (p *plane) term() int {
	p.t.Helper()
	p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.exited:
	case <-time.After(30 * time.Second):
		p.t.Fatal("planed did not end after SIGTERM")
	}
	return p.cmd.ProcessState.ExitCode()
}

func (p *plane) client(token secret.Text) *planeclient.Client {
	p.t.Helper()
	c, err := planeclient.New(planeclient.Options{URL: p.url, RootsPEM: p.roots, Token: token})
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(c.Close)
	return c
}

func newKey(t *testing.T) ssh.Signer {
	t.Helper()
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	s, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// signed is a login's request.
func signed(t *testing.T, key ssh.Signer, nonce, url string) wire.LoginRequest {
	t.Helper()
	sig, err := sshsig.Sign(bytes.NewReader(wire.LoginMessage(nonce, url)), key, sshsig.HashSHA512, wire.NamespaceLogin)
	if err != nil {
		t.Fatal(err)
	}
	return wire.LoginRequest{Nonce: nonce, URL: url, PublicKey: string(ssh.MarshalAuthorizedKey(key.PublicKey())), Signature: string(sshsig.Armor(sig))}
}

// login opens a session and returns its client.
func (p *plane) login(key ssh.Signer, invite string) (*planeclient.Client, error) {
	p.t.Helper()
	c := p.client(secret.Text{})
	ch, err := c.Challenge(p.t.Context())
	if err != nil {
		return nil, err
	}
	req := signed(p.t, key, ch.Nonce, c.URL())
	req.Invite = invite
	a, err := c.Login(p.t.Context(), req)
	if err != nil {
		return nil, err
	}
	return p.client(secret.Of(a.Token)), nil
}

func (p *plane) owner() *planeclient.Client {
	p.t.Helper()
	c, err := p.login(newKey(p.t), p.invite)
	if err != nil {
		p.t.Fatal(err)
	}
	return c
}

// box is a machine, as far as the plane sees one.
type box struct {
	p            *plane
	id           string
	secret       secret.Text
	installation secret.Text
	instance     string
	seq          uint64
	mark         string // of the last answer
	http         *http.Client
}

func (p *plane) machineHTTP() *http.Client {
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	p.t.Cleanup(tr.CloseIdleConnections)
	return &http.Client{Transport: tr, Timeout: 20 * time.Second}
}

func (p *plane) newBox() *box {
	return &box{p: p, secret: secret.New("fm_"), installation: secret.New(""), instance: "i1", http: p.machineHTTP()}
}

func (b *box) admit(c *planeclient.Client, name string) wire.AdmitAnswer {
	b.p.t.Helper()
	a, err := c.Admit(b.p.t.Context(), wire.AdmitRequest{
		InstallationDigest: b.installation.Digest().Hex(), CredentialDigest: b.secret.Digest().Hex(), Name: name,
	})
	if err != nil {
		b.p.t.Fatal(err)
	}
	b.id = a.Machine
	return a
}

// post sends a machine's request and returns status and body.
func (b *box) post(path string, s secret.Text, body string) (int, []byte, error) {
	req, err := http.NewRequestWithContext(context.Background(), "POST", b.p.url+path, strings.NewReader(body))
	if err != nil {
		return 0, nil, err
	}
	req.Header.Set("Authorization", "Bearer "+b.id+"."+s.Reveal())
	b.seq++
	req.Header.Set(wire.HeaderCheck, wire.CheckMark{Instance: b.instance, Seq: b.seq, Mark: b.mark, Clock: time.Now()}.String())
	resp, err := b.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer resp.Body.Close()
	out, err := io.ReadAll(resp.Body)
	return resp.StatusCode, out, err
}

const running = `{"name":"box","version":"1.0.0","os":"linux","arch":"amd64","lifecycle":{"state":"running","reason":null},"readiness":{"blockers":[]}}`

// check sends a check and decodes what comes back.
func (b *box) check(body string) (int, wire.CheckAnswer, wire.Error) {
	b.p.t.Helper()
	status, out, err := b.post(wire.PathCheck, b.secret, body)
	if err != nil {
		b.p.t.Fatal(err)
	}
	var a wire.CheckAnswer
	var e wire.Error
	if status == http.StatusOK {
		err = json.Unmarshal(out, &a)
		b.mark = a.Mark
	} else {
		err = json.Unmarshal(out, &e)
	}
	if err != nil {
		b.p.t.Fatalf("%s: %s", err, out)
	}
	return status, a, e
}

func (b *box) mustCheck(body string) wire.CheckAnswer {
	b.p.t.Helper()
	status, a, e := b.check(body)
	if status != http.StatusOK {
		b.p.t.Fatalf("check: %d %+v", status, e)
	}
	return a
}
