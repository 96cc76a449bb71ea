package sshconn

import (
	"encoding/binary"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/hostkey"
)

// hostKeysRequest is how a server says which host keys it has (OpenSSH's
// PROTOCOL, section 2.5).
const hostKeysRequest = "hostkeys-00@openssh.com"

// maxAnnounced bounds how many keys of one announcement are looked at.
const maxAnnounced = 64

// announced passes a server's global requests on and says, under -v, which
// other keys it has than the one it presented. Nothing is pinned by that: a key
// counts once a person confirmed it (R2).
func (c *Conn) announced(in <-chan *ssh.Request) <-chan *ssh.Request {
	out := make(chan *ssh.Request)
	go func() { // ends with in, which the connection closes
		defer close(out)
		for r := range in {
			if r.Type == hostKeysRequest {
				for _, k := range announcedKeys(r.Payload) {
					if string(k.Marshal()) != string(hostkey.Plain(c.Key).Marshal()) {
						c.notef("%s announces another host key: %s; it is not pinned (fleet trust pins one)", c.Place, hostkey.Describe(k))
					}
				}
			}
			out <- r
		}
	}()
	return out
}

// announcedKeys are the keys of an announcement. One of a kind that is not known
// here is skipped; what is cut short ends the list.
func announcedKeys(payload []byte) (keys []ssh.PublicKey) {
	for range maxAnnounced {
		if len(payload) < 4 {
			return keys
		}
		n := binary.BigEndian.Uint32(payload)
		payload = payload[4:]
		if uint64(n) > uint64(len(payload)) {
			return keys
		}
		if k, err := ssh.ParsePublicKey(payload[:n]); err == nil {
			keys = append(keys, k)
		}
		payload = payload[n:]
	}
	return keys
}
