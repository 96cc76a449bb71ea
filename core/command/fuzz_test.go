package command

import "testing"

func FuzzParseSpan(f *testing.F) {
	for _, s := range []string{"90s", "1h30m", "30d", "65535d", "65536d", "-1s", "1e9h", "d", "9999999h"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if d, err := ParseSpan(s); d < 0 || err != nil && d != 0 {
			t.Errorf("%q is %v, %v", s, d, err)
		}
	})
}
