// Package credential keeps a machine's secret on disk through rotation, crash,
// full disk and lost answers.
//
// Invariant: at every instant the disk holds a credential that the plane
// accepts, if it ever did.
//
// Files, each 0600 and replaced only by rename: credential (generation n),
// credential.next (n+1, while a rotation is under way), credential.previous
// (n-1). Each names its machine and generation and carries the digest of its
// secret, so a torn or altered file is recognised and never used. It is never
// discarded either: when its name is needed it is moved aside to NAME.damaged.
//
// A rotation goes through these steps. After each the invariant holds:
//
//  1. n+1 is made, staged, synced, renamed to credential.next, the directory
//     synced, the file read back. The plane has not heard of it. A crash
//     leaves next absent or whole; n is untouched and accepted. If next is
//     there already, its secret is used again: a repeated request is the same
//     request.
//  2. Only the digest of n+1 is sent, presenting n. Whether or not the plane
//     heard, whether or not the answer came back, it accepts n until n+1 is
//     used.
//  3. n+1 is presented. If it is refused, n is, one an interval. First use
//     makes the plane supersede n; n+1 is on disk since step 1.
//  4. After success credential.previous becomes n (a link, so that a full disk
//     is no obstacle), then credential.next is renamed over credential. Between
//     the two n+1 still stands under next. A crash before, between or after
//     leaves n+1 under one of the two names.
//
// A rotation that the plane asked for is answered by using the generation that
// was made for it. The request's value stands in the file of the secret, so
// that every check that presents it says which request it answers, also the
// one that promotes it, after a restart, and to a plane that was restored from
// a backup. A generation that was staged before the request came answers
// nothing: it is promoted, and another one is made (R16).
//
// Before each step the files are read again, under a lock that every process
// that changes them takes. Where two agentd serve one directory (the lock of
// the service could not be had), what one staged is the other's next
// generation too, and is never replaced: only a next that is damaged is, and a
// damaged one was never sent, since it is read back before. A file that cannot
// be read says nothing against the memory of one that works, and nothing is moved
// or written as long as there is one. The credential in
// use, or the staged one, that has gone from the disk of a running agentd is
// written back, unless an install put another in its place.
//
// credential.previous changes only in step 4, when n+1 has been proven: so n-1
// is given up when its successor's successor works. A plane restored from a
// backup that is one generation old knows the credential under previous. The
// machine, refused with the others, finds that out and sends the digest of the
// later one again.
//
// A write that does not succeed changes nothing that is used, and is reported
// (Problem). The package never drops a credential because of what a plane
// answers.
//
// The package also keeps where the plane is and what vouches for it, which a
// person's signed statement may change: see move.go, which argues it, and the
// gate token: see gate.go.
//
// Methods that the check loop calls (Present, Accepted, Refused) touch memory
// only; whatever touches the disk or the network is in Advance, Install and
// Reload, so a slow disk never delays a check (R17).
package credential
