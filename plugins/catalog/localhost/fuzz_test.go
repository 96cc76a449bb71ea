package localhost

import "testing"

func FuzzOSRelease(f *testing.F) {
	f.Add("ID=debian\nVERSION_ID=\"12\"\n# x\nBROKEN\n='")
	f.Fuzz(func(t *testing.T, s string) {
		for k := range ParseOSRelease(s) {
			if k == "" {
				t.Errorf("%q gives a name of nothing", s)
			}
		}
	})
}
