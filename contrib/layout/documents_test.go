package layout

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// schema is a document's name as the code spells it.
var schema = regexp.MustCompile(`"(fleet\.[a-z-]+/v[0-9]+)"`)

// TestEveryDocumentHasAGoldenFile: what is parsed elsewhere changes in view. A
// script that shows a document holds it too.
func TestEveryDocumentHasAGoldenFile(t *testing.T) {
	held := map[string]bool{}
	err := filepath.WalkDir("../..", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() && strings.HasPrefix(d.Name(), ".") && d.Name() != ".." {
			if d != nil && d.IsDir() && err == nil {
				return fs.SkipDir
			}
			return err
		}
		if ext := filepath.Ext(path); ext != ".golden" && ext != ".txtar" {
			return nil
		}
		b, err := os.ReadFile(path)
		for _, m := range schema.FindAllStringSubmatch(string(b), -1) {
			held[m[1]] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for _, p := range ours(t) {
		if strings.HasPrefix(strings.TrimPrefix(p.ImportPath, module), "contrib/") {
			continue
		}
		for _, f := range p.GoFiles {
			b, err := os.ReadFile(filepath.Join(p.Dir, f))
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range schema.FindAllStringSubmatch(string(b), -1) {
				if n++; !held[m[1]] {
					t.Errorf("%s/%s: %s stands in no golden file", strings.TrimPrefix(p.ImportPath, module), f, m[1])
				}
			}
		}
	}
	if n < 20 {
		t.Errorf("only %d documents were found", n)
	}
}
