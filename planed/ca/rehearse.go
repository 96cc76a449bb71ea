package ca

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"time"

	"fleet.example/fleet/core/wire"
)

// Try issues a server's and a machine's certificate, in memory, and verifies
// both as the other side will, for somebody who trusts the given roots.
func (s *Server) Try(now time.Time, roots ...*x509.Certificate) error {
	pool := x509.NewCertPool()
	for _, r := range roots {
		pool.AddCert(r)
	}
	leaf, err := s.issue(now)
	if err != nil {
		return err
	}
	u, err := url.Parse(s.URL)
	if err != nil {
		return err
	}
	if err := verify(leaf, pool, u.Hostname(), x509.ExtKeyUsageServerAuth, now); err != nil {
		return fmt.Errorf("a server's certificate does not verify: %w", err)
	}
	key, err := NewKey()
	if err != nil {
		return err
	}
	id := wire.NewMachineID()
	_, c, err := s.Machine(Request{Public: &key.PublicKey}, id, now, now.Add(time.Hour))
	if err != nil {
		return err
	}
	own := &tls.Certificate{Certificate: [][]byte{c.Raw, s.Intermediate.Raw}, Leaf: c}
	for _, more := range s.Cross {
		own.Certificate = append(own.Certificate, more.Raw)
	}
	if err := verify(own, pool, "", x509.ExtKeyUsageClientAuth, now); err != nil {
		return fmt.Errorf("a machine's certificate does not verify: %w", err)
	}
	if verify(own, pool, "", x509.ExtKeyUsageServerAuth, now) == nil {
		return errors.New("a machine's certificate would do for a server")
	}
	if got, err := s.Identify(c, now); err != nil || got != id {
		return errors.New("a machine's certificate does not name the machine")
	}
	return nil
}

func verify(c *tls.Certificate, roots *x509.CertPool, host string, use x509.ExtKeyUsage, now time.Time) error {
	rest := x509.NewCertPool()
	for _, raw := range c.Certificate[1:] {
		i, err := x509.ParseCertificate(raw)
		if err != nil {
			return err
		}
		rest.AddCert(i)
	}
	_, err := c.Leaf.Verify(x509.VerifyOptions{Roots: roots, Intermediates: rest, DNSName: host, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{use}})
	return err
}

// RehearseRoot makes a root and an intermediate under it, in memory, and plays
// their coming: as long as both roots are trusted, what either vouches for is
// accepted; whoever has the present root alone takes nothing of the new one.
func (s *Server) RehearseRoot(now time.Time) error {
	rootKey, err := NewKey()
	if err != nil {
		return err
	}
	key, err := NewKey()
	if err != nil {
		return err
	}
	root, err := NewRoot(rootKey, now)
	if err != nil {
		return err
	}
	inter, err := NewIntermediate(root, rootKey, key, now)
	if err != nil {
		return err
	}
	next := &Server{Root: root, Intermediate: inter, Key: key, URL: s.URL, Now: s.Now, TrustDomain: s.TrustDomain, Roots: s.Trusted()}
	for _, side := range []*Server{s, next} {
		if err := side.Try(now, next.Trusted()...); err != nil {
			return fmt.Errorf("with both roots trusted: %w", err)
		}
	}
	if next.Try(now, s.Trusted()...) == nil {
		return errors.New("the present root alone would vouch for another root's certificates")
	}
	return nil
}
