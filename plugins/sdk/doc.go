// Package sdk is all that a plugin of fleet imports.
//
// A plugin is a program of its own, named fleet-KIND-NAME, that serves one of
// three interfaces: ServiceManager, Probe or Transport. Its main is one call:
//
//	func main() { sdk.ServeProbe(description, probe{}) }
//
// The call answers `NAME describe` and `NAME --version` and then serves until
// the host is gone. It owns standard input, standard output and the logger: the
// plugin writes nothing there and logs through Logger. When the host dies, for
// whatever reason, the plugin's process group ends and its sockets are removed.
//
// What a plugin may do on a machine it does through Host. Private keys, trust
// decisions and credentials stay with the host process; none of them is
// reachable from here.
//
// The package must not know any other part of fleet.
package sdk
