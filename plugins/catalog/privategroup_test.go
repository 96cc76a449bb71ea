package catalog

import "testing"

func TestOnlyAGroupOfNobodyElseIsPrivate(t *testing.T) { // R40
	const passwd = "root:x:0:0::/root:/bin/sh\ndana:x:1000:1000::/home/dana:/bin/sh\nerin:x:1001:100::/home/erin:/bin/sh\nfinn:x:1002:100::/home/finn:/bin/sh\ngwen:x:1003:1003::/h:/bin/sh\nhugo:x:1004:1004::/h:/bin/sh\n"
	const group = "root:x:0:\ndana:x:1000:\nusers:x:100:\ngwen:x:1003:gwen,dana\nwheel:x:10:dana\n"
	for _, v := range []struct {
		uid, gid uint32
		want     bool
		why      string
	}{
		{1000, 1000, true, "its own"},
		{1001, 100, false, "shared first group"},
		{1003, 1003, false, "has another member"},
		{1000, 1003, false, "another's"},
		{1000, 10, false, "a group that it is merely in"},
		{1004, 1004, false, "not in the file"},
		{1000, 4242, false, "unknown"},
	} {
		if got := onlyMember(passwd, group, v.uid, v.gid); got != v.want {
			t.Errorf("%s: %v", v.why, got)
		}
	}
}
