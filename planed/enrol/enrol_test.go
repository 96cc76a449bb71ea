package enrol

import (
	"math"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/wire"
)

var start = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

// TestOddsOfGuessing has an attacker try codes as fast as they are let, for a
// day, and counts those within each hour: the package's figure is what that
// many are worth. // R7
func TestOddsOfGuessing(t *testing.T) {
	const claimed = 7.5e-8
	for _, pause := range []time.Duration{0, time.Millisecond, 7 * time.Second, 179 * time.Second, time.Hour - time.Nanosecond} {
		var g Guesses
		var tried []time.Time
		for now := start; now.Sub(start) < 24*time.Hour && len(tried) < 10000; {
			if wait := g.Blocked(now); wait > 0 {
				if wait > Window {
					t.Fatalf("a wait of %s", wait)
				}
				now = now.Add(wait)
				continue
			}
			g = g.Wrong(now)
			tried = append(tried, now)
			if len(g) > MaxWrong {
				t.Fatalf("%d guesses are kept", len(g))
			}
			now = now.Add(pause)
		}
		most := 0
		for i := range tried {
			n := 0
			for _, at := range tried[i:] {
				if at.Sub(tried[i]) < time.Hour {
					n++
				}
			}
			most = max(most, n)
		}
		odds := float64(most) * MaxPending / math.Pow(2, Bits)
		if most > MaxWrong || odds > claimed {
			t.Errorf("every %s: %d codes within an hour, odds %.2g", pause, most, odds)
		}
		t.Logf("every %s: at most %d codes within an hour, odds %.2g", pause, most, odds)
	}
}

func TestAClockThatIsSetBackForgivesNothing(t *testing.T) {
	var g Guesses
	for range MaxWrong {
		g = g.Wrong(start)
	}
	if g.Blocked(start.Add(-10*time.Minute)) <= 0 {
		t.Error("twenty wrong codes are forgotten")
	}
}

func TestCodesAreSpreadOverTheirAlphabet(t *testing.T) {
	seen, counts := map[string]bool{}, map[rune]int{}
	const n = 20000
	for range n {
		c := NewCode()
		if got, ok := wire.NormalCode(c); !ok || got != c || seen[c] {
			t.Fatal(c)
		}
		seen[c] = true
		for _, r := range c {
			counts[r]++
		}
	}
	if len(counts) != 32 {
		t.Fatalf("%d characters", len(counts))
	}
	for r, k := range counts {
		// 5000 expected, with a deviation of 70.
		if want := n * wire.CodeLength / 32; k < want-600 || k > want+600 {
			t.Errorf("%c stands %d times, %d expected", r, k, want)
		}
	}
}

func TestTypedCodesAreRead(t *testing.T) {
	for typed, want := range map[string]string{
		"ABCD-EFGH": "ABCDEFGH", "abcd efgh": "ABCDEFGH", " ab-cd-ef-gh\n": "ABCDEFGH", "oOiIlL00": "00111100",
		"ABCD-EFG": "", "ABCD-EFGHJ": "", "ABCD-EFGU": "", "ABCD.EFGH": "", "": "", "ÀBCDEFGH": "", strings.Repeat("-", 65): "", "--------": "",
	} {
		if got, ok := wire.NormalCode(typed); ok != (want != "") || ok && got != want {
			t.Errorf("%q: %q %v", typed, got, ok)
		}
	}
}

func TestWhatCannotBeACodeFitsNone(t *testing.T) {
	a, _, ok := Digest("ABCD-EFGU")
	b, normal, fine := Digest("abcdefgh")
	c, _, _ := Digest("ABCD EFGH")
	if ok || !fine || normal != "ABCDEFGH" || a == b || b != c {
		t.Fatal(a, b, c)
	}
}

func FuzzNormalCode(f *testing.F) {
	for _, s := range []string{"ABCD-EFGH", "abcdefgh", "O0 I1 L1", "\xff", strings.Repeat("A", 100)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		c, ok := wire.NormalCode(s)
		if !ok {
			return
		}
		if len(c) != wire.CodeLength || strings.Trim(c, wire.CodeAlphabet) != "" {
			t.Fatalf("%q: %q", s, c)
		}
		for _, again := range []string{c, wire.ShowCode(c), strings.ToLower(wire.ShowCode(c))} {
			if d, ok := wire.NormalCode(again); !ok || d != c {
				t.Fatalf("%q is %q, and that is %q", s, c, d)
			}
		}
	})
}

func FuzzReport(f *testing.F) {
	f.Add("box\x1b[2J", "192.0.2.17", "systemd")
	f.Fuzz(func(t *testing.T, host, account, manager string) {
		r := Report(wire.EnrollReport{Host: host, Account: account, ServiceManager: manager, Scope: manager})
		for _, s := range []string{r.Host, r.Account, r.ServiceManager, r.Scope} {
			if len([]rune(s)) > 255 || strings.ContainsAny(s, "\x1b\x00\n") {
				t.Errorf("%q", s)
			}
		}
	})
}

// TestAFloodTakesItsOwnPlaces: whoever fills the table from many networks
// displaces themselves; a machine elsewhere gets in and stays.
func TestAFloodTakesItsOwnPlaces(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		const room = 64
		networks := rapid.IntRange(1, room/4).Draw(t, "networks that flood")
		held := map[int]Held{}
		var looked []int
		next := 0
		add := func(from Network) bool {
			if len(held) >= room {
				out, ok := Evict(held, from)
				if !ok {
					return false
				}
				if held[out].Looked {
					t.Fatal("a request that a person looks at was displaced")
				}
				delete(held, out)
			}
			next++
			held[next] = Held{From: from, Until: time.Unix(int64(next), 0)}
			return true
		}
		honest := Network{0xff}
		flood := func() {
			for range rapid.IntRange(0, 2*room).Draw(t, "flood") {
				add(Network{byte(rapid.IntRange(1, networks).Draw(t, "from"))})
			}
		}
		flood()
		if !add(honest) {
			t.Fatal("a machine from elsewhere finds no room")
		}
		mine := next
		flood()
		if _, ok := held[mine]; !ok {
			t.Fatalf("a flood from %d networks displaced the one machine of another", networks)
		}
		held[mine] = Held{From: honest, Looked: true, Until: held[mine].Until}
		looked = append(looked, mine)
		for range room { // its own network floods
			add(honest)
		}
		for _, k := range looked {
			if _, ok := held[k]; !ok {
				t.Fatal("what a person looks at is gone")
			}
		}
		if len(held) > room {
			t.Fatalf("%d requests wait", len(held))
		}
	})
}

func TestTheOldestOfTheLargestNetworkMakesRoom(t *testing.T) {
	a, b := Network{1}, Network{2}
	at := func(s int64) time.Time { return time.Unix(s, 0) }
	held := map[string]Held{"a1": {a, true, at(1)}, "a2": {a, false, at(3)}, "a3": {a, false, at(2)}, "b1": {b, false, at(0)}}
	if out, ok := Evict(held, Network{3}); !ok || out != "a3" {
		t.Error(out, ok)
	}
	if out, ok := Evict(held, a); ok {
		t.Errorf("its own network displaced %s", out)
	}
	held["a2"], held["a3"] = Held{a, true, at(3)}, Held{a, true, at(2)}
	if out, ok := Evict(held, Network{3}); !ok || out != "b1" {
		t.Error(out, ok)
	}
}
