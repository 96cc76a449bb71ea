package identity

import (
	"testing"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/secret"
)

// machine is the other side of R20 and R21: what a disk holds, in the order in
// which it is presented, and what may be lost on the way.
type machine struct {
	previous, current, next secret.Text // next is staged: fsynced, not yet proven
}

func (m *machine) order() []secret.Text {
	var o []secret.Text
	for _, s := range []secret.Text{m.next, m.current, m.previous} {
		if !s.Empty() {
			o = append(o, s)
		}
	}
	return o
}

func (m *machine) accepted(s secret.Text) {
	if !m.next.Empty() && s == m.next {
		m.previous, m.current, m.next = m.current, m.next, secret.Text{}
	}
}

// TestNoSequenceLocksTheMachineOut runs rotations, uses, lost requests, lost
// answers, duplicates that arrive late, staged files that are lost, and a plane
// restored from a backup one generation old. After each step the machine must
// get in with something its disk holds. // R20, R21
func TestNoSequenceLocksTheMachineOut(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := secret.New("fm_")
		row := Make(first.Digest())
		m := machine{current: first}
		backup := row
		var late []struct {
			by, d secret.Digest
			gen   int64
		}

		// present is one request with one secret; answered says whether the
		// machine hears of the outcome.
		present := func(s secret.Text, answered bool) Standing {
			st, _ := row.Use(s.Digest())
			if answered && (st == Current || st == Next) {
				m.accepted(s)
			}
			return st
		}
		getIn := func(t *rapid.T) {
			for _, s := range m.order() {
				if st := present(s, true); st == Current || st == Next {
					if m.current != s && !m.current.Empty() && m.next.Empty() {
						// Accepted on the previous one: the later digest is sent again.
						if _, err := row.Rotate(row.Generation+1, m.current.Digest()); err != nil && err != ErrReused {
							t.Fatalf("the later digest is refused: %v", err)
						}
						m.next, m.current, m.previous = m.current, s, secret.Text{}
					}
					return
				}
			}
			t.Fatalf("locked out: row %+v", row)
		}
		t.Repeat(map[string]func(*rapid.T){
			"rotate": func(t *rapid.T) {
				if m.next.Empty() {
					m.next = secret.New("fm_")
				}
				st := present(m.current, true)
				if st != Current {
					return // the row has moved on; the check below finds the way
				}
				gen, d := row.Generation+1, m.next.Digest()
				if rapid.Bool().Draw(t, "request lost") {
					late = append(late, struct {
						by, d secret.Digest
						gen   int64
					}{m.current.Digest(), d, gen})
					return
				}
				if _, err := row.Rotate(gen, d); err != nil {
					t.Fatalf("rotate: %v", err)
				}
				if changed, err := row.Rotate(gen, d); changed || err != nil {
					t.Fatalf("the same request again: %v %v", changed, err)
				}
			},
			"use next": func(t *rapid.T) {
				if m.next.Empty() {
					return
				}
				if st := present(m.next, rapid.Bool().Draw(t, "answered")); st == Unknown {
					present(m.current, true)
				}
			},
			"use current": func(t *rapid.T) { present(m.current, true) },
			"late request": func(t *rapid.T) {
				if len(late) == 0 {
					return
				}
				l := late[0]
				late = late[1:]
				if st, _ := row.Use(l.by); st == Current || st == Next {
					row.Rotate(l.gen, l.d)
				}
			},
			"staged file lost": func(t *rapid.T) {
				// Nobody can help a machine that loses a secret which it has
				// presented: the request that did may be on its way.
				d, presented := m.next.Digest(), false
				for _, l := range late {
					presented = presented || l.by == d
				}
				if !m.next.Empty() && !presented && row.Judge(m.current.Digest()) == Current {
					m.next = secret.Text{}
				}
			},
			"backup": func(t *rapid.T) { backup = row },
			"restore": func(t *rapid.T) {
				if row.Generation-backup.Generation <= 1 && row.Judge(m.current.Digest()) == Current {
					row = backup
				}
			},
			"": getIn,
		})
	})
}

// TestRowAgreesWithASimpleModel compares every transition with a list of
// secrets and one number. // R20
func TestRowAgreesWithASimpleModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		secrets := []secret.Text{secret.New("fm_")} // by generation, from 1; the last may be staged
		row := Make(secrets[0].Digest())
		current, staged, deleted := 1, false, false
		want := func(gen int) Standing {
			switch {
			case gen > len(secrets), gen < current-Kept:
				return Unknown
			case deleted:
				return Revoked
			case gen == current:
				return Current
			case gen == current+1:
				return Next
			}
			return Behind
		}
		t.Repeat(map[string]func(*rapid.T){
			"rotate": func(t *rapid.T) {
				if deleted {
					return
				}
				s := secret.New("fm_")
				changed, err := row.Rotate(int64(current+1), s.Digest())
				if !changed || err != nil {
					t.Fatal(changed, err)
				}
				if staged {
					secrets[len(secrets)-1] = s
				} else {
					secrets, staged = append(secrets, s), true
				}
			},
			"rotate wrong": func(t *rapid.T) {
				gen := rapid.SampledFrom([]int{-1, 0, current, current + 2, current + 7}).Draw(t, "generation")
				if _, err := row.Rotate(int64(gen), secret.New("").Digest()); err != ErrGeneration {
					t.Fatal(err)
				}
				if _, err := row.Rotate(int64(current+1), secret.Digest{}); err != ErrNoDigest {
					t.Fatal(err)
				}
			},
			"use": func(t *rapid.T) {
				gen := rapid.IntRange(1, len(secrets)).Draw(t, "generation")
				before := row
				st, changed := row.Use(secrets[gen-1].Digest())
				if st != want(gen) {
					t.Fatalf("generation %d: standing %d, want %d", gen, st, want(gen))
				}
				if changed == (before == row) {
					t.Fatal("changed does not tell the truth")
				}
				if st == Next {
					current, staged = current+1, false
				}
			},
			"delete": func(t *rapid.T) {
				if rapid.IntRange(0, 20).Draw(t, "n") == 0 {
					row.Delete()
					deleted = true
				}
			},
			"": func(t *rapid.T) {
				if row.Generation != int64(current) || row.Next.IsZero() == staged {
					t.Fatalf("row %+v, model %d %v", row, current, staged)
				}
				if row.Judge(secret.New("fm_").Digest()) != Unknown || row.Judge(secret.Digest{}) != Unknown {
					t.Fatal("a stranger was taken for somebody")
				}
			},
		})
	})
}

func TestAdmitReplacesOnlyWhatNeverSucceeded(t *testing.T) { // R6, R23
	a, b, c := secret.New("fm_").Digest(), secret.New("fm_").Digest(), secret.New("fm_").Digest()
	row := Make(a)
	if got := row.Admit(a); got != Same {
		t.Error(got)
	}
	if got := row.Admit(b); got != Replaced || row.Judge(a) != Unknown || row.Judge(b) != Current || row.Generation != 1 {
		t.Error(got, row)
	}
	row.Use(b)
	if got := row.Admit(c); got != Living || row.Judge(c) != Unknown {
		t.Error(got, row)
	}
	if got := row.Admit(b); got != Same {
		t.Error(got)
	}
}

func TestNobodyIsNeverAccepted(t *testing.T) { // R24
	for _, d := range []secret.Digest{{}, (secret.Text{}).Digest(), secret.New("fm_").Digest()} {
		if st := Nobody.Judge(d); st != Unknown {
			t.Errorf("%v: %d", d, st)
		}
	}
}
