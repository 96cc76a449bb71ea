package sshconn

import (
	"path"
	"testing"
	"time"
)

func FuzzFacts(f *testing.F) {
	f.Add("names=Linux box x86_64\nid=uid=1000(dana) gid=1000(dana)\nhome=/home/dana\nnow=1767323045\ndf=\n/dev/x 1 2 3 4%\nos.ID=\"debian\"\ntool.tar\nbits=64\n")
	f.Add("names=Linux\nid=uid=-1(x)\nhome=x")
	f.Add("id=uid=99999999999999999999(\x00)")
	f.Fuzz(func(t *testing.T, out string) {
		now := time.Unix(1767323045, 0)
		facts, err := parseFacts(out, now, now.Add(time.Second))
		if err == nil && (facts.UID < 0 || facts.User == "" || facts.System == "" || !path.IsAbs(facts.Home) || !path.IsAbs(facts.DataHome)) {
			t.Errorf("%+v", facts)
		}
	})
}
