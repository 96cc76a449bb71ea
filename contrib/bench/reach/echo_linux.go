package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"time"

	"github.com/creack/pty"
)

const (
	strokes = 501
	// strokeGap is for what a keystroke brings with it to be over, on both sides.
	strokeGap = 10 * time.Millisecond
)

// typist is a person at a terminal of this machine, in which a program runs that
// leads to a shell.
type typist struct {
	cmd *exec.Cmd
	tty *os.File
}

// echoes measures how soon a keystroke is seen, typed into both in turn.
func (b *bench) echoes(ctx context.Context, file, host string, rtt time.Duration) (err error) {
	var side [2]*typist
	for i, c := range []*exec.Cmd{b.cmd("ssh", "-F", file, "-tt", host), b.cmd("fleet", "shell", "box")} {
		tty, err := pty.StartWithSize(c, &pty.Winsize{Rows: 24, Cols: 80})
		if err != nil {
			return err
		}
		p := &typist{c, tty}
		side[i] = p
		stop := context.AfterFunc(ctx, func() { c.Process.Kill() })
		defer func() {
			stop()
			err = errors.Join(err, p.leave())
		}()
		if err := p.begin(); err != nil {
			return fmt.Errorf("%s: %w", c.Args[0], err)
		}
	}
	var took [2][]time.Duration
	for n := range strokes {
		for k := range side {
			i := (n + k) % 2
			time.Sleep(strokeGap)
			d, err := side[i].stroke()
			if err != nil {
				return fmt.Errorf("%s: %w", side[i].cmd.Args[0], err)
			}
			took[i] = append(took[i], d)
		}
	}
	at := fmt.Sprintf(" (round trip %v)", rtt)
	spread("a keystroke is echoed in ssh over a master"+at, took[0])
	spread("a keystroke is echoed in fleet shell"+at, took[1])
	return nil
}

// begin has the terminal over there echo, and nothing else come from it: how a
// shell edits its line is none of ours.
func (p *typist) begin() error {
	if _, err := p.tty.WriteString("exec sh -c 'echo be\"\"gun; exec cat >/dev/null'\r"); err != nil {
		return err
	}
	var seen []byte
	for buf := make([]byte, 4096); !bytes.Contains(seen, []byte("begun\r\n")); {
		n, err := p.tty.Read(buf)
		if err != nil {
			return fmt.Errorf("no shell: %w: %s", err, seen)
		}
		seen = append(seen, buf[:n]...)
	}
	return nil
}

func (p *typist) stroke() (time.Duration, error) {
	began := time.Now()
	if _, err := p.tty.Write([]byte{'x'}); err != nil {
		return 0, err
	}
	buf := make([]byte, 16)
	n, err := p.tty.Read(buf)
	took := time.Since(began)
	if err == nil && string(buf[:n]) != "x" {
		err = fmt.Errorf("%q came for a keystroke", buf[:n])
	}
	return took, err
}

// leave ends the line, and then the input, as a person does.
func (p *typist) leave() error {
	_, err := p.tty.WriteString("\r\x04")
	drained := make(chan struct{})
	go func() {
		defer close(drained)
		for buf := make([]byte, 4096); ; {
			if _, err := p.tty.Read(buf); err != nil {
				return
			}
		}
	}()
	err = errors.Join(err, p.cmd.Wait())
	p.tty.Close()
	<-drained
	return err
}
