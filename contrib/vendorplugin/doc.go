// Package vendorplugin has no code. Below it are a template for vendors'
// plugins, fleet-probe-acme, and one that does everything wrong, for tests.
package vendorplugin
