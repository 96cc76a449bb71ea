package watch

// begin watches the target's directory; run goes on from there.
func begin(t *Target) (look, error) {
	l, err := beginTree(t)
	if err != nil {
		return nil, err
	}
	return l, nil
}
