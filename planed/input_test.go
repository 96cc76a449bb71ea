package planed_test

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.etcd.io/bbolt"
	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
)

// edit changes the store's file while no plane has it.
func edit(t *testing.T, dir string, f func(tx *bbolt.Tx) error) {
	t.Helper()
	db, err := bbolt.Open(filepath.Join(dir, "plane.db"), 0o600, &bbolt.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(f); err != nil {
		t.Fatal(err)
	}
	if err := db.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestAStoreOfANewerVersionIsRefusedAndLeftAlone(t *testing.T) {
	p := initPlane(t, filepath.Join(t.TempDir(), "data"))
	file := filepath.Join(p.dir, "plane.db")
	edit(t, p.dir, func(tx *bbolt.Tx) error {
		meta := tx.Bucket([]byte("meta"))
		later := bytes.Clone(meta.Get([]byte("format")))
		later[len(later)-1]++
		return meta.Put([]byte("format"), later)
	})
	before, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	for _, args := range [][]string{{"serve", "--listen", "127.0.0.1:0"}, {"check"}, {"backup", filepath.Join(t.TempDir(), "copy.db")}, {"recover-owner"}} {
		args = append([]string{args[0], "--data", p.dir}, args[1:]...)
		if _, errOut, exit := planed(t, args...); exit != fault.Failure || !strings.Contains(errOut, "newer planed") {
			t.Errorf("planed %s: %d %s", args[0], exit, errOut)
		}
	}
	if after, err := os.ReadFile(file); err != nil || !bytes.Equal(before, after) {
		t.Error("the file was touched", err)
	}
}

func TestAnInvitationEnds(t *testing.T) { // R8
	p := newPlane(t)
	owner := p.owner()
	inv, err := owner.Invite(t.Context(), wire.PersonRequest{Name: "eve", Role: wire.RoleMember})
	if err != nil {
		t.Fatal(err)
	}
	p.term()
	edit(t, p.dir, func(tx *bbolt.Tx) error {
		b := tx.Bucket([]byte("invitation"))
		return b.ForEach(func(k, v []byte) error {
			var r map[string]any
			if err := json.Unmarshal(v, &r); err != nil {
				return err
			}
			r["expires_at"] = time.Now().Add(-time.Second)
			v, err := json.Marshal(r)
			if err != nil {
				return err
			}
			return b.Put(k, v)
		})
	})
	p.start()
	words := map[string]string{}
	for name, invite := range map[string]string{"expired": inv.Invitation, "used": p.invite, "unknown": secret.New("fi_").Reveal()} {
		_, err := p.login(newKey(t), invite)
		f := fault.Of(err)
		if f == nil || f.Exit != fault.NeedPerson {
			t.Errorf("%s: %v", name, err)
			continue
		}
		words[f.Msg+f.Hint] = name
	}
	if len(words) != 1 {
		t.Errorf("expired, used and unknown invitations are told apart: %q", words)
	}
}

func TestWhatIsNotKnownIsReadPastOnChecksAndNamedToPersons(t *testing.T) {
	p := newPlane(t)
	key := newKey(t)
	owner, err := p.login(key, p.invite)
	if err != nil {
		t.Fatal(err)
	}
	b := p.newBox()
	b.admit(owner, "web")
	later := strings.Replace(running, `{"name"`, `{"later":{"a":[1,{"b":null}]},"name"`, 1)
	later = strings.Replace(later, `"blockers":[]`, `"later":true,"blockers":[{"code":"x_y","severity":"block","detail":"d","remedy":"r","later":1}]`, 1)
	b.mustCheck(later)
	m, err := owner.Machine(t.Context(), b.id)
	if err != nil || m.Lifecycle.State != wire.LifecycleRunning || len(m.Readiness.Blockers) != 1 {
		t.Fatalf("%+v %v", m, err)
	}
	status, out := p.personPost(t, p.session(t, key), wire.PathMachines+"/"+b.id+"/rename", `{"name":"other","froce":true}`)
	if status != http.StatusBadRequest || !strings.Contains(out, "froce") {
		t.Error(status, out)
	}
	if m, err := owner.Machine(t.Context(), b.id); err != nil || m.Name != "web" {
		t.Errorf("%+v %v", m, err)
	}
}

// session is the secret of a session of its own.
func (p *plane) session(t *testing.T, key ssh.Signer) secret.Text {
	t.Helper()
	c := p.client(secret.Text{})
	ch, err := c.Challenge(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a, err := c.Login(t.Context(), signed(t, key, ch.Nonce, c.URL()))
	if err != nil {
		t.Fatal(err)
	}
	return secret.Of(a.Token)
}

// personPost sends a person's request as it is.
func (p *plane) personPost(t *testing.T, token secret.Text, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", p.url+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+token.Reveal())
	resp, err := p.machineHTTP().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestTruncatedAndOversizedBodiesAreRefusedAndHarmNobody(t *testing.T) {
	p := newPlane(t)
	owner := p.owner()
	b := p.newBox()
	b.admit(owner, "web")
	b.mustCheck(running)

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM([]byte(p.roots))
	for name, v := range map[string]struct {
		head, body string
		status     string // empty: the connection just ends
	}{
		"cut off":              {"Content-Length: 500\r\n", running[:40], ""},
		"cut off chunk":        {"Transfer-Encoding: chunked\r\n", "ff\r\n" + running[:40], ""},
		"cut off document":     {"Content-Length: 40\r\n", running[:40], "400"},
		"said to be oversized": {"Content-Length: 99999999999\r\n", "", "413"},
		"oversized":            {fmt.Sprintf("Content-Length: %d\r\n", wire.MaxCheckBody+1), strings.Repeat(" ", wire.MaxCheckBody+1), "413"},
		"oversized chunks": {"Transfer-Encoding: chunked\r\n",
			strings.Repeat(fmt.Sprintf("%x\r\n%s\r\n", 4096, strings.Repeat(" ", 4096)), wire.MaxCheckBody/4096+2) + "0\r\n\r\n", "413"},
		"deep": {fmt.Sprintf("Content-Length: %d\r\n", 20000), `{"later":` + strings.Repeat("[", 20000-9), "400"},
	} {
		conn, err := tls.Dial("tcp", strings.TrimPrefix(p.url, "https://"), &tls.Config{RootCAs: pool, ServerName: "localhost", NextProtos: []string{"http/1.1"}})
		if err != nil {
			t.Fatal(err)
		}
		_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
		b.seq++
		fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer %s.%s\r\n%s: %s\r\n%s\r\n",
			wire.PathCheck, b.id, b.secret.Reveal(), wire.HeaderCheck, wire.CheckMark{Instance: b.instance, Seq: b.seq, Clock: time.Now()}, v.head)
		io.WriteString(conn, v.body) // refused early, the rest is not taken
		if v.status == "" {
			_ = conn.CloseWrite()
		}
		line, err := bufio.NewReader(conn).ReadString('\n')
		conn.Close()
		if v.status == "" && err == nil && !strings.Contains(line, " 400 ") || v.status != "" && !strings.Contains(line, " "+v.status+" ") {
			t.Errorf("%s: %q %v", name, line, err)
		}
		b.mustCheck(running)
	}
	if m, err := owner.Machine(t.Context(), b.id); err != nil || m.Presence != wire.Present || m.Lifecycle.State != wire.LifecycleRunning {
		t.Errorf("%+v %v", m, err)
	}
	if strings.Contains(p.log.String(), "panic") {
		t.Error(p.log)
	}
}
