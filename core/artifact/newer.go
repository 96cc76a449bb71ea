package artifact

import (
	"cmp"
	"path/filepath"
	"regexp"
	"strings"
)

// versionText is MAJOR.MINOR.PATCH, a pre-release or the commits since, as git
// describe counts them, and what a vendor adds behind a plus, which orders
// nothing.
var versionText = regexp.MustCompile(`^v?(\d{1,9})\.(\d{1,9})\.(\d{1,9})(?:-(\d{1,9})-g[0-9a-f]+|-([0-9A-Za-z.-]+))?(?:\+[0-9A-Za-z.-]*)?$`)

// Newer reports whether version a comes after version b. Of two that cannot be
// compared none does: whoever wants one of them all the same asks for it.
func Newer(a, b string) bool {
	x, y := versionText.FindStringSubmatch(strings.TrimSuffix(a, "-dirty")), versionText.FindStringSubmatch(strings.TrimSuffix(b, "-dirty"))
	if x == nil || y == nil {
		return false
	}
	for i := 1; i <= 3; i++ {
		if c := compareNumbers(x[i], y[i]); c != 0 {
			return c > 0
		}
	}
	// A pre-release comes before its release, which comes before what follows.
	if c := rank(x) - rank(y); c != 0 {
		return c > 0
	}
	if x[4] != "" {
		return compareNumbers(x[4], y[4]) > 0
	}
	return comparePre(x[5], y[5]) > 0
}

func rank(v []string) int {
	switch {
	case v[4] != "":
		return 2
	case v[5] != "":
		return 0
	}
	return 1
}

func compareNumbers(a, b string) int {
	a, b = strings.TrimLeft(a, "0"), strings.TrimLeft(b, "0")
	return cmp.Or(len(a)-len(b), strings.Compare(a, b))
}

// comparePre orders pre-releases as Semantic Versioning 2.0.0, item 11, does.
func comparePre(a, b string) int {
	x, y := strings.Split(a, "."), strings.Split(b, ".")
	for i := 0; i < len(x) && i < len(y); i++ {
		c := strings.Compare(x[i], y[i])
		switch numX, numY := isNumber(x[i]), isNumber(y[i]); {
		case numX && numY:
			c = compareNumbers(x[i], y[i])
		case numX:
			c = -1
		case numY:
			c = 1
		}
		if c != 0 {
			return c
		}
	}
	return len(x) - len(y)
}

func isNumber(s string) bool { return s != "" && strings.Trim(s, "0123456789") == "" }

// Offers reports whether the directories hold, for any platform, something that
// calls itself newer than a version. Nothing is verified: it only saves asking a
// machine what it is when there is nothing for it.
func Offers(dirs []string, version string) bool {
	for _, dir := range dirs {
		for _, p := range Platforms {
			goos, goarch, _ := strings.Cut(p, "/")
			b, err := ReadFile(filepath.Join(dir, BaseName(goos, goarch)+".json"), maxManifest)
			if err != nil {
				continue
			}
			if m, err := ParseManifest(b); err == nil && Newer(m.Version, version) {
				return true
			}
		}
	}
	return false
}
