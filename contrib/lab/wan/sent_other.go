//go:build !linux

package wan

import (
	"net"
	"time"
)

// waitSent gives the bytes time to leave, where the system does not say whether they did.
func waitSent(_ *net.TCPConn, done <-chan struct{}) {
	timer := time.NewTimer(200 * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-done:
	}
}
