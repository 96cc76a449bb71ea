package secret

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"strings"
	"testing"
)

func TestSecretCannotBePrinted(t *testing.T) {
	s := New("fx_")
	type holder struct{ S Text }
	j, err := json.Marshal(map[string]any{"s": s, "h": holder{s}, "p": &s})
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	slog.New(slog.NewTextHandler(&log, nil)).Info("x", "s", s, "h", holder{s})
	all := fmt.Sprint(s, &s, holder{s}) + fmt.Sprintf("%s %v %+v %#v %q %x %d", s, s, holder{s}, holder{s}, s, s, s) +
		string(j) + log.String() + fmt.Errorf("e: %v", s).Error()
	if strings.Contains(all, s.Reveal()[3:]) || strings.Contains(all, fmt.Sprintf("%x", s.Reveal())) {
		t.Fatalf("the secret shows in %q", all)
	}
}

func TestMatchComparesAllAndFailsClosed(t *testing.T) { // R24
	a, b := New("").Digest(), New("").Digest()
	for _, c := range []struct {
		presented  Digest
		candidates []Digest
		want       int
	}{
		{a, []Digest{a, b}, 0},
		{b, []Digest{a, b}, 1},
		{a, []Digest{b}, -1},
		{Digest{}, []Digest{{}}, -1},
		{a, nil, -1},
	} {
		if got := Match(c.presented, c.candidates...); got != c.want {
			t.Errorf("Match = %d, want %d", got, c.want)
		}
	}
}

func TestDigestRoundTrip(t *testing.T) {
	d := New("").Digest()
	back, err := ParseDigest(d.Hex())
	if err != nil || back != d {
		t.Fatal(back, err)
	}
	for _, bad := range []string{"", "zz", d.Hex() + "00", strings.Repeat("g", 64)} {
		if _, err := ParseDigest(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}
