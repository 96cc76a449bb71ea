// Package golden holds the documents that programs print and store to their
// golden files: a field that is renamed, retyped or lost shows as a difference.
//
// It belongs to tests; no program imports it. It knows no document.
package golden

import (
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"reflect"
	"testing"
	"time"
)

var update = flag.Bool("update-documents", false, "write the golden files of documents")

// Documents compares each document with testdata/NAME.golden: once with every
// field filled and once with none, which shows what is left out when empty.
// What a given value has already, as its schema, stays.
func Documents(t *testing.T, documents map[string]any) {
	t.Helper()
	for name, doc := range documents {
		full := reflect.New(reflect.TypeOf(doc)).Elem()
		full.Set(reflect.ValueOf(doc))
		fill(full, 0)
		got := encode(t, full.Interface()) + encode(t, doc)
		path := filepath.Join("testdata", name+".golden")
		if *update {
			if err := os.MkdirAll("testdata", 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		} else if got != string(want) {
			t.Errorf("%s differs; got:\n%s\nwant:\n%s", path, got, want)
		}
	}
}

func encode(t *testing.T, v any) string {
	t.Helper()
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	return string(b) + "\n"
}

// deepest ends what contains itself.
const deepest = 8

// fill gives every empty field that can be set a value of its type.
func fill(v reflect.Value, depth int) {
	if !v.CanSet() || !v.IsZero() && v.Kind() != reflect.Struct || depth > deepest {
		return
	}
	if v.Type() == reflect.TypeFor[time.Time]() {
		v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
		return
	}
	switch v.Kind() {
	case reflect.String:
		v.SetString("text")
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64:
		v.SetInt(7)
	case reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64:
		v.SetUint(7)
	case reflect.Float32, reflect.Float64:
		v.SetFloat(1.5)
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fill(v.Elem(), depth+1)
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 1, 1))
		fill(v.Index(0), depth+1)
	case reflect.Array:
		for i := range v.Len() {
			fill(v.Index(i), depth+1)
		}
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fill(key, depth+1)
		fill(value, depth+1)
		v.SetMapIndex(key, value)
	case reflect.Struct:
		for i := range v.NumField() {
			fill(v.Field(i), depth+1)
		}
	}
}
