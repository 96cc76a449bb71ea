package hostkey

import (
	"strings"
	"testing"
)

func FuzzParseFingerprints(f *testing.F) {
	f.Add("SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("[::1]:22=SHA256:AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA")
	f.Add("=SHA256:x")
	f.Fuzz(func(t *testing.T, s string) {
		got, err := ParseFingerprints([]string{s})
		if err != nil {
			return
		}
		if len(got) != 1 || CheckFingerprint(got[0].Value) != nil {
			t.Fatalf("%q is %+v", s, got)
		}
		whole := got[0].Value
		if got[0].Hop != "" {
			whole = got[0].Hop + "=" + whole
		}
		if whole != s || strings.Contains(got[0].Value, "=SHA256:") {
			t.Errorf("%q is %+v", s, got)
		}
	})
}
