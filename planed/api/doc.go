// Package api is the plane's HTTP interface: one table of routes that says who
// may call each, one place that authenticates and bounds requests, one place
// that turns errors into answers, and a short way for checks, which are nearly
// all of the traffic.
//
// Who calls is decided by the bearer secret alone and never by what a request
// says (R13). Only a person's session admits, deletes or makes principals
// (R8): the table has no route that does so for anybody else. Nothing here
// stores, logs or counts by a network address (R18); the one use of a remote
// address is the keyed hash that the login limiter makes of it.
//
// The package must not know how the store keeps things, nor commands, files or
// sockets.
package api
