package clitest

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	mathrand "math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
)

// plane is a real planed in a directory of its own, and a person's session at
// it. Its methods return errors, since scripts expect some.
type plane struct {
	dir, url, addr, roots string

	token    secret.Text
	cmd      *exec.Cmd
	exited   chan struct{}
	log      *bytes.Buffer
	machines map[string]*machine
}

// machine is a machine as far as the plane sees one.
type machine struct {
	id     string
	secret secret.Text
	seq    uint64
}

func freeAddr() (string, error) {
	for range 100 {
		// Below those that the system gives to whoever asks for any: it is given
		// back here before the plane takes it.
		addr := fmt.Sprintf("127.0.0.1:%d", 10240+mathrand.IntN(32768-10240))
		if l, err := net.Listen("tcp", addr); err == nil {
			return addr, l.Close()
		}
	}
	return "", errors.New("there is no free port")
}

// steady and quick are the time between two checks that a plane asks for: its
// machines are present for longer than any script takes, or absent after 6 s.
const steady, quick = "10m", "500ms"

// newPlane makes and starts a steady plane.
func newPlane(ctx context.Context, dir string) (*plane, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p := &plane{dir: dir, addr: addr, url: "https://localhost" + addr[strings.LastIndex(addr, ":"):], machines: map[string]*machine{}}
	out, err := exec.CommandContext(ctx, bin("planed"), "init", "--data", dir, "--url", p.url, "--owner", "dana", "--json").Output()
	if err != nil {
		return nil, fmt.Errorf("planed init: %w", err)
	}
	var doc wire.Plane
	if err := json.Unmarshal(out, &doc); err != nil {
		return nil, err
	}
	if err := p.start(ctx, steady); err != nil {
		return nil, err
	}
	if p.roots, err = planeclient.VerifyPin(ctx, p.url, doc.CAPin); err != nil {
		return nil, err
	}
	invite, err := os.ReadFile(doc.InviteFile)
	if err != nil {
		return nil, err
	}
	return p, p.login(ctx, string(invite))
}

func (p *plane) start(ctx context.Context, interval string) error {
	p.log = &bytes.Buffer{}
	p.cmd = exec.Command(bin("planed"), "serve", "--data", p.dir, "--listen", p.addr, "--test-floor", "500ms", "--check-interval", interval)
	p.cmd.Stderr = p.log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	p.exited = make(chan struct{})
	go func() { p.cmd.Wait(); close(p.exited) }() // stop waits for it
	for {
		c, err := net.DialTimeout("tcp", p.addr, time.Second)
		if err == nil {
			return c.Close()
		}
		select {
		case <-p.exited:
			return fmt.Errorf("planed ended: %s", p.log)
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (p *plane) stop() {
	p.cmd.Process.Signal(os.Interrupt)
	select {
	case <-p.exited:
	case <-time.After(20 * time.Second):
		p.cmd.Process.Kill()
		<-p.exited
	}
}

func (p *plane) client() (*planeclient.Client, error) {
	return planeclient.New(planeclient.Options{URL: p.url, RootsPEM: p.roots, Token: p.token})
}

// join invites a person and opens their first session.
func (p *plane) join(ctx context.Context, name, role string) (secret.Text, error) {
	c, err := p.client()
	if err != nil {
		return secret.Text{}, err
	}
	defer c.Close()
	inv, err := c.Invite(ctx, wire.PersonRequest{Name: name, Role: role})
	if err != nil {
		return secret.Text{}, err
	}
	other := *p
	err = other.login(ctx, inv.Invitation)
	return other.token, err
}

// login opens a session as dana, with a key of its own and the invitation.
func (p *plane) login(ctx context.Context, invite string) error {
	_, priv, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return err
	}
	key, err := ssh.NewSignerFromKey(priv)
	if err != nil {
		return err
	}
	c, err := p.client()
	if err != nil {
		return err
	}
	defer c.Close()
	ch, err := c.Challenge(ctx)
	if err != nil {
		return err
	}
	sig, err := sshsig.Sign(bytes.NewReader(wire.LoginMessage(ch.Nonce, c.URL())), key, sshsig.HashSHA512, wire.NamespaceLogin)
	if err != nil {
		return err
	}
	a, err := c.Login(ctx, wire.LoginRequest{Nonce: ch.Nonce, URL: c.URL(), PublicKey: string(ssh.MarshalAuthorizedKey(key.PublicKey())),
		Signature: string(sshsig.Armor(sig)), Invite: invite})
	p.token = secret.Of(a.Token)
	return err
}

// save puts the session where fleet looks for it.
func (p *plane) save(ctx context.Context, getenv func(string) string) error {
	_, err := state.DirsOf(getenv).SaveLogin(ctx, p.url, p.roots, "SHA256:test", wire.LoginAnswer{
		Token: p.token.Reveal(), Person: "dana", Role: wire.RoleOwner, ExpiresAt: wire.Time{Time: time.Now().Add(time.Hour)}})
	return err
}

func (p *plane) admit(ctx context.Context, name string, labels map[string]string) (string, error) {
	c, err := p.client()
	if err != nil {
		return "", err
	}
	defer c.Close()
	m := &machine{secret: secret.New("fm_")}
	a, err := c.Admit(ctx, wire.AdmitRequest{InstallationDigest: secret.New("").Digest().Hex(), CredentialDigest: m.secret.Digest().Hex(), Name: name, Labels: labels})
	m.id = a.Machine
	p.machines[name] = m
	return m.id, err
}

// link records an SSH destination for the machine, as an install does.
func (p *plane) link(ctx context.Context, getenv func(string) string, name, host string) error {
	st, err := state.DirsOf(getenv).OpenPlane(p.url)
	if err != nil {
		return err
	}
	return st.SaveLink(ctx, state.Link{Machine: p.machines[name].id, Name: name, Host: host, Account: "ops", Scope: "user", Manager: "systemd",
		Last: "ok", At: wire.Time{Time: time.Now()}.String()})
}

// check sends one check with the given body for the machine.
func (p *plane) check(ctx context.Context, name, body string) error {
	m := p.machines[name]
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots))
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, "POST", p.url+wire.PathCheck, strings.NewReader(body))
	if err != nil {
		return err
	}
	m.seq++
	req.Header.Set("Authorization", "Bearer "+m.id+"."+m.secret.Reveal())
	req.Header.Set(wire.HeaderCheck, wire.CheckMark{Instance: "i1", Seq: m.seq, Clock: time.Now()}.String())
	resp, err := (&http.Client{Transport: tr, Timeout: 20 * time.Second}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	if out, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != http.StatusOK {
		return fmt.Errorf("check: %d %s %w", resp.StatusCode, out, err)
	}
	return nil
}

func bin(name string) string { return filepath.Join(binaries, name) }
