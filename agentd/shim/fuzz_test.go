package shim

import (
	"bufio"
	"bytes"
	"testing"
)

func FuzzConfig(f *testing.F) {
	f.Add([]byte(`{"argv":["sh"],"dir":"/","socket":"/run/s","token":"t"}` + "\n"))
	f.Add([]byte("{}\n"))
	f.Add([]byte("[1,2"))
	f.Fuzz(func(t *testing.T, b []byte) {
		c, err := readConfig(bufio.NewReaderSize(bytes.NewReader(b), 16))
		if err == nil && (len(c.Argv) == 0 || c.Socket == "" || c.Token == "" || bytes.IndexByte(b, '\n') < 0) {
			t.Errorf("%+v", c)
		}
	})
}
