package route

import (
	"context"
	"errors"
	"strings"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/sshconfig"
)

// A transport's words are not the person's: whatever it says of the target,
// whose SSH is spoken elsewhere, is an error that names it, and no more.
func TestWhatATransportSaysOfTheTargetIsReported(t *testing.T) {
	for _, reason := range []string{
		"Permission denied (publickey)",
		"Too many authentication failures",
		"administratively prohibited",
		"the proxy command ended: exit status 1",
	} {
		h, err := newHost(&Way{Chain: &sshconfig.Chain{Target: &sshconfig.Config{User: "dana", HostName: "box", Port: 22, ProxyCommand: "nc box 22"}}})
		if err != nil {
			t.Fatal(err)
		}
		h.Lost(context.Background(), targetID, reason)
		f := fault.Of(h.explain(context.Background(), errors.New("no stream")))
		if f.Exit != fault.Unreachable || !strings.Contains(f.Msg, reason) || !strings.Contains(f.Msg, "proxy command") {
			t.Errorf("%s: %d %s", reason, f.Exit, f.Msg)
		}
	}
}
