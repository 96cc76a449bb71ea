//go:build cgo && pkcs11

package keystore

import (
	"context"
	"crypto"
	"fmt"

	"go.step.sm/crypto/kms/apiv1"
	"go.step.sm/crypto/kms/pkcs11"
)

// fromToken keeps the token's session open for as long as the program runs: the
// key is used until then.
func fromToken(ctx context.Context, uri string, create bool) (crypto.Signer, error) {
	k, err := pkcs11.New(ctx, apiv1.Options{Type: apiv1.PKCS11, URI: uri})
	if err != nil {
		return nil, fmt.Errorf("cannot open the token: %w", err)
	}
	s, err := k.CreateSigner(&apiv1.CreateSignerRequest{SigningKey: uri})
	if err != nil && create {
		if _, made := k.CreateKey(&apiv1.CreateKeyRequest{Name: uri, SignatureAlgorithm: apiv1.ECDSAWithSHA256}); made != nil {
			k.Close()
			return nil, fmt.Errorf("cannot make a key in the token: %w", made)
		}
		s, err = k.CreateSigner(&apiv1.CreateSignerRequest{SigningKey: uri})
	}
	if err != nil {
		k.Close()
		return nil, fmt.Errorf("cannot open the key in the token: %w", err)
	}
	return s, nil
}
