package muxserver

import (
	"bytes"
	"sync"
)

// maxSpeech bounds what is kept of one dial, in bytes: what is said last is why
// it failed, and what is said first is for whom a person does not wait.
const maxSpeech = 32 << 10

// speech is what programs on the way write on standard error while a connection
// is made. Everybody who waits for the connection hears all that is kept of it,
// whenever they came, each at their own pace.
type speech struct {
	mu   sync.Mutex
	text []byte
	gone int64 // bytes before text
	told int64 // where a dial that went well ended
	more chan struct{}
}

// settle says that from now on nobody listens.
func (s *speech) settle() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.told = s.gone + int64(len(s.text))
}

// unheard is what was said since then.
func (s *speech) unheard() []byte {
	text, _, _ := s.after(s.told)
	return text
}

func newSpeech() *speech { return &speech{more: make(chan struct{})} }

func (s *speech) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, p...)
	if over := len(s.text) - maxSpeech; over > 0 {
		s.text, s.gone = bytes.Clone(s.text[over:]), s.gone+int64(over)
	}
	close(s.more)
	s.more = make(chan struct{})
	return len(p), nil
}

// after returns what was written from an offset on, the offset behind it, and a
// channel that is closed when there is more.
func (s *speech) after(at int64) (text []byte, next int64, more <-chan struct{}) {
	s.mu.Lock()
	defer s.mu.Unlock()
	skip := max(0, at-s.gone)
	return bytes.Clone(s.text[skip:]), s.gone + int64(len(s.text)), s.more
}
