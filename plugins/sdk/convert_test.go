package sdk

import (
	"io/fs"
	"reflect"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"
	"pgregory.net/rapid"

	servicev1 "fleet.example/fleet/plugins/proto/fleet/service/v1"
)

// TestTypesSurviveTheWire: what one side says is what the other hears.
func TestTypesSurviveTheWire(t *testing.T) {
	text := rapid.String()
	texts := rapid.SliceOfN(text, 1, 4)
	whole := rapid.Map(rapid.IntRange(0, 3600), func(s int) time.Duration { return time.Duration(s) * time.Second })
	rapid.Check(t, func(t *rapid.T) {
		spec := Spec{
			Name: text.Draw(t, "name"), Scope: rapid.SampledFrom([]Scope{ScopeUser, ScopeSystem}).Draw(t, "scope"),
			User: text.Draw(t, "user"), Argv: texts.Draw(t, "argv"), DataDir: text.Draw(t, "data"), RuntimeDir: text.Draw(t, "run"),
			LogFile: text.Draw(t, "log"), Latch: text.Draw(t, "latch"), StartTimeout: whole.Draw(t, "start"), StopTimeout: whole.Draw(t, "stop"),
		}
		if got := specFromWire(specToWire(spec)); !reflect.DeepEqual(got, spec) {
			t.Fatalf("%+v became %+v", spec, got)
		}
		offset := time.Duration(rapid.Int64Range(-1e12, 1e12).Draw(t, "offset")) * time.Millisecond
		facts := Facts{
			OS: text.Draw(t, "os"), OSRelease: map[string]string{"ID": text.Draw(t, "id")}, UID: rapid.Uint32().Draw(t, "uid"),
			Privilege: rapid.SampledFrom([]Privilege{PrivilegeNone, PrivilegeSudo, PrivilegeRoot}).Draw(t, "privilege"),
			Phase:     rapid.SampledFrom([]Phase{PhaseUnconfirmed, PhaseExamine, PhaseChange, PhaseResident}).Draw(t, "phase"),
			Home:      text.Draw(t, "home"), DataDir: text.Draw(t, "dir"), CredentialWriteError: text.Draw(t, "error"), ServiceManager: text.Draw(t, "manager"),
		}
		if rapid.Bool().Draw(t, "compared") {
			facts.ClockOffset = &offset
		}
		if got := factsFromWire(factsToWire(facts)); !reflect.DeepEqual(got, facts) {
			t.Fatalf("%+v became %+v", facts, got)
		}
		exit := rapid.IntRange(0, 255).Draw(t, "exit")
		st := Status{
			State: rapid.SampledFrom([]State{StateUnknown, StateRunning, StateStarting, StateStopped, StateFailed, StateAbsent}).Draw(t, "state"),
			PID:   rapid.IntRange(0, 1<<22).Draw(t, "pid"), AtBoot: rapid.Bool().Draw(t, "boot"), Detail: text.Draw(t, "detail"),
			Since: time.Unix(rapid.Int64Range(1, 1<<33).Draw(t, "since"), 0).UTC(),
		}
		if rapid.Bool().Draw(t, "ran") {
			st.LastExit = &exit
		}
		if got := statusFromWire(statusToWire(st)); !reflect.DeepEqual(got, st) {
			t.Fatalf("%+v became %+v", st, got)
		}
		r := Rendered{Unit: text.Draw(t, "unit"), Caveats: texts.Draw(t, "caveats"), StartArgv: texts.Draw(t, "start argv"), Files: []File{{
			Path: text.Draw(t, "path"), Owner: text.Draw(t, "owner"), Content: []byte(text.Draw(t, "content")),
			Mode: fs.FileMode(rapid.Uint32Range(0, 0o777).Draw(t, "mode")) | rapid.SampledFrom([]fs.FileMode{0, fs.ModeSetuid, fs.ModeSetgid, fs.ModeSticky}).Draw(t, "bits"),
		}}}
		if got := renderedFromWire(renderedToWire(r)); !reflect.DeepEqual(got, r) {
			t.Fatalf("%+v became %+v", r, got)
		}
	})
}

// A manager's own words may be in any encoding; a status is not lost for it.
func TestAStatusInAnyEncodingArrives(t *testing.T) {
	b, err := proto.Marshal(statusToWire(Status{State: StateRunning, Detail: "l\xe4uft"}))
	if err != nil {
		t.Fatal(err)
	}
	var p servicev1.StatusResponse
	if err := proto.Unmarshal(b, &p); err != nil || statusFromWire(&p).Detail != "l\uFFFDuft" {
		t.Fatal(&p, err)
	}
}

func TestShortTimeoutsNeverBecomeNone(t *testing.T) {
	for d, want := range map[time.Duration]uint32{time.Nanosecond: 1, time.Second: 1, 1500 * time.Millisecond: 2, 0: 0, -time.Second: 0} {
		if got := seconds(d); got != want {
			t.Errorf("%v: %d, want %d", d, got, want)
		}
	}
}
