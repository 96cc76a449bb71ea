package frame

import (
	"bytes"
	"errors"
	"testing"
)

func FuzzPayloads(f *testing.F) {
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 7, 'a'})
	f.Add(bytes.Repeat([]byte{0xff}, 16))
	f.Add([]byte{0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0, 1})
	f.Add([]byte(`{"code":1}`))
	f.Fuzz(func(t *testing.T, p []byte) {
		offset, data, dataErr := ParseData(p)
		only, offsetErr := ParseOffset(p)
		from, to, lostErr := ParseLost(p)
		_, _, resizeErr := ParseResize(p)
		var exit ExitStatus
		for _, err := range []error{dataErr, offsetErr, lostErr, resizeErr, ParseJSON(p, &exit)} {
			if err != nil && !errors.Is(err, ErrMalformed) {
				t.Errorf("%v", err)
			}
		}
		if dataErr == nil && (offset < 0 || len(data) != len(p)-8) || offsetErr == nil && only < 0 || lostErr == nil && (from < 0 || to < from) {
			t.Errorf("%d %d %d %d", offset, only, from, to)
		}
	})
}
