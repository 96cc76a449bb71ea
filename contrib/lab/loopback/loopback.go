// Package loopback runs an SSH server on 127.0.0.1 as the present user, with a host key, an authorized key and a
// configuration of its own. It is the poor man's lab: one can log in over real SSH without root, but only as oneself,
// on one's own system, home directory and service manager.
//
// It knows nothing of fleet and nothing of the lab. What a session starts and detaches from it is not the server's and
// is not ended with it.
package loopback

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// Options are the settings of a server. The zero value is enough.
type Options struct {
	// AuthorizedKeys are public key lines that may log in, besides the server's own client key.
	AuthorizedKeys []string
	// SSHDConfig is more sshd_config(5) text. It stands first, and wins.
	SSHDConfig string
}

// Server is a running SSH server.
type Server struct {
	dir     string
	user    string
	port    int
	hostKey string
	stdin   io.WriteCloser
	done    chan struct{} // closed when the keeper has ended
}

// keeper starts sshd, and ends it and its sessions when standard input ends: at Close, or when the owner dies. It is
// sshd's parent, so that the process it kills cannot be another one. Arguments: directory, sshd.
const keeper = `trap '' INT TERM HUP QUIT
"$2" -D -e -f "$1/sshd_config" </dev/null >"$1/log" 2>&1 &
server=$!
echo $server >"$1/pid"
cat >/dev/null
sessions=$(ps -A -o pid= -o ppid= | awk -v root=$server '
	{ parent[$1] = $2 }
	END {
		for (pid in parent) {
			p = pid
			for (depth = 0; depth < 64 && p in parent; depth++) {
				p = parent[p]
				if (p == root) { print pid; break }
			}
		}
	}')
# shellcheck disable=SC2086 # one argument a process
kill -9 $server $sessions 2>/dev/null
wait $server
rm -rf "$1"
`

// Start starts a server on a free port of 127.0.0.1 and waits until it answers. The context bounds Start alone.
// Whoever calls Start calls Close. As root, sshd also needs /run/sshd, which Start makes and nobody removes.
func Start(ctx context.Context, opts Options) (*Server, error) {
	sshd, err := findSSHD()
	if err != nil {
		return nil, err
	}
	me, err := user.Current()
	if err != nil {
		return nil, fmt.Errorf("cannot find out the present user: %w", err)
	}
	if os.Geteuid() == 0 {
		if err := os.MkdirAll("/run/sshd", 0o755); err != nil {
			return nil, fmt.Errorf("cannot start ssh server: %w", err)
		}
	}
	// A port that is free now may be taken by the time sshd binds it.
	for {
		s, err := try(ctx, me.Username, sshd, opts)
		if !errors.Is(err, errPortTaken) || ctx.Err() != nil {
			return s, err
		}
	}
}

var errPortTaken = errors.New("the port was taken meanwhile")

// try makes a server in a directory of its own.
func try(ctx context.Context, name, sshd string, opts Options) (*Server, error) {
	dir, err := os.MkdirTemp("", "fleet-loopback")
	if err != nil {
		return nil, fmt.Errorf("cannot start ssh server: %w", err)
	}
	s := &Server{dir: dir, user: name}
	if err := s.makeKeys(ctx, opts.AuthorizedKeys); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.configure(ctx, sshd, opts.SSHDConfig); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	if err := s.start(ctx, sshd); err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	return s, nil
}

func findSSHD() (string, error) {
	// sshd insists on being called by its whole path.
	for _, path := range []string{"/usr/sbin/sshd", "/usr/local/sbin/sshd", "/sbin/sshd", "/usr/bin/sshd"} {
		if _, err := os.Stat(path); err == nil {
			return path, nil
		}
	}
	return "", errors.New("cannot start ssh server: no sshd (package openssh-server)")
}

func (s *Server) makeKeys(ctx context.Context, authorized []string) error {
	for _, name := range []string{"host_key", "client_key"} {
		cmd := exec.CommandContext(ctx, "ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "loopback", "-f", filepath.Join(s.dir, name))
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("cannot make key: %w: %s", err, out)
		}
	}
	host, err := os.ReadFile(filepath.Join(s.dir, "host_key.pub"))
	if err != nil {
		return fmt.Errorf("cannot make key: %w", err)
	}
	f := strings.Fields(string(host))
	s.hostKey = f[0] + " " + f[1]
	client, err := os.ReadFile(s.KeyPath() + ".pub")
	if err != nil {
		return fmt.Errorf("cannot make key: %w", err)
	}
	lines := append([]string{strings.TrimSpace(string(client))}, authorized...)
	if err := os.WriteFile(filepath.Join(s.dir, "authorized_keys"), []byte(strings.Join(lines, "\n")+"\n"), 0o600); err != nil {
		return fmt.Errorf("cannot authorize key: %w", err)
	}
	return nil
}

