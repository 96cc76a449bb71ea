package login

import "testing"

func FuzzParseKey(f *testing.F) {
	f.Add("ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA x")
	f.Add(`command="x" ssh-ed25519 AAAA`)
	f.Add("ssh-rsa AAAAB3NzaC1yc2EAAAADAQABAAAAAQA=")
	f.Fuzz(func(t *testing.T, s string) {
		k, err := ParseKey(s)
		if err != nil {
			return
		}
		if again, err := ParseKey(k.Authorized); err != nil || again.Fingerprint != k.Fingerprint {
			t.Errorf("%q is kept as %+v, which is %+v: %v", s, k, again, err)
		}
	})
}
