package lock

import (
	"errors"
	"path/filepath"
	"reflect"
	"strings"
	"testing"

	"fleet.example/fleet/plugins/sdk"
)

func entry(file, sum string) Entry {
	kind, name, _ := sdk.ParseFileName(file)
	return Entry{File: file, SHA256: sum, Description: sdk.Description{
		Schema: sdk.SchemaDescription, Kind: kind, Name: name, Version: "1", Protocols: []string{kind.Protocol()},
		Targets: []string{}, Commands: [][]string{},
	}}
}

var sum = strings.Repeat("0a", 32)

func TestSameLockGivesSameBytes(t *testing.T) { // issue 2: two builds give the same bytes
	a, b := entry("fleet-probe-a", sum), entry("fleet-service-b", sum)
	one, err := Lock{}.With(a).With(b).Encode()
	if err != nil {
		t.Fatal(err)
	}
	two, err := Lock{}.With(b).With(a).With(b).Encode()
	if err != nil || string(one) != string(two) {
		t.Errorf("%s\n%s\n%v", one, two, err)
	}
	path := filepath.Join(t.TempDir(), FileName)
	if err := Write(path, Lock{}.With(b).With(a)); err != nil {
		t.Fatal(err)
	}
	l, err := Read(path)
	if err != nil || !reflect.DeepEqual(l.Plugins, []Entry{a, b}) {
		t.Errorf("%+v, %v", l, err)
	}
	if _, ok := l.Without("fleet-probe-a").Get("fleet-probe-a"); ok {
		t.Error("it is still there")
	}
}

func TestMissingLockIsEmpty(t *testing.T) {
	l, err := Read(filepath.Join(t.TempDir(), "none"))
	if err != nil || len(l.Plugins) != 0 {
		t.Errorf("%+v, %v", l, err)
	}
}

func TestLockIsObeyedWholeOrNotAtAll(t *testing.T) { // R40
	good, err := Lock{}.With(entry("fleet-probe-a", sum)).Encode()
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty":          "",
		"torn":           string(good[:len(good)/2]),
		"trailing":       string(good) + "{}",
		"other schema":   strings.Replace(string(good), Schema, "fleet.plugins-lock/v2", 1),
		"short sum":      strings.Replace(string(good), sum, "abc", 1),
		"upper-case sum": strings.Replace(string(good), sum, strings.ToUpper(sum), 1),
		"a path":         strings.Replace(string(good), `"fleet-probe-a"`, `"../fleet-probe-a"`, 1),
		"another name":   strings.Replace(string(good), `"file": "fleet-probe-a"`, `"file": "fleet-probe-b"`, 1),
		"twice":          strings.Replace(string(good), `"plugins": [`, `"plugins": [`+strings.TrimSuffix(strings.TrimSpace(string(good[strings.Index(string(good), "[")+1:strings.LastIndex(string(good), "]")])), ",")+",", 1),
	} {
		if l, err := Parse([]byte(text)); !errors.Is(err, ErrMalformed) {
			t.Errorf("%s: %+v, %v", name, l, err)
		}
	}
	if _, err := Parse(good); err != nil {
		t.Error(err)
	}
}

func FuzzLock(f *testing.F) {
	good, err := Lock{}.With(entry("fleet-probe-a", sum)).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Fuzz(func(t *testing.T, b []byte) {
		l, err := Parse(b)
		if err != nil {
			if len(l.Plugins) > 0 {
				t.Fatal("a refused lock has entries")
			}
			return
		}
		again, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		if m, err := Parse(again); err != nil || len(m.Plugins) != len(l.Plugins) {
			t.Fatalf("%s\n%v", again, err)
		}
	})
}
