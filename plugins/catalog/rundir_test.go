package catalog

import (
	"os"
	"sync"
	"testing"
)

// Launches make their directories while others sweep what lost ones left.
func TestDirectoriesMadeAtOnceAreNotSwept(t *testing.T) { // R41
	base, err := os.MkdirTemp("/tmp", "fpr")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(base) })
	c := &Catalog{RunBase: base}
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for range 200 {
				d, err := c.newRunDir()
				if err != nil {
					t.Error(err)
					return
				}
				if _, err := os.Stat(d.path); err != nil {
					t.Error("swept while in use:", err)
				}
				if err := d.remove(); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}
