// Command loopback runs an SSH server on 127.0.0.1 as the present user until
// its standard input ends. It prints one line: user, port, the path of a key
// that may log in, and the server's host key.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"fleet.example/fleet/contrib/lab/loopback"
)

func main() {
	if err := run(os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "loopback:", err)
		os.Exit(1)
	}
}

func run(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	s, err := loopback.Start(ctx, loopback.Options{})
	if err != nil {
		return err
	}
	defer s.Close()
	fmt.Fprintln(out, s.User(), s.Port(), s.KeyPath(), s.HostKey())
	io.Copy(io.Discard, in)
	return nil
}
