//go:build !linux

package durable

import "os"

// CopyAttributes copies nothing where they are of another kind than linux's.
func CopyAttributes(_, _ *os.File) {}
