// Package wire holds the documents that fleet's programs exchange: between a
// machine and the plane, between a person and the plane, and between a person
// and a machine's agent. agentd and planed never import each other; what they
// agree on stands here.
//
// Documents are additive: a field may be added, never renamed, retyped or
// given another meaning. The types here carry JSON only. Programs think in
// their own types and convert at their edge.
//
// The package imports the standard library alone, and of that nothing that
// opens a socket, so that the smallest binary can afford it.
package wire
