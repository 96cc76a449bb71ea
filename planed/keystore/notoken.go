//go:build !cgo || !pkcs11

package keystore

import (
	"context"
	"crypto"

	"fleet.example/fleet/core/fault"
)

func fromToken(context.Context, string, bool) (crypto.Signer, error) {
	return nil, fault.New(fault.Failure, "pkcs11_unsupported", "this planed was built without PKCS #11 and opens no key in a token").
		WithHint("make planed-pkcs11 builds one that does")
}
