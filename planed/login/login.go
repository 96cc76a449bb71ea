// Package login verifies that whoever logs in holds an SSH key: the nonces it
// signs, the signature itself, and how many failures one source may have.
//
// # Nonces
//
// A nonce is time, randomness and a keyed hash of both, so that handing one
// out costs nothing and asking for a million fills nothing. It is good for two
// minutes and for one verified signature: what is remembered is what has been
// used, and only a valid signature uses one up. The key lives as long as the
// process.
//
// # Sources
//
// Failures are counted by a keyed hash of the source, in memory, for ten
// minutes (R18). No address is kept, logged or returned.
//
// The package must not know who a key belongs to.
package login

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hiddeco/sshsig"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/wire"
)

// NonceLife is how long a nonce may be signed.
const NonceLife = 2 * time.Minute

const (
	maxUsed      = 16384
	maxKey       = 16 << 10
	maxSignature = 32 << 10
	minRSABits   = 2048
)

// Errors of Verify. They reach a person, and say nothing about who is known.
var (
	ErrNonce     = errors.New("the challenge is unknown, expired or used already")
	ErrKey       = errors.New("the public key cannot be used to log in")
	ErrSignature = errors.New("the signature is not valid")
	ErrFull      = errors.New("too many logins at once")
	ErrNoTouch   = errors.New("the signature is not by a security key that was touched")
)

// Verifier hands out nonces and verifies what was signed over them.
type Verifier struct {
	URL string // the plane's own: a signature made for another plane is refused
	// URLs are all that are or were the plane's own, where it moved; nil: URL alone.
	URLs func() []string
	Now  func() time.Time

	once sync.Once
	key  [32]byte
	mu   sync.Mutex
	used map[[24]byte]time.Time // nonce → when it would have expired
}

func (v *Verifier) init() {
	v.once.Do(func() {
		rand.Read(v.key[:])
		v.used = map[[24]byte]time.Time{}
	})
}

func (v *Verifier) mac(head []byte) []byte {
	h := hmac.New(sha256.New, v.key[:])
	h.Write(head)
	return h.Sum(nil)[:16]
}

// Challenge returns a fresh nonce.
func (v *Verifier) Challenge() wire.ChallengeAnswer {
	v.init()
	now := v.Now()
	head := binary.BigEndian.AppendUint64(make([]byte, 0, 40), uint64(now.UnixMilli()))
	head = head[:24]
	rand.Read(head[8:])
	nonce := append(head, v.mac(head)...)
	return wire.ChallengeAnswer{
		Nonce:     base64.RawURLEncoding.EncodeToString(nonce),
		ExpiresAt: wire.Time{Time: now.Add(NonceLife)},
	}
}

// Key is the key that signed.
type Key struct {
	Fingerprint string // SHA256:…
	Authorized  string // authorized_keys form, without comment
}

// Verify checks a login's nonce and signature and uses the nonce up.
func (v *Verifier) Verify(r wire.LoginRequest) (Key, error) {
	// The message names our URL whatever the request says, so a signature that
	// was made for another plane does not verify here (R37).
	return v.verify(r.Nonce, r.PublicKey, r.Signature, wire.LoginMessage(r.Nonce, v.own(r.URL)), wire.NamespaceLogin, false)
}

// Touch checks that a security key was touched for one admission: its
// signature over the subject, with the user-presence bit, which the key's
// hardware signs. It uses the nonce up.
func (v *Verifier) Touch(t wire.Touch, subject string) (Key, error) {
	urls := []string{v.URL}
	if v.URLs != nil {
		urls = v.URLs()
	}
	var k Key
	err := ErrSignature
	for _, url := range urls {
		k, err = v.verify(t.Nonce, t.PublicKey, t.Signature, wire.AdmitMessage(t.Nonce, url, subject), wire.NamespaceAdmit, true)
		if !errors.Is(err, ErrSignature) {
			break
		}
	}
	return k, err
}

// own is the URL that was dialled if it is one of ours, else ours.
func (v *Verifier) own(dialled string) string {
	if v.URLs != nil && slices.Contains(v.URLs(), dialled) {
		return dialled
	}
	return v.URL
}

