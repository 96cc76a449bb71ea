// Package plane is the machine's way to the plane: short outbound HTTPS
// requests, each with a deadline on connecting, writing and answering (R17).
// It verifies with the roots it was given and nothing else, follows no
// redirect, and reads no more than a bounded answer.
//
// It turns whatever comes back into the closed vocabulary of refusals (R22):
// what is not exactly one of them is not believed, whatever its status says,
// since a captive portal answers too.
//
// The package knows nothing of files, schedules or what a refusal leads to.
package plane

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"fleet.example/fleet/agentd/credential"
	"fleet.example/fleet/core/wire"
)

// Deadlines of one request.
const (
	connectTimeout = 10 * time.Second
	writeTimeout   = 10 * time.Second
	answerTimeout  = 15 * time.Second
	totalTimeout   = 30 * time.Second

	maxRetryAfter = time.Hour
)

// Client talks to one plane. It is safe for concurrent use.
type Client struct {
	base  string
	gate  string
	roots *x509.CertPool // nil: the system's
	http  *http.Client
	// source is what is presented at the next handshake, nil where the bearer
	// speaks for the machine; shown what was at the last.
	source func() *tls.Certificate
	shown  atomic.Pointer[tls.Certificate]
}

// New makes a client that trusts p's roots alone.
func New(p credential.Plane, gate *wire.CredentialGate) (*Client, error) {
	tr, err := transport(p)
	if err != nil {
		return nil, err
	}
	c := Over(tr, p, gate)
	c.roots = tr.TLSClientConfig.RootCAs
	return c, nil
}

// Mutual makes a client for where certificates are accepted. Each handshake
// presents what source returns then; a connection that was opened with another
// certificate is not used again.
func Mutual(p credential.Plane, gate *wire.CredentialGate, url string, source func() *tls.Certificate) (*Client, error) {
	tr, err := transport(p)
	if err != nil {
		return nil, err
	}
	p.URL = url
	c := Over(tr, p, gate)
	c.source, c.roots = source, tr.TLSClientConfig.RootCAs
	tr.TLSClientConfig.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) {
		cert := source()
		if cert == nil {
			return nil, errors.New("there is no certificate to present")
		}
		c.shown.Store(cert)
		return cert, nil
	}
	return c, nil
}

func transport(p credential.Plane) (*http.Transport, error) {
	var roots *x509.CertPool // nil: the system's
	if p.RootsPEM != "system" {
		roots = x509.NewCertPool()
		if !roots.AppendCertsFromPEM([]byte(p.RootsPEM)) {
			return nil, errors.New("the plane's roots hold no certificate")
		}
	}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment,
		DialContext:            dial,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS13, RootCAs: roots},
		TLSHandshakeTimeout:    connectTimeout,
		ResponseHeaderTimeout:  answerTimeout,
		MaxIdleConns:           2,
		MaxIdleConnsPerHost:    1,
		MaxConnsPerHost:        2,
		MaxResponseHeaderBytes: 16 << 10,
		WriteBufferSize:        2 << 10,
		ReadBufferSize:         2 << 10,
		DisableCompression:     true,
	}, nil
}

// Over makes a client over a transport that is given, in place of HTTPS with
// p's roots.
func Over(tr http.RoundTripper, p credential.Plane, gate *wire.CredentialGate) *Client {
	c := &Client{base: strings.TrimRight(p.URL, "/"), http: &http.Client{
		Transport:     tr,
		Timeout:       totalTimeout,
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}}
	if gate != nil {
		c.gate = gate.Value
	}
	return c
}

// deadlineConn bounds every write; net/http bounds the rest.
type deadlineConn struct{ net.Conn }

func (c deadlineConn) Write(b []byte) (int, error) {
	c.SetWriteDeadline(time.Now().Add(writeTimeout))
	return c.Conn.Write(b)
}

func dial(ctx context.Context, network, addr string) (net.Conn, error) {
	// No keepalive probes: the next check notices a dead connection, and a
	// laptop need not be woken for it.
	d := net.Dialer{Timeout: connectTimeout, KeepAliveConfig: net.KeepAliveConfig{Enable: false}, KeepAlive: -1}
	c, err := d.DialContext(ctx, network, addr)
	if err != nil {
		return nil, err
	}
	return deadlineConn{c}, nil
}

