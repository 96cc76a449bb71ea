package rotation

import (
	"crypto/sha256"
	"errors"
	"testing"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

func says(version int64, value string) Signing {
	return Signing{Signed{"statement of " + value, "signature " + num(version)}, Holding{version, secret.Digest(sha256.Sum256([]byte(value)))}}
}

// begun is a rotation of what a person signs, from A to B, in a step.
func begun(t *testing.T, step string) State {
	t.Helper()
	s := State{Kind: wire.MaterialURL}
	a, b := says(1, "A"), says(2, "B")
	if _, err := s.Adopt(a.Holding, nil, t0); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Start(Begin{By: "person:dana", Signing: &b}, t0); err != nil {
		t.Fatal(err)
	}
	if !s.Given().IsZero() {
		t.Fatal("machines are told before everything is ready")
	}
	if err := s.Made(b.Holding); err != nil {
		t.Fatal(err)
	}
	s.Run.Step = step
	return s
}

func TestAStatementBeginsOneRotationAlone(t *testing.T) { // R26
	a, b, c := says(1, "A"), says(2, "B"), says(3, "C")
	s := State{Kind: wire.MaterialURL}
	if _, err := s.Adopt(a.Holding, nil, t0); err != nil {
		t.Fatal(err)
	}
	var version *VersionError
	if _, err := s.Start(Begin{Signing: &c}, t0); !errors.As(err, &version) || version.Next != 2 {
		t.Fatal(err)
	}
	s = begun(t, wire.StepRoll)
	if s.Given() != b.Signed || s.Target() != 2 || s.Retiring() != 1 {
		t.Fatalf("%+v", s.Run)
	}
	again := b
	again.Signed.Signature = "another person's"
	if ev, err := s.Start(Begin{Signing: &again}, t0); err != nil || len(ev) != 0 {
		t.Fatal("the same value joins", ev, err)
	}
	if _, err := s.Start(Begin{Signing: &c}, t0); !errors.Is(err, ErrOther) {
		t.Fatal(err)
	}
}

// Machines never take a lower version, so going back has one of its own, and
// those who never left are where they are to be. // R26
func TestGoingBackIsSignedOnceMore(t *testing.T) {
	s := begun(t, wire.StepRoll)
	if _, err := s.Abort("person:dana", nil, t0); !errors.Is(err, ErrUnsigned) {
		t.Fatal(err)
	}
	for _, wrong := range []Signing{says(2, "A"), says(4, "A"), says(1, "A")} {
		var version *VersionError
		if _, err := s.Abort("person:dana", &wrong, t0); !errors.As(err, &version) {
			t.Fatal(wrong.Version, err)
		}
	}
	elsewhere := says(3, "C")
	if _, err := s.Abort("person:dana", &elsewhere, t0); !errors.Is(err, ErrOther) {
		t.Fatal(err)
	}
	back := says(3, "A")
	if _, err := s.Abort("person:dana", &back, t0); err != nil {
		t.Fatal(err)
	}
	if s.Target() != 3 || s.Retiring() != 2 || s.Given() != back.Signed || !s.Moved(3) || !s.Moved(1) || !s.Moved(0) || s.Moved(2) {
		t.Fatalf("%+v", s.Run)
	}
	if !s.Accepts(3, back.Digest) || !s.Accepts(2, says(2, "B").Digest) {
		t.Fatal("both are accepted while machines go back")
	}
	s.Run.Step = wire.StepNarrow
	if !s.Accepts(3, back.Digest) || s.Accepts(2, says(2, "B").Digest) {
		t.Fatal("narrowing refuses what was taken back, and that alone")
	}
	s.Advance(Facts{Proved: true}, t0)
	s.Advance(Facts{Erased: true}, t0)
	if s.Running() || s.Version != 3 || s.Signed != back.Signed || s.High != 3 || s.Run.Outcome != wire.RotationAborted {
		t.Fatalf("%+v %+v", s, s.Run)
	}
	// The statement of the end is given to whoever sleeps longer.
	if s.Given() != back.Signed {
		t.Fatal("nobody is told any more")
	}
}

// Before machines were told, nothing has to be signed to go back. // R26
func TestWhatNobodyHeardOfIsTakenBackUnsigned(t *testing.T) {
	s := begun(t, wire.StepWiden)
	if _, err := s.Abort("person:dana", nil, t0); err != nil || s.Target() != 1 || s.Run.Step != wire.StepNarrow || !s.Given().IsZero() {
		t.Fatalf("%+v, %v", s.Run, err)
	}
}
