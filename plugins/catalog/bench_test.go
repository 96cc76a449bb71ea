package catalog_test

import (
	"context"
	"testing"
)

// BenchmarkLaunch is one launch and end of a first-party plugin, with mutual TLS.
func BenchmarkLaunch(b *testing.B) {
	c, d := home(b)
	withOwn(b, d)
	for b.Loop() {
		p, err := c.LaunchProbe(context.Background(), "host")
		if err != nil {
			b.Fatal(err)
		}
		if err := p.Close(); err != nil {
			b.Fatal(err)
		}
	}
}

// BenchmarkCall is one call that asks the host several things.
func BenchmarkCall(b *testing.B) {
	c, d := home(b)
	withOwn(b, d)
	p, err := c.LaunchProbe(context.Background(), "host")
	if err != nil {
		b.Fatal(err)
	}
	defer p.Close()
	h := here(b)
	for b.Loop() {
		if _, err := p.Probe(context.Background(), h); err != nil {
			b.Fatal(err)
		}
	}
}
