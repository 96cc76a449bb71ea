package plane

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"time"
)

// ClockError says that what answers has the plane's certificate, and that this
// machine's clock stands outside of the time that it is valid for. It is no
// reason to doubt anything but a clock (R22, R27).
type ClockError struct {
	// Off is by how much this clock is out at least: ahead when positive.
	Off                 time.Duration
	NotBefore, NotAfter time.Time
}

func (e *ClockError) Error() string {
	if e.Off < 0 {
		return fmt.Sprintf("the plane's certificate is valid from %s only: this machine's clock is at least %s behind, or the plane's is ahead",
			e.NotBefore.UTC().Format(time.RFC3339), words(-e.Off))
	}
	return fmt.Sprintf("the plane's certificate was valid until %s: this machine's clock is at least %s ahead, or nobody renewed the certificate",
		e.NotAfter.UTC().Format(time.RFC3339), words(e.Off))
}

// words are a duration at the grain that matters to a person.
func words(d time.Duration) string {
	const day = 24 * time.Hour
	switch {
	case d >= 2*365*day:
		return fmt.Sprintf("%d years", d/(365*day))
	case d >= 2*day:
		return fmt.Sprintf("%d days", d/day)
	}
	return d.Round(time.Second).String()
}

// clockError is what is left of a failed verification when only the clock is in
// its way: the chain that was presented leads to the plane's roots, and is for
// its name, at some time that is not now. Anything else is nil, so that the
// certificate of a captive portal that ran out is not taken for the plane's.
func (c *Client) clockError(err error, now time.Time) *ClockError {
	var failed *tls.CertificateVerificationError
	if !errors.As(err, &failed) || len(failed.UnverifiedCertificates) == 0 {
		return nil
	}
	u, perr := url.Parse(c.base)
	if perr != nil {
		return nil
	}
	certs := failed.UnverifiedCertificates
	off := &ClockError{NotBefore: certs[0].NotBefore, NotAfter: certs[0].NotAfter}
	opts := x509.VerifyOptions{Roots: c.roots, DNSName: u.Hostname(), Intermediates: x509.NewCertPool()}
	for _, cert := range certs[1:] {
		opts.Intermediates.AddCert(cert)
		if cert.NotBefore.After(off.NotBefore) {
			off.NotBefore = cert.NotBefore
		}
		if cert.NotAfter.Before(off.NotAfter) {
			off.NotAfter = cert.NotAfter
		}
	}
	switch {
	case now.Before(off.NotBefore):
		off.Off = now.Sub(off.NotBefore)
	case now.After(off.NotAfter):
		off.Off = now.Sub(off.NotAfter)
	default:
		return nil
	}
	for _, at := range []time.Time{off.NotBefore, off.NotAfter} {
		opts.CurrentTime = at
		if _, err := certs[0].Verify(opts); err == nil {
			return off
		}
	}
	return nil
}
