package wire

import "testing"

func FuzzParseCheckMark(f *testing.F) {
	f.Add("instance=a; seq=1; mark=b; clock=2026-01-02T03:04:05Z")
	f.Add("seq=1;instance=a")
	f.Add("instance=a; seq=1; clock=9999-12-31T23:59:59.999999999-23:59")
	f.Fuzz(func(t *testing.T, s string) {
		m, err := ParseCheckMark(s)
		if err != nil || m.Clock.UTC().Year() > 9999 { // which RFC 3339 has no words for
			return
		}
		again, err := ParseCheckMark(m.String())
		if err != nil || again.Instance != m.Instance || again.Seq != m.Seq || again.Mark != m.Mark || !again.Clock.Equal(m.Clock) {
			t.Errorf("%q is %+v, which is written %q: %v", s, m, m.String(), err)
		}
	})
}

func FuzzParseGate(f *testing.F) {
	f.Add("1 fg_x")
	f.Add("99999999999999999999 y")
	f.Fuzz(func(t *testing.T, s string) {
		if g, err := ParseGate(s); err == nil && (g.Value == "" || g.Version < 1) { // R24
			t.Errorf("%q is %d and %d characters", s, g.Version, len(g.Value))
		}
	})
}