func (v *Verifier) verify(nonce, publicKey, signature string, msg []byte, namespace string, touch bool) (Key, error) {
	v.init()
	head, expires, err := v.open(nonce)
	if err != nil {
		return Key{}, err
	}
	pub, err := parseKey(publicKey)
	if err != nil {
		return Key{}, err
	}
	if len(signature) > maxSignature {
		return Key{}, ErrSignature
	}
	sig, err := sshsig.Unarmor([]byte(signature))
	if err != nil {
		return Key{}, ErrSignature
	}
	if err := sshsig.Verify(bytes.NewReader(msg), sig, pub, sig.HashAlgorithm, namespace); err != nil {
		return Key{}, ErrSignature
	}
	if touch && !touched(pub, sig.Signature) {
		return Key{}, ErrNoTouch
	}
	if err := v.use(head, expires); err != nil {
		return Key{}, err
	}
	return keyOf(pub), nil
}

// touched reports whether a security key made the signature while somebody
// touched it: flags and counter follow the signature, and are covered by it
// (OpenSSH's PROTOCOL.u2f).
func touched(pub ssh.PublicKey, sig *ssh.Signature) bool {
	const userPresence = 1
	if t := pub.Type(); t != ssh.KeyAlgoSKED25519 && t != ssh.KeyAlgoSKECDSA256 {
		return false
	}
	return len(sig.Rest) == 5 && sig.Rest[0]&userPresence != 0
}

// Signer verifies an armored signature over a message, in a namespace, and
// returns the fingerprint of the key that made it.
func Signer(namespace, message, signature string) (fingerprint string, err error) {
	if len(signature) > maxSignature {
		return "", ErrSignature
	}
	sig, err := sshsig.Unarmor([]byte(signature))
	if err != nil {
		return "", ErrSignature
	}
	pub, err := parseKey(string(ssh.MarshalAuthorizedKey(sig.PublicKey)))
	if err != nil {
		return "", err
	}
	if err := sshsig.Verify(strings.NewReader(message), sig, pub, sig.HashAlgorithm, namespace); err != nil {
		return "", ErrSignature
	}
	return ssh.FingerprintSHA256(pub), nil
}

func keyOf(pub ssh.PublicKey) Key {
	return Key{
		Fingerprint: ssh.FingerprintSHA256(pub),
		Authorized:  string(bytes.TrimSpace(ssh.MarshalAuthorizedKey(pub))),
	}
}

// ParseKey takes a key that a person may log in with.
func ParseKey(authorized string) (Key, error) {
	pub, err := parseKey(authorized)
	if err != nil {
		return Key{}, err
	}
	return keyOf(pub), nil
}

func (v *Verifier) open(nonce string) (head [24]byte, expires time.Time, err error) {
	if len(nonce) != base64.RawURLEncoding.EncodedLen(40) {
		return head, expires, ErrNonce
	}
	raw, err := base64.RawURLEncoding.Strict().DecodeString(nonce)
	if err != nil || !hmac.Equal(raw[24:], v.mac(raw[:24])) {
		return head, expires, ErrNonce
	}
	copy(head[:], raw)
	made := time.UnixMilli(int64(binary.BigEndian.Uint64(raw)))
	expires = made.Add(NonceLife)
	if now := v.Now(); !now.Before(expires) || made.After(now.Add(time.Minute)) {
		return head, expires, ErrNonce
	}
	return head, expires, nil
}

func (v *Verifier) use(head [24]byte, expires time.Time) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	if _, ok := v.used[head]; ok {
		return ErrNonce
	}
	if len(v.used) >= maxUsed {
		now := v.Now()
		for h, at := range v.used {
			if !now.Before(at) {
				delete(v.used, h)
			}
		}
		if len(v.used) >= maxUsed {
			return ErrFull
		}
	}
	v.used[head] = expires
	return nil
}

