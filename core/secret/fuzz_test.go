package secret

import "testing"

func FuzzParseDigest(f *testing.F) {
	f.Add(Of("x").Digest().Hex())
	f.Add("AB")
	f.Fuzz(func(t *testing.T, s string) {
		d, err := ParseDigest(s)
		if err == nil && len(s) != len(d.Hex()) {
			t.Errorf("%q is taken", s)
		}
		if again, err2 := ParseDigest(d.Hex()); err == nil && (err2 != nil || again != d) {
			t.Errorf("%q is %s, and that is %s", s, d.Hex(), again.Hex())
		}
	})
}
