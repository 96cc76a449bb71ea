package files

import "fleet.example/fleet/core/tree"

// Source opens what a copy takes from here.
func (f *Files) Source(p string, recursive bool) (*tree.Source, error) {
	at, err := f.resolve(p)
	if err != nil {
		return nil, err
	}
	return tree.OpenSource(f.Tree, at, recursive)
}

// Destination opens where a copy of something called base goes.
func (f *Files) Destination(p, base, as string) (*tree.Destination, error) {
	at, err := f.resolve(p)
	if err != nil {
		return nil, err
	}
	return tree.OpenDestination(f.Tree, at, base, as)
}
