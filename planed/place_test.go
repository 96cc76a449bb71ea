package planed_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/crypto/ssh"

	"fleet.example/fleet/core/artifact"
	"fleet.example/fleet/core/fault"
	"fleet.example/fleet/core/planeclient"
	"fleet.example/fleet/core/wire"
)

// begins is a request to move the plane, signed by a key.
func begins(t *testing.T, key ssh.Signer, namespace string, st wire.Statement) wire.RotationRequest {
	t.Helper()
	b, err := json.Marshal(st)
	if err != nil {
		t.Fatal(err)
	}
	sig, err := artifact.Sign(b, key, namespace)
	if err != nil {
		t.Fatal(err)
	}
	return wire.RotationRequest{Action: wire.RotationStart, Statement: string(b), Signature: string(sig)}
}

func (p *plane) moves(version int64, url string) wire.Statement {
	return wire.Statement{Schema: wire.SchemaStatement, Kind: wire.MaterialURL, Version: version, Planes: []string{p.url}, URL: url,
		SignedAt: wire.Time{Time: time.Now().UTC().Truncate(time.Second)}}
}

func refusedWith(t *testing.T, err error, code, words string) {
	t.Helper()
	var f *fault.Error
	if !errors.As(err, &f) || f.Code != code || !strings.Contains(f.Error(), words) {
		t.Errorf("%v, not %s: %s", err, code, words)
	}
}

// Machines judge statements by themselves. The plane refuses beforehand what
// they would not take, so that a person hears of it. // R26, R37
func TestStatementsThatThePlaneDoesNotHandOut(t *testing.T) {
	p := newPlane(t, "--test-floor", "100ms", "--check-interval", "500ms")
	key := newKey(t)
	c, err := p.login(key, p.invite)
	if err != nil {
		t.Fatal(err)
	}
	to := "https://127.0.0.1:1"
	other := p.moves(2, to)
	other.Planes = []string{"https://other.example"}
	spelled := p.moves(2, "https://ELSEWHERE.example")
	cut := begins(t, key, wire.NamespaceMaterial, p.moves(2, to))
	cut.Statement = cut.Statement[:len(cut.Statement)-1]
	roots := p.moves(2, "")
	roots.Kind, roots.RootsPEM = wire.MaterialTrust, p.roots
	for name, try := range map[string]struct {
		req         wire.RotationRequest
		code, words string
	}{
		"unsigned":          {wire.RotationRequest{Action: wire.RotationStart}, wire.CodeBadRequest, "signed statement"},
		"nobody's key":      {begins(t, newKey(t), wire.NamespaceMaterial, p.moves(2, to)), wire.CodeConflict, "nobody's key"},
		"login's namespace": {begins(t, key, wire.NamespaceLogin, p.moves(2, to)), wire.CodeBadRequest, "signature"},
		"another plane's":   {begins(t, key, wire.NamespaceMaterial, other), wire.CodeConflict, "does not name"},
		"a later version":   {begins(t, key, wire.NamespaceMaterial, p.moves(3, to)), wire.CodeConflict, "the next one is 2"},
		"an old version":    {begins(t, key, wire.NamespaceMaterial, p.moves(1, to)), wire.CodeConflict, "the next one is 2"},
		"plain http":        {begins(t, key, wire.NamespaceMaterial, p.moves(2, "http://127.0.0.1:1")), wire.CodeBadRequest, "https"},
		"other spelling":    {begins(t, key, wire.NamespaceMaterial, spelled), wire.CodeBadRequest, "spelling"},
		"the same URL":      {begins(t, key, wire.NamespaceMaterial, p.moves(2, p.url)), wire.CodeConflict, "already"},
		"about the roots":   {begins(t, key, wire.NamespaceMaterial, roots), wire.CodeBadRequest, "about the trust"},
		"cut":               {cut, wire.CodeBadRequest, "no statement"},
		"a drill":           {wire.RotationRequest{Action: wire.RotationStart, Drill: true}, wire.CodeBadRequest, "not rehearsed"},
	} {
		_, err := c.SteerRotation(t.Context(), wire.MaterialURL, try.req)
		t.Run(name, func(t *testing.T) { refusedWith(t, err, try.code, try.words) })
	}
	if r, err := c.MaterialRotation(t.Context(), wire.MaterialURL); err != nil || r.State != wire.RotationIdle || r.Next != 2 || r.Value != p.url || len(r.Planes) != 1 {
		t.Fatalf("%+v, %v", r, err)
	}
}

