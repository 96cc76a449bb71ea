package artifact

import "testing"

func FuzzParseSigners(f *testing.F) {
	f.Add([]byte("# ours\nssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA x\n"))
	f.Add([]byte("ssh-ed25519 AAAA\n\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := ParseSigners(b)
		if err != nil {
			return
		}
		again, err := ParseSigners(s.Format())
		if err != nil || len(again) != len(s) {
			t.Errorf("%d signers are written as %d: %v", len(s), len(again), err)
		}
		if _, err := s.Verify(b, b); err == nil {
			t.Error("the keys themselves were taken for a signature")
		}
	})
}

func FuzzVerify(f *testing.F) {
	f.Add([]byte("m"), []byte("-----BEGIN SSH SIGNATURE-----\nU1NIU0lH\n-----END SSH SIGNATURE-----\n"))
	f.Fuzz(func(t *testing.T, message, armored []byte) {
		if _, err := (Signers{}).Verify(message, armored); err == nil {
			t.Error("nobody's signature was taken")
		}
	})
}
