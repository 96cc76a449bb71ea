package identity

import (
	"testing"

	"pgregory.net/rapid"

	"fleet.example/fleet/core/secret"
)

// TestOneOfWhatAMachineHoldsIsAccepted: climbs, keys, ways down, lost requests
// and answers, wishes that change, in any order. The machine keeps what package
// credential and certificate of agentd keep; a thief has every bearer that ever
// was and the machine's none of its keys. // R20, R27
func TestOneOfWhatAMachineHoldsIsAccepted(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		first := secret.New("fm_").Digest()
		r := Make(first)
		r.Use(first)
		bearers := []secret.Digest{first} // all there ever were, the newest last
		var key, next secret.Digest       // on the machine's disk
		has := func(d secret.Digest, of ...secret.Digest) bool { return secret.Match(d, of...) >= 0 }
		current := func() secret.Digest {
			for _, b := range bearers {
				if has(b, r.Current) {
					return b
				}
			}
			t.Fatal("the row's bearer is none of the machine's")
			return secret.Digest{}
		}
		t.Repeat(map[string]func(*rapid.T){
			"wish": func(t *rapid.T) { r.Wish(rapid.SampledFrom([]Rung{NoRung, Bearer, MutualTLS}).Draw(t, "rung")) },
			"key": func(*rapid.T) {
				if next.IsZero() {
					next = secret.New("k").Digest()
				}
			},
			"renew": func(*rapid.T) { r.Certify(current(), secret.Digest{}, key) },
			"certify": func(*rapid.T) {
				if next.IsZero() {
					return
				}
				if _, _, err := r.Certify(bearers[len(bearers)-1], key, next); err == ErrSuperseded {
					next = secret.Digest{}
				}
			},
			"use next key": func(t *rapid.T) {
				if s, _ := r.UseKey(next); (s == Next || s == Current) && rapid.Bool().Draw(t, "answered") {
					key, next = next, secret.Digest{}
				}
			},
			"use key": func(*rapid.T) { r.UseKey(key) },
			"rotate": func(t *rapid.T) {
				by := r.Judge(current()) == Current || r.JudgeKey(key) == Current
				d := secret.New("fm_").Digest()
				if !by || !r.Next.IsZero() {
					return
				}
				bearers = append(bearers, d) // on the disk before it is sent
				if rapid.Bool().Draw(t, "arrives") {
					if _, err := r.Rotate(r.Generation+1, d); err != nil {
						t.Fatal(err)
					}
				}
			},
			"use bearer": func(t *rapid.T) { r.Use(rapid.SampledFrom(bearers).Draw(t, "bearer")) },
			"thief": func(t *rapid.T) {
				was := r
				for _, b := range bearers {
					s, _, _ := r.Certify(b, secret.Digest{}, secret.New("thief").Digest())
					climbs := !was.Keys.Mtls && was.Keys.Toward == MutualTLS
					if !climbs && (s == Current || s == Next) {
						t.Fatal("a bearer alone got a certificate for another key")
					}
					r = was
					if was.Keys.Mtls && has(b, was.Current, was.Superseded[0], was.Superseded[1]) && (r.Judge(b) == Current || r.Judge(b) == Next) {
						t.Fatal("on the rung a bearer that was used is accepted")
					}
				}
			},
			"": func(t *rapid.T) {
				if r.Keys.Mtls {
					for _, k := range []secret.Digest{key, next} {
						if s := r.JudgeKey(k); s == Current || s == Next {
							if got, _, err := r.Certify(current(), secret.Digest{}, k); err == nil && got == Current {
								return
							}
						}
					}
					t.Fatalf("on the rung, and nothing on the disk is accepted: %+v", r.Keys)
				}
				if s := r.Judge(current()); s != Current {
					t.Fatalf("off the rung, and the bearer stands at %d", s)
				}
			},
		})
	})
}
