// Package proto is the root of the protocols between fleet and its plugins.
// The packages below hold the protos and the Go code generated from them; the
// comments in the protos are what a vendor reads.
//
// A package with a version is immutable once it was released: fields are added,
// never renamed, retyped or given another meaning, and what would break goes
// into a new version that is served beside the old one. Nothing here imports
// any other part of fleet.
//
//	fleet/host/v1       what a plugin may ask of the machine it acts on
//	fleet/service/v1    service managers
//	fleet/probe/v1      probes
//	fleet/transport/v1  transports
package proto
