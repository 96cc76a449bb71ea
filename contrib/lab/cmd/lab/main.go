//go:build linux

// Command lab brings a lab of real hosts up and takes it down; see package labcmd.
package main

import (
	"os"

	"fleet.example/fleet/contrib/lab/labcmd"
)

func main() { os.Exit(labcmd.Main(os.Args[1:], os.Stdout, os.Stderr)) }
