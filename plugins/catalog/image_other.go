//go:build !linux

package catalog

import (
	"errors"
	"io"
)

func anonymousImage(io.Reader, string) (*image, error) { return nil, errors.ErrUnsupported }