func (s *Server) configure(ctx context.Context, sshd, extra string) error {
	port, err := freePort(ctx)
	if err != nil {
		return err
	}
	s.port = port
	// StrictModes would refuse a directory under /tmp, and PAM needs root.
	config := strings.TrimRight(extra, "\n") + fmt.Sprintf(`
ListenAddress 127.0.0.1
Port %d
HostKey %[2]s/host_key
AuthorizedKeysFile %[2]s/authorized_keys
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
Subsystem sftp internal-sftp
`, port, s.dir)
	if err := os.WriteFile(filepath.Join(s.dir, "sshd_config"), []byte(config), 0o600); err != nil {
		return fmt.Errorf("cannot start ssh server: %w", err)
	}
	out, err := exec.CommandContext(ctx, sshd, "-t", "-f", filepath.Join(s.dir, "sshd_config")).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cannot start ssh server: %w: %s", err, out)
	}
	return nil
}

func (s *Server) start(ctx context.Context, sshd string) error {
	cmd := exec.Command("sh", "-c", keeper, "fleet-loopback", s.dir, sshd)
	cmd.Dir = "/"
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return fmt.Errorf("cannot start ssh server: %w", err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("cannot start ssh server: %w", err)
	}
	s.stdin, s.done = stdin, make(chan struct{})
	go func() {
		defer close(s.done)
		_ = cmd.Wait()
	}()
	if err := s.await(ctx); err != nil {
		return errors.Join(err, s.Close())
	}
	return nil
}

// await waits for sshd's greeting.
func (s *Server) await(ctx context.Context) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		said := s.Log()
		if strings.Contains(said, "Address already in use") {
			return errPortTaken
		}
		err := s.greets(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("cannot start ssh server: %w (%v)\n%s", err, context.Cause(ctx), said)
		case <-tick.C:
		}
	}
}

// greets says whether sshd answers, and that it is this one: its log speaks of the port.
func (s *Server) greets(ctx context.Context) error {
	if !strings.Contains(s.Log(), "Server listening on 127.0.0.1 port "+strconv.Itoa(s.port)) {
		return errors.New("it does not listen yet")
	}
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", s.Addr())
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	line, err := bufio.NewReader(conn).ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "SSH-") {
		return fmt.Errorf("no SSH greeting: %q %v", line, err)
	}
	return nil
}

// Close ends the server and its sessions, and removes its files. Closing twice is no error.
func (s *Server) Close() error {
	s.stdin.Close()
	select {
	case <-s.done:
		return nil
	case <-time.After(30 * time.Second):
		return errors.New("cannot stop ssh server: its keeper still runs")
	}
}

// Addr is the host and port the server listens on.
func (s *Server) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(s.port)) }

// Port is the port the server listens on.
func (s *Server) Port() int { return s.port }

// User is the account that can log in.
func (s *Server) User() string { return s.user }

// KeyPath is a private key without passphrase that may log in. It is gone after Close.
func (s *Server) KeyPath() string { return filepath.Join(s.dir, "client_key") }

// HostKey is the public host key, as "type base64".
func (s *Server) HostKey() string { return s.hostKey }

// KnownHosts is known_hosts text for the server.
func (s *Server) KnownHosts() string {
	return fmt.Sprintf("[127.0.0.1]:%d %s\n", s.port, s.hostKey)
}

// PID is sshd's process id.
func (s *Server) PID() int {
	data, err := os.ReadFile(filepath.Join(s.dir, "pid"))
	if err != nil {
		return 0
	}
	pid, _ := strconv.Atoi(strings.TrimSpace(string(data)))
	return pid
}

// Log is what sshd has said so far.
func (s *Server) Log() string {
	data, err := os.ReadFile(filepath.Join(s.dir, "log"))
	if err != nil {
		return ""
	}
	return string(data)
}

func freePort(ctx context.Context) (int, error) {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return 0, fmt.Errorf("cannot find a free port: %w", err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}
