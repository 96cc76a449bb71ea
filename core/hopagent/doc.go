// Package hopagent is an ssh-agent for one hop: what a transport plugin gets
// instead of keys. A private key never enters the plugin; a signature does, and
// only one that logs in to the hop that it is for.
//
// What holds, and why:
//
//   - What is to be signed is taken apart, and signed only if all of it is a
//     request for public key authentication (RFC 4252, section 7) of the hop's
//     own user for the service ssh-connection, with the very key that is to
//     sign. Anything else is refused, SSHSIG (a file's or a document's
//     signature) above all: its first bytes read as the length of a session
//     identifier that no message has room for.
//   - Only the keys that the hop's configuration offers are listed, and only
//     they sign. RSA signs with SHA-2 alone.
//   - Nothing is signed before the host has accepted the hop's key, whatever
//     the plugin does (R2). A request that names the host's key, as OpenSSH's
//     publickey-hostbound-v00@openssh.com does, must name the accepted one.
//   - Every other request of the agent protocol fails, adding a key as well as
//     removing one. Messages and connections are bounded, and every wait ends
//     with Close.
//
// The session identifier cannot be checked: only the two ends of the hop's
// connection know it. So a plugin can log in to the hop as the user it was
// started for, on a connection of its own, for as long as the agent is served;
// to no other host with another key behind it can it prove more than that.
//
// The package must not know where keys come from, nor plugins.
package hopagent
