// Package swarm plays many machines at once, in one process, against the real
// planed over real TLS. Each machine is the real agent as far as its credential
// goes - check loop, client, credential files - on a disk in memory; only the
// connections are shared, since a process cannot keep ten thousand; those that a
// certificate opens cannot be.
package swarm

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"time"

	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/state"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/datadir"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
	"fleet.example/fleet/planed/store/bolt"
)

const person = "dana"

// Plane is a planed with machines that were admitted beforehand, and a person
// who is logged in.
type Plane struct {
	URL     string
	MTLS    string // where it takes certificates
	Roots   string
	Metrics string // where its metrics are
	Dir     string
	Env     []string // of planed; nil: this process's

	binary   string
	flags    []string
	session  secret.Text
	machines []wire.Credential

	cmd  *exec.Cmd
	done chan struct{}
	log  bytes.Buffer // written by the process that runs, read after it ended
}

// Prepare makes a plane in dir and admits n machines; it does not start it.
func Prepare(ctx context.Context, binary, dir string, n int, flags ...string) (*Plane, error) {
	addr, err := freeAddr()
	if err != nil {
		return nil, err
	}
	mtls, err := freeAddr()
	if err != nil {
		return nil, err
	}
	metrics, err := freeAddr()
	if err != nil {
		return nil, err
	}
	p := &Plane{URL: "https://" + addr, MTLS: "https://" + mtls, Metrics: metrics, Dir: dir, binary: binary, session: secret.New("fs_"),
		flags: append([]string{"serve", "--data", dir, "--listen", addr, "--mtls-listen", mtls, "--metrics-listen", metrics}, flags...)}
	if out, err := exec.CommandContext(ctx, binary, "init", "--data", dir, "--url", p.URL, "--owner", person).CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%s", out)
	}
	root, err := os.ReadFile(filepath.Join(dir, datadir.FileRootCert))
	if err != nil {
		return nil, err
	}
	p.Roots = string(root)
	st, err := bolt.Open(filepath.Join(dir, datadir.FileStore), bolt.Options{Offline: true})
	if err != nil {
		return nil, err
	}
	return p, errors.Join(p.fill(ctx, st, n), st.Close())
}

// fill logs the person in and admits the machines, many in one commit.
func (p *Plane) fill(ctx context.Context, st store.Store, n int) error {
	now := time.Now()
	invitation := secret.New("fi_")
	if err := st.Invite(ctx, store.Invitation{Actor: "local:swarm", Digest: invitation.Digest(), Person: person, Role: wire.RoleOwner, At: now, ExpiresAt: now.Add(time.Hour)}); err != nil {
		return err
	}
	if _, err := st.Login(ctx, store.Login{Fingerprint: "SHA256:swarm", Key: "swarm", Invitation: invitation.Digest(), Session: p.session.Digest(), At: now, ExpiresAt: now.Add(12 * time.Hour)}); err != nil {
		return err
	}
	p.machines = make([]wire.Credential, n)
	next := make(chan int)
	go func() {
		defer close(next)
		for i := range n {
			next <- i
		}
	}()
	var wg sync.WaitGroup
	errs := make([]error, min(n, 256))
	for w := range errs {
		wg.Go(func() {
			for i := range next {
				s := secret.New("fm_")
				a, err := st.Admit(ctx, machine.Admission{By: machine.By{Actor: "person:" + person, Person: person, Owner: true},
					Installation: secret.New("").Digest(), Credential: s.Digest(), Name: fmt.Sprintf("box-%d", i)}, now)
				if err != nil {
					errs[w] = err
					continue
				}
				p.machines[i] = wire.Credential{Schema: wire.SchemaCredential, Machine: a.Row.ID, Generation: 1, Secret: s.Reveal(),
					Plane: wire.CredentialPlane{URL: p.URL, RootsPEM: p.Roots}}
			}
		})
	}
	wg.Wait()
	return errors.Join(errs...)
}

// Credentials are the machines', as they were admitted.
func (p *Plane) Credentials() []wire.Credential { return p.machines }

func freeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	defer l.Close()
	return l.Addr().String(), nil
}

// Start starts it and waits until it listens.
func (p *Plane) Start(ctx context.Context) error {
	p.log.Reset()
	p.cmd = exec.Command(p.binary, p.flags...)
	p.cmd.Env = p.Env
	p.cmd.Stderr, p.cmd.Stdout = &p.log, &p.log
	if err := p.cmd.Start(); err != nil {
		return err
	}
	done := make(chan struct{})
	p.done = done
	cmd := p.cmd
	go func() { // Kill waits for it
		cmd.Wait()
		close(done)
	}()
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for {
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.URL[len("https://"):])
		if err == nil {
			return c.Close()
		}
		select {
		case <-done:
			return fmt.Errorf("planed ended: %s", p.log.String())
		case <-ctx.Done():
			return errors.Join(err, p.Kill())
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// Kill ends it at an instant.
func (p *Plane) Kill() error {
	if p.cmd == nil {
		return nil
	}
	err := p.cmd.Process.Kill()
	<-p.done
	p.cmd = nil
	return err
}

// PID is the running process's.
func (p *Plane) PID() int { return p.cmd.Process.Pid }

// Client is the person's.
func (p *Plane) Client() (*planeclient.Client, error) {
	return planeclient.New(planeclient.Options{URL: p.URL, RootsPEM: p.Roots, Token: p.session})
}

// Login writes the person's session where a fleet with this environment looks.
func (p *Plane) Login(ctx context.Context, getenv func(string) string) error {
	_, err := state.DirsOf(getenv).SaveLogin(ctx, p.URL, p.Roots, "SHA256:swarm", wire.LoginAnswer{
		Token: p.session.Reveal(), Person: person, Role: wire.RoleOwner, ExpiresAt: wire.Time{Time: time.Now().Add(12 * time.Hour)}})
	return err
}

// Build builds a command of this module into dir.
func Build(ctx context.Context, dir, name string) (string, error) {
	path := filepath.Join(dir, name)
	if out, err := exec.CommandContext(ctx, "go", "build", "-o", path, "fleet.example/fleet/cmd/"+name).CombinedOutput(); err != nil {
		return "", fmt.Errorf("cannot build %s: %s", name, out)
	}
	return path, nil
}
