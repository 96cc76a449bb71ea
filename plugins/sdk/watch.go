package sdk

import (
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
)

// RunDirPrefix starts the base name of every launch's directory.
const RunDirPrefix = "fp"

// watchHost makes the plugin end with its host, however that ends.
//
// The host holds the other end of standard input and never writes there, so
// that end of file means that the host is gone. The plugin then removes the
// directory of its launch, with its own sockets and the host's, and ends its
// process group: a process that it started and lost ends too. SIGTERM, which
// Linux sends when the host's thread dies, means the same.
//
// The pipe is moved away from descriptor 0, which becomes /dev/null: nothing
// that the plugin runs can read it or keep it open.
func watchHost() error {
	fd, err := syscall.Dup(0)
	if err != nil {
		return fmt.Errorf("cannot keep standard input: %w", err)
	}
	syscall.CloseOnExec(fd)
	null, err := os.Open(os.DevNull)
	if err != nil {
		return err
	}
	defer null.Close()
	if err := dup2(int(null.Fd()), 0); err != nil {
		return fmt.Errorf("cannot replace standard input: %w", err)
	}
	if err := syscall.SetNonblock(fd, true); err != nil {
		return err
	}
	pipe := os.NewFile(uintptr(fd), "host")

	terms := make(chan os.Signal, 1)
	signal.Notify(terms, syscall.SIGTERM)
	gone := make(chan struct{})
	go func() { // ends with the process
		b := make([]byte, 64)
		for {
			if _, err := pipe.Read(b); err != nil {
				close(gone)
				return
			}
		}
	}()
	go func() { // ends the process
		select {
		case <-gone:
		case <-terms:
		}
		removeRunDir(os.Getenv(EnvRunDir))
		if syscall.Getpgrp() == os.Getpid() {
			_ = syscall.Kill(0, syscall.SIGKILL)
		}
		os.Exit(0)
	}()
	return nil
}

// removeRunDir removes the directory of this launch, and nothing that does not
// look like one.
func removeRunDir(dir string) {
	if filepath.IsAbs(dir) && strings.HasPrefix(filepath.Base(dir), RunDirPrefix) {
		_ = os.RemoveAll(dir) // nobody is left to tell
	}
}
