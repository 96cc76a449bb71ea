// Command rotatebench measures how long a whole fleet takes to rotate: the
// real fleet rotate --all --wait against the real planed with its default
// intervals, and machines that are the real agent in one process. It prints one
// JSON document.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"fleet.example/fleet/contrib/swarm"
	"fleet.example/fleet/core/wire"
)

type result struct {
	Schema      string  `json:"schema"`
	Machines    int     `json:"machines"`
	IntervalS   float64 `json:"interval_s"`
	AskedS      float64 `json:"asked_s"`   // until a look every 5 s saw every request recorded
	RotatedS    float64 `json:"rotated_s"` // until fleet rotate --wait returned
	Exit        int     `json:"exit"`
	NotPresent  int     `json:"not_present"`      // machines that were not present at any look
	WidestGapS  float64 `json:"widest_gap_s"`     // between two answered checks of one machine, from before to after
	FailedCheck int64   `json:"failed_checks"`    // by network or plane
	PlaneCPUS   float64 `json:"plane_cpu_s"`      // user and system, while the fleet rotated
	StoreBytes  int64   `json:"store_bytes"`      // afterwards
	Generation  int64   `json:"least_generation"` // of all machines, afterwards: 3
	Most        int64   `json:"highest_generation"`
}

func main() {
	n := flag.Int("machines", 10_000, "machines")
	connections := flag.Int("connections", 64, "kept connections that they share")
	interval := flag.Duration("interval", 30*time.Second, "the plane's check interval")
	flag.Parse()
	r, err := measure(context.Background(), *n, *connections, *interval)
	if err != nil {
		log.Fatal(err)
	}
	enc := json.NewEncoder(os.Stdout)
	enc.SetIndent("", "  ")
	enc.Encode(r)
}

func measure(ctx context.Context, n, connections int, interval time.Duration) (*result, error) {
	dir, err := os.MkdirTemp("", "rotatebench-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	planed, err := swarm.Build(ctx, dir, "planed")
	if err != nil {
		return nil, err
	}
	if _, err := swarm.Build(ctx, dir, "fleet-front"); err != nil {
		return nil, err
	}
	fleet, err := swarm.Build(ctx, dir, "fleet")
	if err != nil {
		return nil, err
	}
	p, err := swarm.Prepare(ctx, planed, filepath.Join(dir, "data"), n, "--check-interval", interval.String())
	if err != nil {
		return nil, err
	}
	if err := p.Start(ctx); err != nil {
		return nil, err
	}
	defer p.Kill()
	env := []string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "FLEET_NO_MUX=1"}
	getenv := func(k string) string {
		for _, kv := range env {
			if v, ok := strings.CutPrefix(kv, k+"="); ok {
				return v
			}
		}
		return ""
	}
	if err := p.Login(ctx, getenv); err != nil {
		return nil, err
	}
	s, err := swarm.Run(p, connections, interval)
	if err != nil {
		return nil, err
	}
	defer s.Stop()
	client, err := p.Client()
	if err != nil {
		return nil, err
	}
	defer client.Close()
	// The first secret is rotated away by itself; then all is quiet.
	for settled := false; !settled; {
		time.Sleep(time.Second)
		list, err := client.Machines(ctx, wire.MachineFilter{})
		if err != nil {
			return nil, err
		}
		settled = true
		for _, m := range list.Machines {
			settled = settled && m.Credential.Generation == 2
		}
	}
	time.Sleep(interval / 2) // phases drift apart

	r := &result{Schema: "fleet.rotatebench/v1", Machines: n, IntervalS: interval.Seconds()}
	s.Mark()
	failed, cpu := s.Failed.Load(), cpuOf(p.PID())
	began := time.Now()
	cmd := exec.CommandContext(ctx, fleet, "rotate", "--all", "--wait", "--timeout", "10m", "--jsonl")
	cmd.Env, cmd.Stderr = env, os.Stderr
	done := make(chan error, 1)
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	go func() { done <- cmd.Wait() }()
	for r.RotatedS == 0 {
		select {
		case err := <-done:
			r.RotatedS = time.Since(began).Seconds()
			r.Exit = cmd.ProcessState.ExitCode()
			if err != nil {
				return nil, fmt.Errorf("fleet rotate: %w", err)
			}
		case <-time.After(5 * time.Second): // a look costs the plane some of what is measured
			list, err := client.Machines(ctx, wire.MachineFilter{})
			if err != nil {
				return nil, err
			}
			asked, absent := true, 0
			for _, m := range list.Machines {
				asked = asked && (m.Requests.Rotate != nil || m.Credential.Generation > 2)
				if m.Presence != wire.Present {
					absent++
				}
			}
			if asked && r.AskedS == 0 {
				r.AskedS = time.Since(began).Seconds()
			}
			r.NotPresent = max(r.NotPresent, absent)
		}
	}
	r.PlaneCPUS = (cpuOf(p.PID()) - cpu).Seconds()
	r.WidestGapS, r.FailedCheck = s.Widest().Seconds(), s.Failed.Load()-failed
	list, err := client.Machines(ctx, wire.MachineFilter{})
	if err != nil {
		return nil, err
	}
	for i, m := range list.Machines {
		if i == 0 {
			r.Generation = m.Credential.Generation
		}
		r.Generation, r.Most = min(r.Generation, m.Credential.Generation), max(r.Most, m.Credential.Generation)
	}
	if st, err := os.Stat(filepath.Join(dir, "data", "plane.db")); err == nil {
		r.StoreBytes = st.Size()
	}
	return r, nil
}

// cpuOf is a process's time so far, in ticks of 10 ms.
func cpuOf(pid int) time.Duration {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0
	}
	f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var user, system int64
	fmt.Sscan(f[11], &user)
	fmt.Sscan(f[12], &system)
	return time.Duration(user+system) * 10 * time.Millisecond
}