// parseKey takes ed25519, ECDSA, RSA and their security-key forms; no DSA, no
// short RSA, no certificate.
func parseKey(s string) (ssh.PublicKey, error) {
	if len(s) > maxKey {
		return nil, ErrKey
	}
	pub, _, options, rest, err := ssh.ParseAuthorizedKey([]byte(s))
	if err != nil || len(options) > 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, ErrKey
	}
	switch pub.Type() {
	case ssh.KeyAlgoED25519, ssh.KeyAlgoECDSA256, ssh.KeyAlgoECDSA384, ssh.KeyAlgoECDSA521,
		ssh.KeyAlgoSKED25519, ssh.KeyAlgoSKECDSA256:
		return pub, nil
	case ssh.KeyAlgoRSA:
		if bits, ok := rsaBits(pub); ok && bits >= minRSABits {
			return pub, nil
		}
	}
	return nil, ErrKey
}

// Limiter bounds the failures of one source.
type Limiter struct {
	Now  func() time.Time
	Most int // within ten minutes; 0 means 30

	once   sync.Once
	key    [32]byte
	mu     sync.Mutex
	window map[[16]byte]*failures
}

type failures struct {
	n     int
	since time.Time
}

const (
	// limitWindow is also how long a source's hash is kept (R18).
	limitWindow  = 10 * time.Minute
	limitPerHost = 30
	limitSources = 8192
)

func (l *Limiter) source(remote string) [16]byte {
	id := remote
	if ap, err := netip.ParseAddrPort(remote); err == nil {
		a := ap.Addr().Unmap()
		bits := 32
		if a.Is6() {
			bits = 64 // one household or host
		}
		if p, err := a.WithZone("").Prefix(bits); err == nil {
			id = p.String()
		}
	}
	return l.keyed(id)
}

// keyed is a digest by a key that no other process has.
func (l *Limiter) keyed(id string) [16]byte {
	l.once.Do(func() {
		rand.Read(l.key[:])
		l.window = map[[16]byte]*failures{}
	})
	h := hmac.New(sha256.New, l.key[:])
	h.Write([]byte(id))
	return [16]byte(h.Sum(nil)[:16])
}

// Network stands for the network that a source is of, a wider one than Allow
// counts by: whoever has one address of it can easily have others.
func (l *Limiter) Network(remote string) [16]byte {
	if ap, err := netip.ParseAddrPort(remote); err == nil {
		a := ap.Addr().Unmap()
		bits := 24
		if a.Is6() {
			bits = 48 // one site
		}
		if p, err := a.WithZone("").Prefix(bits); err == nil {
			remote = p.String()
		}
	}
	return l.keyed("network " + remote)
}

// Allow reports whether a source may try, and otherwise how long it must wait.
func (l *Limiter) Allow(remote string) (wait time.Duration, ok bool) {
	src := l.source(remote)
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.window[src]
	if f == nil {
		return 0, true
	}
	left := limitWindow - l.Now().Sub(f.since)
	if left <= 0 {
		delete(l.window, src)
		return 0, true
	}
	return left, f.n < cmp.Or(l.Most, limitPerHost)
}

// Fail counts a failure.
func (l *Limiter) Fail(remote string) {
	src := l.source(remote)
	now := l.Now()
	l.mu.Lock()
	defer l.mu.Unlock()
	f := l.window[src]
	if f == nil || now.Sub(f.since) >= limitWindow {
		if f == nil && len(l.window) >= limitSources {
			l.sweep(now)
		}
		f = &failures{since: now}
		l.window[src] = f
	}
	f.n++
}

// Sweep forgets sources whose window is over.
func (l *Limiter) Sweep() {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.Now()
	for s, f := range l.window {
		if now.Sub(f.since) >= limitWindow {
			delete(l.window, s)
		}
	}
}

// sweep makes room: first what is over, then, under an attack from many
// sources, anything.
func (l *Limiter) sweep(now time.Time) {
	for s, f := range l.window {
		if now.Sub(f.since) >= limitWindow {
			delete(l.window, s)
		}
	}
	for s := range l.window {
		if len(l.window) < limitSources {
			return
		}
		delete(l.window, s)
	}
}