// Close drops the kept connection.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Refusal is an answer that is not a success.
type Refusal struct {
	// Code is wire.CodeUnauthorized, CodeBehind, CodeRevoked or CodeBusy, or
	// empty: then nothing is to be concluded but that it did not work.
	Code       string
	Status     int
	Machine    string // with CodeRevoked: which one, as the answer says
	RetryAfter time.Duration
	Message    string
	// Want is the version of each kind of material that is given, where another
	// was asked for.
	Want map[string]int64
	none bool // the plane says that there is no such thing
}

func (r *Refusal) Error() string {
	if r.Code != "" {
		return "the plane answers " + r.Code
	}
	return r.Message
}

// Behind reports a refusal of a superseded credential.
func (r *Refusal) Behind() bool { return r.Code == wire.CodeBehind }

// Check makes one check.
func (c *Client) Check(ctx context.Context, cred credential.Credential, mark wire.CheckMark, body []byte) (*wire.CheckAnswer, error) {
	var answer wire.CheckAnswer
	if err := c.post(ctx, wire.PathCheck, cred, mark.String(), body, &answer); err != nil {
		return nil, err
	}
	if err := checkAnswer(&answer, cred.Machine); err != nil {
		return nil, err
	}
	return &answer, nil
}

// checkAnswer refuses an answer that is not for this machine, and smooths what
// only advises.
func checkAnswer(a *wire.CheckAnswer, machine string) error {
	if a.Machine != machine {
		return &Refusal{Status: http.StatusOK, Message: "the answer does not name this machine"}
	}
	for _, v := range []*float64{&a.IntervalS, &a.MinGapS, &a.TestFloorS} {
		if math.IsNaN(*v) || *v < 0 || *v > 30*24*3600 {
			*v = 0
		}
	}
	if _, err := wire.ParseCheckMark("instance=x; seq=1; mark=" + a.Mark); err != nil {
		a.Mark = ""
	}
	return nil
}

// Rotate sends the digest of the next generation, presenting cred.
func (c *Client) Rotate(ctx context.Context, cred credential.Credential, req wire.RotateRequest) error {
	body, err := json.Marshal(req)
	if err != nil {
		return err
	}
	var answer wire.RotateAnswer
	if err := c.post(ctx, wire.PathRotate, cred, "", body, &answer); err != nil {
		return err
	}
	if answer.Machine != cred.Machine || answer.Generation != req.Generation {
		return &Refusal{Status: http.StatusOK, Message: "the answer confirms another rotation"}
	}
	return nil
}

// Material brings one version of something that the plane distributes. Where it
// gives another version by now, want is that one's number.
func (c *Client) Material(ctx context.Context, cred credential.Credential, kind string, version int64) (m *wire.Material, want int64, err error) {
	m = &wire.Material{}
	err = c.do(ctx, http.MethodGet, wire.PathMaterial+"/"+kind+"/"+strconv.FormatInt(version, 10), cred, "", nil, m)
	var r *Refusal
	switch {
	case errors.As(err, &r) && r.none:
		return nil, r.Want[kind], nil
	case err != nil:
		return nil, 0, err
	case m.Kind != kind || m.Version != version:
		return nil, 0, &Refusal{Status: http.StatusOK, Message: "the answer is other material than was asked for"}
	}
	return m, 0, nil
}

// Certify asks for a certificate, presenting cred.
func (c *Client) Certify(ctx context.Context, cred credential.Credential, req wire.CertificateRequest) (*wire.CertificateAnswer, error) {
	body, err := json.Marshal(req)
	if err != nil {
		return nil, err
	}
	var answer wire.CertificateAnswer
	if err := c.post(ctx, wire.PathCertificate, cred, "", body, &answer); err != nil {
		return nil, err
	}
	if answer.Machine != cred.Machine {
		return nil, &Refusal{Status: http.StatusOK, Message: "the answer does not name this machine"}
	}
	return &answer, nil
}

// Reach opens a connection and asks whether the plane is there, which changes
// nothing.
func (c *Client) Reach(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.base+wire.PathHealthz, nil)
	if err != nil {
		return err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return c.explain(err)
	}
	defer resp.Body.Close()
	io.Copy(io.Discard, io.LimitReader(resp.Body, wire.MaxAnswer))
	if resp.StatusCode != http.StatusOK {
		return refusal(resp.StatusCode, "", nil)
	}
	return nil
}

