package wire

import "testing"

func TestPlaneURLHasOneSpelling(t *testing.T) { // R37
	for in, want := range map[string]string{
		"https://Plane.Example":          "https://plane.example",
		"https://plane.example/":         "https://plane.example",
		"https://plane.example:443":      "https://plane.example",
		"https://plane.example:":         "https://plane.example",
		" https://plane.example:8443\n":  "https://plane.example:8443",
		"https://[2001:DB8::1]:8443/":    "https://[2001:db8::1]:8443",
		"http://plane.example":           "",
		"https://plane.example/path":     "",
		"https://dana@plane.example":     "",
		"https://plane.example?x":        "",
		"https://plane.example/#x":       "",
		"https://":                       "",
		"plane.example":                  "",
		"https://plane.example:notaport": "",
	} {
		got, err := PlaneURL(in)
		if got != want || (err == nil) != (want != "") {
			t.Errorf("PlaneURL(%q) = %q, %v", in, got, err)
		}
	}
}

func FuzzPlaneURL(f *testing.F) {
	f.Add("https://plane.example:8443/")
	f.Fuzz(func(t *testing.T, s string) {
		u, err := PlaneURL(s)
		if err != nil {
			return
		}
		if again, err := PlaneURL(u); err != nil || again != u {
			t.Errorf("%q → %q → %q, %v", s, u, again, err)
		}
	})
}
