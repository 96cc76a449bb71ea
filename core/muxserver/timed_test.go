package muxserver

import (
	"errors"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"
)

// undated is a stream on which deadlines do nothing, as on an SSH channel.
type undated struct{ net.Conn }

func (undated) SetDeadline(time.Time) error      { return errors.New("no deadlines") }
func (undated) SetReadDeadline(time.Time) error  { return errors.New("no deadlines") }
func (undated) SetWriteDeadline(time.Time) error { return errors.New("no deadlines") }

func timedPair() (*timed, net.Conn) {
	near, far := net.Pipe()
	return newTimed(undated{near}), far
}

func TestAReadEndsAtItsDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := timedPair()
		defer far.Close()
		began := time.Now()
		for range 3 { // each read has its own time, and what comes in time is read
			c.SetReadDeadline(time.Now().Add(time.Minute))
			go func() {
				time.Sleep(50 * time.Second)
				far.Write([]byte("x"))
			}()
			if n, err := c.Read(make([]byte, 4)); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		c.SetReadDeadline(time.Now().Add(time.Minute))
		if _, err := c.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		if took := time.Since(began); took != 210*time.Second {
			t.Errorf("it took %v", took)
		}
	})
}

// A deadline that passes while nothing is under way ends nothing, and one that
// is brought forward holds.
func TestADeadlineIsForWhatIsUnderWay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c, far := timedPair()
		defer far.Close()
		c.SetDeadline(time.Now().Add(time.Second))
		time.Sleep(time.Minute)
		if _, err := c.Read(make([]byte, 4)); !errors.Is(err, os.ErrDeadlineExceeded) {
			t.Error(err)
		}
		c.SetDeadline(time.Time{})
		go far.Write([]byte("x"))
		if n, err := c.Read(make([]byte, 4)); n != 1 || err != nil {
			t.Fatal(n, err)
		}
		c.SetWriteDeadline(time.Now().Add(time.Hour))
		ended := make(chan error)
		began := time.Now()
		go func() {
			_, err := c.Write([]byte("nobody reads"))
			ended <- err
		}()
		synctest.Wait()
		c.SetWriteDeadline(time.Unix(1, 0))
		if err := <-ended; !errors.Is(err, os.ErrDeadlineExceeded) || time.Since(began) != 0 {
			t.Error(err, time.Since(began))
		}
	})
}
