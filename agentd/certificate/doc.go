// Package certificate keeps the key and the certificates of a machine on the
// rung of mutual TLS (R27), through crash, full disk, lost answers, sleep and
// wrong clocks. The bearer secret beside it is package credential's.
//
// Invariant: a machine that the plane knows by a key holds that key on its
// disk, synced, and with the key and its bearer it can get a certificate at any
// time. An expired certificate is therefore an inconvenience and never a loss.
//
// Files, each 0600 and replaced only by rename: certificate (in use),
// certificate.next (while a new key is on its way), certificate.previous (the
// key before). Each holds the key and, once there is one, the certificate for
// it, so that neither is ever read without the other; each carries a digest of
// its content, so that a torn file is recognised and moved aside, not used.
//
// A new key goes through these steps. After each the invariant holds:
//
//  1. It is made, and certificate.next is staged, synced, renamed, the directory
//     synced, the file read back, without a certificate. The plane has not heard
//     of it. If there is a next key already, it is that one: it may have been
//     certified, or even used, by a request whose answer was lost, so it is never
//     replaced by another one.
//  2. It is sent to be certified. Whether or not the plane heard, it accepts
//     what it accepted before until a certificate for this key is used.
//  3. The answer is verified against the key and written with it, in one rename.
//     Only then is a connection opened with it. A connection is tried before a
//     check depends on it, so that a listener out of reach costs no check.
//  4. A check is made with it. First use makes the plane leave what it accepted
//     before; the key is on the disk since step 1.
//  5. certificate becomes certificate.previous, certificate.next becomes
//     certificate. A crash between the two leaves the key under next, where it is
//     looked for first.
//
// A certificate for the same key replaces the file in one rename, key included.
// Coming down, the plane accepts the next generation's bearer before it leaves
// the certificate; certificate is renamed to certificate.previous after a check
// by bearer was accepted, and kept for a plane that is restored to the time
// before.
//
// Expiry is judged by the plane's clock, as far as its offset is known, and is
// only ever a reason to ask for another certificate early: a machine whose clock
// is wrong presents what it has, is refused by the handshake, and asks. Whoever
// the files of another machine belong to, they are not presented: the id in the
// file must be the credential's.
//
// Methods for the check loop touch memory alone (R17).
package certificate
