package sshconn_test

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"fleet.example/fleet/contrib/lab/loopback"
	"fleet.example/fleet/contrib/lab/wan"
	"fleet.example/fleet/core/hostkey"
	"fleet.example/fleet/core/sshconn"
)

// away puts a distance between the operator and the server.
func (o side) away(t testing.TB, s *loopback.Server, rtt time.Duration) side {
	t.Helper()
	p, err := wan.Listen(t.Context(), "127.0.0.1:0", net.JoinHostPort("127.0.0.1", strconv.Itoa(s.Port())), wan.Profile{Delay: rtt / 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { p.Close() })
	_, port, _ := net.SplitHostPort(p.Addr())
	conf := *o.params.Config
	conf.Port, _ = strconv.Atoi(port)
	o.params.Config = &conf
	return o
}

// Over a distance an upload takes several channels, or as many as the server
// allows, and what arrives is what was sent.
func TestUploadOverADistance(t *testing.T) {
	content := make([]byte, 9<<20+12345)
	rand.Read(content)
	for name, extra := range map[string]string{"": "", "one session": "MaxSessions 1", "two sessions": "MaxSessions 2"} {
		t.Run(name, func(t *testing.T) {
			s := server(t, extra)
			c := operator(t, s).away(t, s, 30*time.Millisecond).confirmed(t)
			target := filepath.Join(t.TempDir(), "x")
			if err := os.WriteFile(target, bytes.Repeat([]byte("old"), 5<<20), 0o644); err != nil {
				t.Fatal(err)
			}
			var last int64
			how, err := c.Upload(t.Context(), target, bytes.NewReader(content), int64(len(content)), func(n int64) {
				if n < last {
					t.Errorf("progress goes from %d to %d", last, n)
				}
				last = n
			})
			if err != nil || how != "sftp" || last != int64(len(content)) {
				t.Fatalf("%s, %v, %d bytes", how, err, last)
			}
			got, err := os.ReadFile(target)
			if err != nil || sha256.Sum256(got) != sha256.Sum256(content) {
				t.Errorf("%d bytes arrived, other than were sent: %v", len(got), err)
			}
			if st, err := os.Stat(target); err != nil || st.Mode().Perm() != 0o600 {
				t.Errorf("%v, %v", st.Mode(), err)
			}
		})
	}
}

// An upload of 16 MiB, connecting included, beside scp's over the same distance.
func BenchmarkUpload(b *testing.B) {
	const size = 16 << 20
	content := make([]byte, size)
	rand.Read(content)
	file := filepath.Join(b.TempDir(), "content")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		b.Fatal(err)
	}
	for _, rtt := range []time.Duration{0, 20 * time.Millisecond, 100 * time.Millisecond} {
		s, err := loopback.Start(b.Context(), loopback.Options{SSHDConfig: "SetEnv HOME=" + b.TempDir() + "\n"})
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { s.Close() })
		o := operatorFor(b, s).away(b, s, rtt)
		first, err := sshconn.Dial(b.Context(), o.params)
		if err != nil {
			b.Fatal(err)
		}
		if err := first.Confirm(b.Context(), hostkey.ByPrompt); err != nil {
			b.Fatal(err)
		}
		first.Close()
		b.Run(fmt.Sprintf("rtt=%s/fleet", rtt), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				c, err := sshconn.Dial(b.Context(), o.params)
				if err != nil {
					b.Fatal(err)
				}
				if _, err := c.Upload(b.Context(), filepath.Join(b.TempDir(), "x"), bytes.NewReader(content), size, nil); err != nil {
					b.Fatal(err)
				}
				c.Close()
			}
		})
		b.Run(fmt.Sprintf("rtt=%s/scp", rtt), func(b *testing.B) {
			b.SetBytes(size)
			for b.Loop() {
				out, err := exec.CommandContext(b.Context(), "scp", "-q", "-F", "/dev/null", "-i", s.KeyPath(), "-o", "IdentitiesOnly=yes", "-o", "StrictHostKeyChecking=no",
					"-o", "UserKnownHostsFile=/dev/null", "-P", strconv.Itoa(o.params.Config.Port), file, s.User()+"@127.0.0.1:"+filepath.Join(b.TempDir(), "y")).CombinedOutput()
				if err != nil {
					b.Fatalf("%v: %s", err, out)
				}
			}
		})
	}
}