// A plane that is killed at any step of a move goes on where it was, and says
// what it said to whoever comes to either URL. // R26
func TestAMoveGoesOnAfterEveryKill(t *testing.T) {
	p := newPlane(t, "--test-floor", "100ms", "--check-interval", "500ms")
	key := newKey(t)
	c, err := p.login(key, p.invite)
	if err != nil {
		t.Fatal(err)
	}
	b := p.newBox()
	b.admit(c, "box")
	old, to := p.url, strings.Replace(p.url, "localhost", "127.0.0.1", 1) // two names of one address
	token := c
	state := func() (r wire.MaterialRotation) {
		t.Helper()
		var err error
		p.until("the plane tells", func() bool {
			r, err = token.MaterialRotation(t.Context(), wire.MaterialURL)
			return err == nil
		})
		return r
	}
	again := func() {
		p.kill()
		p.start()
	}
	check := func(url string, have int64) (int, wire.CheckAnswer) {
		t.Helper()
		p.url = url
		defer func() { p.url = old }()
		body := `{"lifecycle":{"state":"running","reason":null},"readiness":null}`
		if have > 0 {
			body = `{"lifecycle":{"state":"running","reason":null},"readiness":null,"have":{"url":2}}`
		}
		status, answer, err := b.post(wire.PathCheck, b.secret, body)
		if err != nil {
			t.Fatal(err)
		}
		var a wire.CheckAnswer
		if status == http.StatusOK {
			if err := json.Unmarshal(answer, &a); err != nil {
				t.Fatal(err)
			}
		}
		return status, a
	}
	if status, a := check(old, 0); status != http.StatusOK || len(a.Want) != 0 {
		t.Fatal(status, a)
	}
	req := begins(t, key, wire.NamespaceMaterial, p.moves(2, to))
	if _, err := c.SteerRotation(t.Context(), wire.MaterialURL, req); err != nil {
		t.Fatal(err)
	}
	again()
	if r := state(); r.Step != wire.StepWiden || !strings.Contains(r.Waiting, to) {
		t.Fatalf("%+v", r)
	}
	if _, a := check(old, 0); a.Want[wire.MaterialURL] != 0 {
		t.Fatal("a machine is sent where nobody was")
	}
	there := p.at(to, c)
	p.until("somebody was at the new URL", func() bool {
		if _, err := there.MaterialRotation(t.Context(), wire.MaterialURL); err != nil {
			t.Fatal(err)
		}
		return state().Step == wire.StepRoll
	})
	again()
	if status, a := check(old, 0); status != http.StatusOK || a.Want[wire.MaterialURL] != 2 {
		t.Fatal(status, a)
	}
	if r := state(); len(r.Stragglers) != 1 || r.Stragglers[0].Name != "box" || r.Stragglers[0].Version != 0 {
		t.Fatalf("%+v", r)
	}
	if status, a := check(to, 2); status != http.StatusOK || a.Want[wire.MaterialURL] != 0 {
		t.Fatal(status, a)
	}
	p.until("it proves", func() bool { check(to, 2); return state().Step != wire.StepRoll })
	again()
	p.until("it is done", func() bool { check(to, 2); return state().State == wire.RotationDone })
	again()
	if r := state(); r.Version != 2 || r.Value != to || len(r.Planes) != 2 {
		t.Fatalf("%+v", r)
	}
	// Who slept is refused with its check, and told all the same.
	if status, _ := check(old, 0); status != http.StatusUnauthorized {
		t.Fatal(status)
	}
	m, want := b.material(old, wire.MaterialURL, 0)
	if m != nil || want != 2 {
		t.Fatal(m, want)
	}
	if m, _ = b.material(old, wire.MaterialURL, 2); m == nil || m.Value != req.Statement || m.Signature != req.Signature {
		t.Fatalf("%+v", m)
	}
	// Neither URL is another plane's to a person.
	for _, url := range []string{old, to} {
		p.url = url
		if _, err := p.login(key, ""); err != nil {
			t.Error(url, err)
		}
	}
	p.url = old
}

// at is the client's session at another URL.
func (p *plane) at(url string, c *planeclient.Client) *planeclient.Client {
	p.t.Helper()
	there, err := c.At(url)
	if err != nil {
		p.t.Fatal(err)
	}
	return there
}

// material is what the plane gives of a kind, or the version that it would.
func (b *box) material(url, kind string, version int64) (*wire.Material, int64) {
	b.p.t.Helper()
	req, err := http.NewRequestWithContext(b.p.t.Context(), "GET", url+wire.PathMaterial+"/"+kind+"/"+string(rune('0'+version)), nil)
	if err != nil {
		b.p.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer "+b.id+"."+b.secret.Reveal())
	resp, err := b.http.Do(req)
	if err != nil {
		b.p.t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var e wire.Error
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil {
			b.p.t.Fatal(err)
		}
		return nil, e.Error.Want[kind]
	}
	var m wire.Material
	if err := json.NewDecoder(resp.Body).Decode(&m); err != nil {
		b.p.t.Fatal(err)
	}
	return &m, 0
}
