package agent

import (
	"os"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"

	"fleet.example/fleet/agentd/api"
)

// Sockets are what one program leaves of its sockets to the next in the same
// process, by their names.
type Sockets struct {
	mu   sync.Mutex
	left map[string]api.Left
}

// Take gives out what was left of a socket, once.
func (s *Sockets) Take(name string) api.Left {
	s.mu.Lock()
	defer s.mu.Unlock()
	l := s.left[name]
	delete(s.left, name)
	return l
}

// Put keeps what is left of a socket.
func (s *Sockets) Put(name string, l api.Left) {
	if len(l) == 0 {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.left == nil {
		s.left = map[string]api.Left{}
	}
	s.left[name] = l
}

// String is what Inherited reads: names with descriptors.
func (s *Sockets) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	var words []string
	for name, l := range s.left {
		words = append(words, name+"="+l.Numbers())
	}
	return strings.Join(words, " ")
}

// Bequeath has the descriptors stay open in the program that this process
// becomes.
func (s *Sockets) Bequeath() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, l := range s.left {
		for _, f := range l {
			unix.FcntlInt(f.Fd(), unix.F_SETFD, 0)
		}
	}
}

// Inherited is what the program before left in this process. None of it reaches
// the programs that this one starts.
func Inherited(words string) *Sockets {
	s := &Sockets{}
	for _, word := range strings.Fields(words) {
		name, numbers, _ := strings.Cut(word, "=")
		var l api.Left
		for _, n := range strings.Split(numbers, ",") {
			fd, err := strconv.Atoi(n)
			if err != nil || fd <= 2 {
				continue
			}
			syscall.CloseOnExec(fd)
			l = append(l, os.NewFile(uintptr(fd), name))
		}
		s.Put(name, l)
	}
	return s
}
