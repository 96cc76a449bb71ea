package login

import (
	"crypto/rsa"

	"golang.org/x/crypto/ssh"
)

func rsaBits(pub ssh.PublicKey) (int, bool) {
	c, ok := pub.(ssh.CryptoPublicKey)
	if !ok {
		return 0, false
	}
	k, ok := c.CryptoPublicKey().(*rsa.PublicKey)
	if !ok {
		return 0, false
	}
	return k.N.BitLen(), true
}
