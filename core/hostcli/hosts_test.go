package hostcli

import (
	"maps"
	"slices"
	"strings"
	"testing"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/install"
	"fleet.example/fleet/core/sshconfig"
	"fleet.example/fleet/core/wire"
)

const aFingerprint = "SHA256:47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU"

func TestAListOfHosts(t *testing.T) {
	base := install.Options{Labels: map[string]string{"env": "prod"}, Fingerprints: make([]string, 0, 4)}
	got, err := parseHosts(strings.NewReader("# ours\n\nbox label.env=test label.rack=7\r\ndana@[::1]:2222  name=six fingerprint="+aFingerprint+"\n"), base)
	if err != nil || len(got) != 2 {
		t.Fatal(got, err)
	}
	if got[0].Host != "box" || !maps.Equal(got[0].Labels, map[string]string{"env": "test", "rack": "7"}) || len(got[0].Fingerprints) != 0 {
		t.Errorf("%+v", got[0])
	}
	if got[1].Name != "six" || !slices.Equal(got[1].Fingerprints, []string{aFingerprint}) || got[1].Labels["env"] != "prod" {
		t.Errorf("%+v", got[1])
	}
	for text, words := range map[string]string{
		"":                                  "names no host",
		"# none\n":                          "names no host",
		"a\na\n":                            "line 2 of the hosts: a stands there twice",
		"a\n\nb nam=x\n":                    `line 3 of the hosts: "nam=x" is none of`,
		"a name=a/b\n":                      "line 1 of the hosts",
		"a fingerprint=MD5:x\n":             "line 1 of the hosts",
		"a\n" + strings.Repeat("b", 70_000): "line 2 of the hosts is longer than",
	} {
		got, err := parseHosts(strings.NewReader(text), base)
		if err == nil || !strings.Contains(err.Error(), words) || fault.Of(err).Exit != fault.Usage {
			t.Errorf("%.20q: %v, %v", text, got, err)
		}
	}
}

// FuzzHosts: what is taken is a list of different destinations with names and
// labels that the plane takes; one line changes nothing for another.
func FuzzHosts(f *testing.F) {
	for _, s := range []string{"box", "a\nb name=x label.k=v\n", "a fingerprint=" + aFingerprint, "ssh://dana@x:22 label.=", "-oProxyCommand=x", "a\x00b", "a\xff name=\xff", "a label.k=v label.k=w"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		base := install.Options{Labels: map[string]string{"env": "prod"}, Fingerprints: make([]string, 1, 8)}
		got, err := parseHosts(strings.NewReader(text), base)
		if !maps.Equal(base.Labels, map[string]string{"env": "prod"}) {
			t.Fatalf("the labels of all became %v", base.Labels)
		}
		if err != nil {
			if fault.Of(err).Exit != fault.Usage {
				t.Fatal(err)
			}
			return
		}
		seen := map[string]bool{}
		for _, o := range got {
			if _, err := sshconfig.ParseDestination(o.Host); err != nil || seen[o.Host] {
				t.Fatalf("%q: %v", o.Host, err)
			}
			seen[o.Host] = true
			if o.Name != "" && wire.CheckName(o.Name) != nil {
				t.Fatalf("name %q", o.Name)
			}
			for k, v := range o.Labels {
				if wire.CheckName(k) != nil || wire.CheckLabelValue(v) != nil {
					t.Fatalf("label %q=%q", k, v)
				}
			}
			said := strings.Count(text, "fingerprint=")
			if len(o.Fingerprints) < 1 || len(o.Fingerprints) > 1+said {
				t.Fatalf("%q", o.Fingerprints)
			}
		}
	})
}
