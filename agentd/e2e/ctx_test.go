package e2e

import (
	"context"
	"testing"
)

type contextT = context.Context

func contextWithCancel(t *testing.T) (context.Context, context.CancelFunc) {
	c, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	return c, cancel
}
