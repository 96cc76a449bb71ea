// Package moving holds no code. Its tests move a plane to another URL and to
// another root, with the real programs on loopback: planed, agentd and fleet.
package moving
