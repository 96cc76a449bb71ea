package account

import (
	"strings"
	"testing"
)

func FuzzPasswd(f *testing.F) {
	f.Add("root:x:0:0:root:/root:/bin/bash\ndana:x:1000:1000::/home/dana:\n", 1000)
	f.Add(":::::::", 0)
	f.Fuzz(func(t *testing.T, text string, uid int) {
		if a, ok := parse(strings.NewReader(text), uid); ok && (a.UID != uid || a.Home == "" || a.Shell == "") {
			t.Errorf("%+v", a)
		}
	})
}
