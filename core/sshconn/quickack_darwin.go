package sshconn

import "net"

// promptly does nothing where the system has no such option.
func promptly(c net.Conn) net.Conn { return c }
