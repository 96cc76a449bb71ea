package place

import (
	"fmt"
	"net/netip"
)

// Loopback reads an address of the loopback interface with a port. Names are
// refused, since what they mean is another's to say, and so is every spelling
// that other software might read as another address.
func Loopback(addr string) (netip.AddrPort, error) {
	a, err := netip.ParseAddrPort(addr)
	switch {
	case err != nil:
		return a, fmt.Errorf("%q is not a loopback address with a port, such as 127.0.0.1:7750", addr)
	case a.Addr().Is4In6() || a.Addr().Zone() != "" || !a.Addr().IsLoopback():
		return a, fmt.Errorf("%s is not a loopback address, and fleet listens on no other", a.Addr())
	}
	return a, nil
}
