//go:build linux

package lab

import (
	"context"
	"fmt"
	"time"
)

const pollEvery = 10 * time.Millisecond

// Poll calls try until it returns nil, and gives up with try's last error when the context ends.
func Poll(ctx context.Context, try func() error) error {
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := try()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%w (%v)", err, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
