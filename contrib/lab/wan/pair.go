package wan

import (
	"net"
	"sync"
	"time"
)

// chunkSize keeps a capped connection smooth: a chunk passes whole.
const chunkSize = 16 << 10

// chunk is what one read gave, and when it may be delivered.
type chunk struct {
	data []byte
	due  time.Time
	end  bool // the sender closed its half
}

// pair is one client connection and its server connection.
type pair struct {
	proxy          *Proxy
	client, server *net.TCPConn
	limits         [2]int64
	once, forget   sync.Once
	done           chan struct{} // closed when the pair was reset or closed
	forgotten      chan struct{} // closed when no byte passes any more

	mu      sync.Mutex
	request requestFinder
	swallow *Swallow
	quiet   *time.Timer
}

func (c *pair) ends(d Direction) (from, to *net.TCPConn) {
	if d == Up {
		return c.client, c.server
	}
	return c.server, c.client
}

// reset ends the pair with RST on both sides.
func (c *pair) reset() {
	for _, conn := range []*net.TCPConn{c.client, c.server} {
		if conn != nil {
			_ = conn.SetLinger(0)
		}
	}
	c.close()
}

func (c *pair) close() {
	c.once.Do(func() {
		close(c.done)
		c.client.Close()
		if c.server != nil {
			c.server.Close()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.quiet != nil {
			c.quiet.Stop()
		}
		if c.swallow != nil {
			close(c.swallow.done)
			c.swallow = nil
		}
	})
}

// read takes chunks from one end and stamps them.
func (c *pair) read(d Direction, queue chan<- chunk) {
	defer close(queue)
	from, _ := c.ends(d)
	for {
		buf := make([]byte, chunkSize)
		n, err := from.Read(buf)
		c.proxy.mu.Lock()
		delay := c.proxy.profile.Delay
		c.proxy.mu.Unlock()
		if n > 0 {
			select {
			case queue <- chunk{data: buf[:n], due: time.Now().Add(delay)}:
			case <-c.done:
				return
			}
		}
		if err == nil {
			continue
		}
		if !isEOF(err) {
			c.reset()
			return
		}
		select {
		case queue <- chunk{due: time.Now().Add(delay), end: true}:
		case <-c.done:
		}
		return
	}
}

// write delivers chunks when they are due, no faster than the cap.
func (c *pair) write(d Direction, queue <-chan chunk) {
	_, to := c.ends(d)
	var sent int64
	var free time.Time // when the capped line has room again
	for ch := range queue {
		at := ch.due
		if free.After(at) {
			at = free
		}
		if !c.until(at) || !c.flowing() {
			return
		}
		if ch.end {
			_ = to.CloseWrite()
			return
		}
		data, last := ch.data, false
		if limit := c.limits[d]; limit > 0 && sent+int64(len(data)) >= limit {
			data, last = data[:limit-sent], true
		}
		if !c.deliver(d, to, data) {
			c.reset()
			return
		}
		sent += int64(len(data))
		if last {
			c.drainAndReset(to)
			return
		}
		free = time.Now().Add(c.cost(d, len(data)))
	}
}

// deliver writes data, or throws it away when it belongs to the answer that is lost.
func (c *pair) deliver(d Direction, to *net.TCPConn, data []byte) bool {
	if d == Up {
		c.arm(data)
	} else if c.lost(len(data)) {
		return true
	}
	n, err := to.Write(data)
	c.proxy.mu.Lock()
	c.proxy.forwarded[d] += int64(n)
	c.proxy.mu.Unlock()
	return err == nil
}

// drainAndReset gives the last bytes to the receiver before the reset: a reset overtakes what is still in the
// sending buffer.
func (c *pair) drainAndReset(to *net.TCPConn) {
	waitSent(to, c.done)
	c.reset()
}

// cost is how long n bytes take on the capped line.
func (c *pair) cost(d Direction, n int) time.Duration {
	c.proxy.mu.Lock()
	defer c.proxy.mu.Unlock()
	rate := c.proxy.profile.UpBytes
	if d == Down {
		rate = c.proxy.profile.DownBytes
	}
	if rate <= 0 {
		return 0
	}
	return time.Duration(n) * time.Second / time.Duration(rate)
}

func (c *pair) until(at time.Time) bool {
	wait := time.Until(at)
	if wait <= 0 {
		return true
	}
	timer := time.NewTimer(wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-c.done:
		return false
	}
}

func (c *pair) flowing() bool {
	for {
		select {
		case <-c.forgotten:
			<-c.done
			return false
		default:
		}
		c.proxy.mu.Lock()
		flow := c.proxy.flow
		c.proxy.mu.Unlock()
		select {
		case <-flow:
			return true
		case <-c.forgotten:
		case <-c.done:
			return false
		}
	}
}

// arm looks whether data, on its way to the server, is the request whose answer is to be lost.
func (c *pair) arm(data []byte) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.request.has(data) {
		return
	}
	c.proxy.mu.Lock()
	s := c.proxy.swallow
	c.proxy.swallow = nil
	c.proxy.mu.Unlock()
	if s != nil {
		c.swallow = s
	}
}

// lost says whether n bytes of the server are thrown away, and puts off the moment at which the answer is complete.
func (c *pair) lost(n int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.swallow == nil {
		return false
	}
	c.swallow.add(n)
	c.proxy.mu.Lock()
	settle := c.proxy.profile.Settle
	c.proxy.mu.Unlock()
	if settle == 0 {
		settle = 300 * time.Millisecond
	}
	if c.quiet == nil {
		c.quiet = time.AfterFunc(settle, c.reset)
	} else {
		c.quiet.Reset(settle)
	}
	return true
}

// requestFinder finds application data in what a client sends. A stream that starts like TLS has it in records of
// type 23; in TLS 1.3 the client's last handshake message looks the same, and by then the server has sent all that
// the client needs before its request. See RFC 8446, 5.1.
type requestFinder struct {
	started, tls bool
	header       []byte
	rest         int // bytes of the present record still to come
	kind         byte
}

func (f *requestFinder) has(data []byte) bool {
	if len(data) == 0 {
		return false
	}
	const handshake, application = 22, 23
	if !f.started {
		f.started, f.tls = true, data[0] == handshake
	}
	if !f.tls {
		return true
	}
	found := false
	for len(data) > 0 {
		if f.rest > 0 {
			found = found || f.kind == application
			n := min(f.rest, len(data))
			f.rest -= n
			data = data[n:]
			continue
		}
		n := min(5-len(f.header), len(data))
		f.header = append(f.header, data[:n]...)
		data = data[n:]
		if len(f.header) == 5 {
			f.kind = f.header[0]
			f.rest = int(f.header[3])<<8 | int(f.header[4])
			f.header = f.header[:0]
		}
	}
	return found
}
