package muxserver

import (
	"testing"
	"testing/synctest"
	"time"
)

func TestSleepIsSeenByTheWallClock(t *testing.T) { // R32
	synctest.Test(t, func(t *testing.T) {
		var jump time.Duration
		c := clocks{wall: func() time.Time { return time.Now().Add(jump).Round(0) }}
		for _, step := range []struct {
			what  string
			jump  time.Duration
			slept bool
		}{
			{"the first look", 0, false}, {"a quiet tick", 0, false}, {"a clock that is set a little", 3 * time.Second, false},
			{"an hour's sleep", time.Hour, true}, {"the tick after it", 0, false}, {"a clock that is set back", -time.Hour, false},
			{"a short sleep", 11 * time.Second, true},
		} {
			time.Sleep(tickEvery)
			jump += step.jump
			if got := c.slept(); got != step.slept {
				t.Errorf("%s counts as a sleep: %v", step.what, got)
			}
		}
	})
}