func (c *Client) post(ctx context.Context, path string, cred credential.Credential, mark string, body []byte, into any) error {
	return c.do(ctx, http.MethodPost, path, cred, mark, body, into)
}

func (c *Client) do(ctx context.Context, method, path string, cred credential.Credential, mark string, body []byte, into any) error {
	req, err := http.NewRequestWithContext(ctx, method, c.base+path, bytes.NewReader(body))
	if err != nil {
		return err
	}
	// Over a certificate the bearer is sent where it is wanted as well, alone.
	if c.source == nil || path == wire.PathCertificate {
		req.Header.Set("Authorization", "Bearer "+cred.Machine+"."+cred.Secret.Reveal())
	}
	if c.source != nil && c.shown.Load() != c.source() {
		c.Close()
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "fleet-agent")
	if mark != "" {
		req.Header.Set(wire.HeaderCheck, mark)
	}
	if c.gate != "" {
		req.Header.Set(wire.HeaderGate, c.gate)
	}
	// All requests may be repeated, so a kept connection that turns out to be
	// closed is replaced at once. The name alone says so; nothing is sent.
	req.Header["X-Idempotency-Key"] = nil
	resp, err := c.http.Do(req)
	if err != nil {
		c.Close() // a connection that failed is not used again (R17)
		return c.explain(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(io.LimitReader(resp.Body, wire.MaxAnswer+1))
	if err == nil && len(b) > wire.MaxAnswer {
		err = &Refusal{Status: resp.StatusCode, Message: "the answer is too long"}
	}
	if err != nil {
		c.Close()
		return c.explain(err)
	}
	if resp.StatusCode == http.StatusOK {
		if err := json.Unmarshal(b, into); err != nil {
			return &Refusal{Status: resp.StatusCode, Message: "the answer is not the plane's: not the expected JSON"}
		}
		return nil
	}
	return refusal(resp.StatusCode, resp.Header.Get("Retry-After"), b)
}

// refusal reads an answer that is no success. Status and code must agree.
func refusal(status int, retryAfter string, body []byte) *Refusal {
	r := &Refusal{Status: status, Message: "the plane answers with status " + strconv.Itoa(status)}
	if s, err := strconv.ParseFloat(strings.TrimSpace(retryAfter), 64); err == nil && s > 0 && !math.IsInf(s, 0) {
		r.RetryAfter = time.Duration(min(s, maxRetryAfter.Seconds()) * float64(time.Second))
	}
	var doc wire.Error
	if json.Unmarshal(body, &doc) != nil || doc.Error.Code == "" {
		r.Message = fmt.Sprintf("an answer with status %d that is not the plane's; a captive portal or a proxy may stand between", status)
		if status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests {
			r.Code = wire.CodeBusy
		}
		return r
	}
	agreed := map[string]int{wire.CodeUnauthorized: 401, wire.CodeBehind: 409, wire.CodeRevoked: 410}
	switch code := doc.Error.Code; {
	case code == wire.CodeNotFound && status == http.StatusNotFound:
		r.none, r.Want = true, doc.Error.Want
	case agreed[code] == status:
		r.Code, r.Machine = code, doc.Error.Machine
	case status == http.StatusServiceUnavailable || status == http.StatusTooManyRequests:
		r.Code = wire.CodeBusy
	}
	return r
}

// explain puts the commonest failures into words that say what to look at.
func (c *Client) explain(err error) error {
	var expired x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	var name x509.HostnameError
	switch {
	case errors.As(err, &expired) && expired.Reason == x509.Expired:
		if off := c.clockError(err, time.Now()); off != nil {
			return off
		}
		return fmt.Errorf("what answers is not the plane: its certificate is not from the plane's roots, nor valid now (%w)", err)
	case errors.As(err, &unknown):
		return fmt.Errorf("what answers is not the plane: its certificate is not from the plane's roots (%w)", err)
	case errors.As(err, &name):
		return fmt.Errorf("what answers is not the plane: its certificate is for another name (%w)", err)
	}
	return err
}
