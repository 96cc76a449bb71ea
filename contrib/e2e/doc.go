// Package e2e holds the tests of the real programs on real hosts: fleet and
// planed here, agentd on machines with their own systemd and sshd behind NAT.
// Where the lab cannot run they say so; with FLEET_LAB=required that fails.
//
// It is the one place that may know every part, and none of its inside: it
// speaks to the programs as people and scripts do.
package e2e
