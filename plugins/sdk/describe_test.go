package sdk

import (
	"bytes"
	"errors"
	"io/fs"
	"reflect"
	"strings"
	"testing"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

func description() Description {
	return Description{
		Name: "x", Version: "1.2.3", Targets: []string{"linux"}, Summary: "does x",
		Commands: [][]string{{"id"}, {"systemctl", "show", "*"}, {"env", "XDG_RUNTIME_DIR=/run/user/*", "true"}},
	}.complete(KindProbe)
}

func TestDescribeAndVersionAnswerBeforeAnythingIsServed(t *testing.T) { // R41
	p := ProbePlugin(description(), nil)
	for args, want := range map[string]string{"describe": `"protocols":["fleet.probe.v1"]`, "--version": "fleet-probe-x 1.2.3\n"} {
		var out, complaint bytes.Buffer
		if code := p.main([]string{"fleet-probe-x", args}, &out, &complaint); code != 0 || !strings.Contains(out.String(), want) || complaint.Len() > 0 {
			t.Errorf("%s: %d, %q, %q", args, code, out.String(), complaint.String())
		}
	}
	for _, args := range [][]string{{"fleet-probe-x"}, {"fleet-probe-x", "serve"}, {"fleet-probe-x", "describe", "x"}} {
		var out, complaint bytes.Buffer
		if code := p.main(args, &out, &complaint); code != 2 || out.Len() > 0 || complaint.Len() == 0 {
			t.Errorf("%q: %d, %q, %q", args, code, out.String(), complaint.String())
		}
	}
}

func TestDescriptionsThatBreakTheRulesAreRefused(t *testing.T) {
	for name, spoil := range map[string]func(*Description){
		"schema":           func(d *Description) { d.Schema = "fleet.plugin/v9" },
		"kind":             func(d *Description) { d.Kind = "widget" },
		"name":             func(d *Description) { d.Name = "../x" },
		"version":          func(d *Description) { d.Version = "" },
		"version, escape":  func(d *Description) { d.Version = "1\x1b[2J" },
		"no protocol":      func(d *Description) { d.Protocols = nil },
		"another's":        func(d *Description) { d.Protocols = []string{"fleet.service.v1"} },
		"protocol v0":      func(d *Description) { d.Protocols = []string{"fleet.probe.v0"} },
		"any command":      func(d *Description) { d.Commands = [][]string{{"*"}} },
		"empty command":    func(d *Description) { d.Commands = [][]string{{}} },
		"summary, escape":  func(d *Description) { d.Summary = "a\nb" },
		"too many targets": func(d *Description) { d.Targets = make([]string, 65) },
	} {
		d := description()
		if err := d.Check(); err != nil {
			t.Fatal(err)
		}
		spoil(&d)
		if err := d.Check(); !errors.Is(err, ErrDescription) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestOnlyListedCommandsAreAllowed(t *testing.T) { // R2
	d := description()
	for argv, want := range map[string]bool{
		"id": true, "id -u": false, "systemctl show x": true, "systemctl show": false, "systemctl stop x": false,
		"env XDG_RUNTIME_DIR=/run/user/1000 true": true, "env XDG_RUNTIME_DIR=/tmp true": false, "": false, "sh -c id": false,
	} {
		if got := d.Allows(strings.Fields(argv)); got != want {
			t.Errorf("%q: %v", argv, got)
		}
	}
}

func TestFileNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"fleet-probe-host": true, "fleet-service-systemd": true, "fleet-transport-direct": true,
		"fleet-probe-host.sha256": false, "fleet-probe-host~": false, "fleet-probe-": false, "fleet-probe": false, "fleet-host": false,
		"fleet-probe-Host": false, "fleet-probe-a/b": false, "fleet-probe-a\n": false, "xfleet-probe-a": false,
	} {
		if _, _, got := ParseFileName(name); got != ok {
			t.Errorf("%q: %v", name, got)
		}
	}
}

func TestErrorsKeepTheirMeaningAcrossTheWire(t *testing.T) {
	for _, k := range kept {
		err := ErrorFromWire(ErrorToWire(errors.Join(errors.New("words"), k.err)))
		if k.err == fs.ErrPermission {
			k.err = ErrDenied // one code stands for both
		}
		if !errors.Is(err, k.err) || !strings.HasPrefix(err.Error(), "words") {
			t.Errorf("%v became %v", k.err, err)
		}
		if ConnectionLost(err) != (k.code == codes.Canceled) {
			t.Errorf("%v counts as a lost connection", k.err)
		}
	}
	if err := ErrorFromWire(status.Error(codes.Unavailable, "gone")); !ConnectionLost(err) {
		t.Errorf("%v", err)
	}
	long := ErrorFromWire(ErrorToWire(errors.New(strings.Repeat("x", 1<<20))))
	if len(long.Error()) > maxErrorText {
		t.Errorf("an error of %d bytes", len(long.Error()))
	}
}

func FuzzDescription(f *testing.F) {
	var b bytes.Buffer
	if err := description().write(&b); err != nil {
		f.Fatal(err)
	}
	f.Add(b.Bytes())
	f.Add([]byte(`{"schema":"fleet.plugin/v1"}`))
	f.Fuzz(func(t *testing.T, doc []byte) {
		d, err := ParseDescription(doc)
		if err != nil {
			return
		}
		if k, n, ok := ParseFileName(d.FileName()); !ok || k != d.Kind || n != d.Name {
			t.Fatalf("%q", d.FileName())
		}
		var out bytes.Buffer
		if err := d.write(&out); err != nil {
			t.Fatal(err)
		}
		again, err := ParseDescription(out.Bytes())
		if err != nil || !reflect.DeepEqual(again, d) {
			t.Fatalf("%+v became %+v, %v", d, again, err)
		}
	})
}
