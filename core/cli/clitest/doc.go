// Package clitest holds no code. Its tests type at the real fleet, against a
// real plane: the scripts under testdata/script read like a session. It also
// holds the front's list of passed-on commands against fleet-host's own; it may
// import both, as no program may.
package clitest
