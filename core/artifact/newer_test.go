package artifact

import "testing"

func TestOnlyWhatComesLaterIsNewer(t *testing.T) { // R4
	inOrder := []string{"0.9.9", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta", "1.0.0-rc.2", "1.0.0-rc.10", "1.0.0",
		"1.0.0-2-gabc1234", "v1.0.0-10-g0123abc-dirty", "1.0.1", "1.2.0", "1.10.0", "2.0.0"}
	for i, a := range inOrder {
		for j, b := range inOrder {
			if got := Newer(a, b); got != (i > j) {
				t.Errorf("%s after %s: %v", a, b, got)
			}
		}
	}
	// Of these none is newer than another, either way round.
	same := []string{"1.4.0", "v1.4.0", "1.4.0+acme", "1.4.0-dirty", "5a70346", "5a70346-dirty", "", "x", "1.4", "v2-next",
		"99999999999999999999.0.0", "1.4.0 ", "1.4.0\n", "-1.4.0"}
	for _, a := range same {
		for _, b := range same {
			if Newer(a, b) {
				t.Errorf("%q after %q", a, b)
			}
		}
	}
}

func FuzzNewer(f *testing.F) {
	f.Add("1.0.0-rc.1", "1.0.0-2-gabc")
	f.Fuzz(func(t *testing.T, a, b string) {
		if Newer(a, a) || Newer(a, b) && Newer(b, a) {
			t.Errorf("%q and %q are newer than each other", a, b)
		}
	})
}

func TestWhatLiesThereIsOfferedOnlyIfNewer(t *testing.T) {
	dir := t.TempDir()
	if _, err := sample(dir).Write(key(t)); err != nil {
		t.Fatal(err)
	}
	for version, want := range map[string]bool{"0.9.0": true, "1.0.0": false, "1.0.1": false, "unknown": false} {
		if got := Offers([]string{"/nonexistent", dir}, version); got != want {
			t.Errorf("to %s: %v", version, got)
		}
	}
}
