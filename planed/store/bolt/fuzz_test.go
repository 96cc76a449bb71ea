package bolt

import "testing"

// FuzzRecords: whatever a damaged file holds is refused or read, and what is
// read is written again.
func FuzzRecords(f *testing.F) {
	f.Add([]byte(`{"index":1,"owner":"dana","credential":{"generation":2},"told":{"body":"AAAA"}}`))
	f.Add([]byte(`{"credential":{"superseded":["00","00","00","00"]}}`))
	f.Add([]byte(`{"seq":1,"prev":"zz"}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if r, index, err := decode("m_aaaaaaaaaaaaaaaaaaaaaaaaaa", b); err == nil {
			if _, _, err := decode(r.ID, encode(r, index)); err != nil {
				t.Errorf("what was read cannot be written: %v", err)
			}
		}
		decodeEntry(b)
	})
}
