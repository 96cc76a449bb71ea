package proxyjump

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"
	"golang.org/x/crypto/ssh/agent"

	"fleet.example/fleet/core/sshlogin"
	"fleet.example/fleet/plugins/sdk"
)

// login speaks the SSH of one hop over conn until the hop is logged in to.
func (w *way) login(ctx context.Context, hop sdk.Hop, conn net.Conn) (*ssh.Client, error) {
	algorithms, err := w.th.HostKeyAlgorithms(ctx, hop.ID)
	if err != nil {
		return nil, err
	}
	signer := &signer{th: w.th, hop: hop.ID}
	defer signer.close()
	login := &sshlogin.Login{Signers: func() ([]ssh.Signer, error) { return signer.keys(ctx) }}
	keyed, judged := make(chan struct{}), make(chan struct{})
	var first, second sync.Once // keys are exchanged again later
	conf := &ssh.ClientConfig{
		User:              hop.User,
		ClientVersion:     "SSH-2.0-fleet",
		HostKeyAlgorithms: algorithms,
		HostKeyCallback: func(_ string, _ net.Addr, key ssh.PublicKey) error {
			first.Do(func() { close(keyed) })
			// A person may be asked, for as long as the dial may take.
			err := w.th.VerifyHostKey(ctx, hop.ID, key.Marshal(), address(hop))
			second.Do(func() { close(judged) })
			return err
		},
		AuthCallback: login.Next,
	}
	conf.KeyExchanges, conf.Ciphers, conf.MACs = hop.KeyExchanges, hop.Ciphers, hop.MACs

	type result struct {
		client *ssh.Client
		err    error
	}
	done := make(chan result, 1)
	door := &sshlogin.Door{Conn: conn}
	go func() { // ends with the handshake, which closing conn ends
		c, chans, reqs, err := ssh.NewClientConn(door, address(hop), conf)
		if err != nil {
			done <- result{err: err}
			return
		}
		done <- result{client: ssh.NewClient(c, chans, reqs)}
	}()
	limit := patience(hop)
	timer := time.NewTimer(limit)
	defer timer.Stop()
	for {
		select {
		case r := <-done:
			if r.err != nil {
				if hung := door.HungUp(r.err); hung != nil {
					return nil, hung
				}
				return nil, words(r.err)
			}
			return r.client, nil
		case <-keyed:
			keyed = nil
			timer.Stop()
			continue
		case <-judged:
			judged, limit = nil, loginTime
			timer.Reset(limit)
			continue
		case <-timer.C:
			err = fmt.Errorf("no SSH handshake in %s", limit)
		case <-ctx.Done():
			err = context.Cause(ctx)
		}
		conn.Close()
		if r := <-done; r.client != nil {
			r.client.Close()
		}
		return nil, err
	}
}

// words takes the library's own prefix off SSH's words.
func words(err error) error {
	if inner := errors.Unwrap(err); inner != nil {
		return inner
	}
	return err
}

// signer is the host's agent for a hop, reached when it is needed: after the
// hop's key was accepted.
type signer struct {
	th   sdk.TransportHost
	hop  string
	conn net.Conn
}

func (s *signer) keys(ctx context.Context) ([]ssh.Signer, error) {
	path, err := s.th.AgentSocket(ctx, s.hop)
	if err != nil || path == "" {
		return nil, err
	}
	var d net.Dialer
	if s.conn, err = d.DialContext(ctx, "unix", path); err != nil {
		return nil, fmt.Errorf("cannot reach the host's agent: %w", err)
	}
	return agent.NewClient(s.conn).Signers()
}

func (s *signer) close() {
	if s.conn != nil {
		s.conn.Close()
	}
}
