package api

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"reflect"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/machine"
	"fleet.example/fleet/planed/store"
)

// endless is a body that goes on for as long as it is read.
type endless struct{ read int64 }

func (e *endless) Read(p []byte) (int, error) {
	const most = 10 << 20
	if e.read >= most {
		return 0, io.EOF
	}
	for i := range p {
		p[i] = ' '
	}
	e.read += int64(len(p))
	return len(p), nil
}

// target is the route's path with something in each of its places.
func (w *world) target(rt Route) string {
	return strings.NewReplacer("{id}", w.id, "{name}", "member", "{fingerprint}", "SHA256:x", "{kind}", "gate", "{version}", "1").Replace(rt.Path)
}

// TestTenMebibytesAreReadByNoRoute: whoever sends them, and whether they say so
// or not, no more than the route's own bound is taken in.
func TestTenMebibytesAreReadByNoRoute(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	for _, rt := range Routes {
		for _, who := range []string{"nobody", "owner", "machine"} {
			for _, said := range []int64{-1, 10 << 20} {
				body := &endless{}
				r := httptest.NewRequest(rt.Method, w.target(rt), body)
				r.ContentLength = said
				r.Header.Set(wire.HeaderCheck, "instance=a; seq=1")
				if c := w.creds[who]; c != "" {
					r.Header.Set("Authorization", "Bearer "+c)
				}
				rec := httptest.NewRecorder()
				w.h.ServeHTTP(rec, r)
				if rec.Code != http.StatusRequestEntityTooLarge {
					t.Errorf("%s %s as %s, length %d: %d", rt.Method, rt.Path, who, said, rec.Code)
				}
				if slack := int64(4 << 10); body.read > rt.MaxBody+1+slack || said > 0 && body.read > 0 {
					t.Errorf("%s %s as %s, length %d: %d bytes were read of a body of at most %d", rt.Method, rt.Path, who, said, body.read, rt.MaxBody)
				}
			}
		}
	}
}

// claims are headers by which some proxies tell a server who calls. Here they
// are nothing.
func claims(machine, person string) []string {
	var all []string
	for name, value := range map[string]string{
		"X-Fleet-Machine": machine, "X-Fleet-Machine-Id": machine, "X-Fleet-Id": machine, "X-Fleet-Agent": machine, "Fleet-Machine": machine,
		"X-Fleet-Person": person, "X-Fleet-Role": "owner", "X-Fleet-Owner": person, "X-Fleet-Session": person, "X-Fleet-Generation": "7",
		"X-Remote-User": person, "Remote-User": person, "X-Forwarded-User": person, "X-Auth-Request-User": person, "X-Forwarded-For": "127.0.0.1",
		"X-Real-Ip": "127.0.0.1", "Forwarded": "for=127.0.0.1", "X-Client-Verify": "SUCCESS", "X-Ssl-Client-Verify": "SUCCESS",
		"X-Ssl-Client-S-Dn": "CN=" + machine, "X-Forwarded-Client-Cert": "URI=spiffe://fleet/machine/" + machine,
		"X-Http-Method-Override": "DELETE", "X-Original-Url": "/v1/machines/" + machine, "Cookie": "__Host-fleet=" + person,
		"Proxy-Authorization": "Bearer " + person,
	} {
		all = append(all, name, value)
	}
	return all
}

// TestNoHeaderAndNoBodySaysWhoCalls: every route, by nobody with a claim to be
// somebody, and by one machine with a claim to be another. // R13, R27
func TestNoHeaderAndNoBodySaysWhoCalls(t *testing.T) {
	for _, rt := range Routes {
		if rt.Who == Public || rt.Who == Enrolling { // nobody is asked who they are
			continue
		}
		w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
		digest := secret.New("fm_").Digest().Hex()
		body := ""
		if rt.MaxBody > 0 {
			body = fmt.Sprintf(`{"machine":%q,"id":%q,"name":%q,"owner":"member","person":"owner","role":"owner","lifecycle":{"state":"stopping","reason":"person"},
				"generation":2,"digest":%q,"kind":"rotate","to":"member","set":{"a":"b"},"echo":{"rotate":"2026-01-02T03:04:05Z"}}`, w.mine, w.mine, w.mine, digest)
		}
		headers := append(claims(w.mine, "owner"), wire.HeaderCheck, "instance=a; seq=1; machine="+w.mine)
		before := w.row(w.mine)
		if rec := w.do(rt.Method, w.target(rt), "", body, headers...); rec.Code != http.StatusUnauthorized && (!rt.Who.own() || rec.Code != http.StatusBadRequest) {
			t.Errorf("%s %s as nobody who claims to be somebody: %d %s", rt.Method, rt.Path, rec.Code, rec.Body)
		}
		rec := w.do(rt.Method, w.target(rt)+"?machine="+w.mine+"&id="+w.mine, w.creds["machine"], body, headers...)
		if !rt.Who.own() && rec.Code != http.StatusUnauthorized {
			t.Errorf("%s %s as a machine: %d %s", rt.Method, rt.Path, rec.Code, rec.Body)
		}
		if strings.Contains(rec.Body.String(), w.mine) {
			t.Errorf("%s %s answers about another machine: %s", rt.Method, rt.Path, rec.Body)
		}
		if after := w.row(w.mine); !reflect.DeepEqual(before, after) {
			t.Errorf("%s %s touched another machine's row:\n%+v\n%+v", rt.Method, rt.Path, before, after)
		}
	}
}

// hostile are names that mean something to a shell, a file system, a database, a
// template, a log or a terminal.
var hostile = []string{
	"..", ".", "../../etc/passwd", "..%2f..%2fetc%2fpasswd", "/etc/passwd", `..\..\windows`, "a/b", "a//b", "%00", "x%00y", "\x00", "\x7f",
	"'; DROP TABLE machine;--", `" OR "1"="1`, "1 OR 1=1", "x' UNION SELECT secret FROM machine--", `{"$ne":null}`, `{"$gt":""}`, "[$regex]=.*",
	"${jndi:ldap://x}", "{{.}}", "<script>alert(1)</script>", "$(reboot)", "`reboot`", "a\nb", "a\r\nSet-Cookie: x=y", "\x1b[2J", "%s%n%d",
	"machine\xff\xfe", "\u202egnp.exe", "ｗｅｂ", "*", "?", "-rf", "--all", " ", strings.Repeat("é", 64), strings.Repeat("a", 65), strings.Repeat("../", 2000),
}

// TestHostileNamesAreRefusedOrAreNames: in every place of every path, and in
// every field that takes one; never a failure of the plane's, and nothing that
// was there before is changed.
func TestHostileNamesAreRefusedOrAreNames(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	before, mine := w.row(w.id), w.row(w.mine)
	ask := func(method, path, body string) {
		t.Helper()
		r, err := http.NewRequest(method, "https://plane.example"+path, strings.NewReader(body))
		if err != nil {
			return // no client can send it
		}
		r.RemoteAddr = "192.0.2.1:7"
		r.Header.Set("Authorization", "Bearer "+w.creds["owner"])
		rec := httptest.NewRecorder()
		w.h.ServeHTTP(rec, r)
		if rec.Code < 300 || rec.Code >= 500 {
			t.Errorf("%s %.80q %.120q: %d %s", method, path, body, rec.Code, rec.Body)
		}
		for _, never := range []string{w.mine, "goroutine", ".go:", "/tmp/", "bbolt", "plane.db"} {
			if strings.Contains(rec.Body.String(), never) {
				t.Errorf("%s %.80q: the answer holds %q", method, path, never)
			}
		}
		if rec.Header().Get("Set-Cookie") != "" {
			t.Errorf("%s %.80q sets a cookie", method, path)
		}
	}
	for _, name := range hostile {
		for _, rt := range Routes {
			if rt.Who.own() || !strings.Contains(rt.Path, "{") {
				continue
			}
			body := ""
			if rt.MaxBody > 0 {
				body = "{}"
			}
			for _, place := range []string{"{id}", "{name}", "{fingerprint}", "{kind}"} {
				if strings.Contains(rt.Path, place) {
					path := w.target(Route{Path: strings.Replace(rt.Path, place, url.PathEscape(name), 1)})
					ask(rt.Method, path, body)
				}
			}
		}
		q := quoted(name)
		m := wire.PathMachines + "/" + w.id
		for path, body := range map[string]string{
			m + "/rename":                `{"name":` + q + `}`,
			m + "/labels":                `{"set":{` + q + `:"v"}}`,
			m + "/transfer":              `{"to":` + q + `}`,
			m + "/requests":              `{"kind":` + q + `}`,
			wire.PathPersons:             `{"name":` + q + `,"role":"member"}`,
			wire.PathTokens:              `{"name":` + q + `,"scopes":["read"],"expires_s":60}`,
			wire.PathMachines:            `{"installation_digest":` + q + `,"credential_digest":` + q + `}`,
			wire.PathEnrollmentLook:      `{"code":` + q + `}`,
			wire.PathEnrollmentDeny:      `{"code":` + q + `}`,
			wire.PathRotations + "/gate": `{"action":` + q + `}`,
		} {
			ask("POST", path, body)
		}
		for _, param := range []string{"selector", "presence", "lifecycle", "machine", "since"} {
			if param == "machine" || param == "since" {
				ask("GET", wire.PathAudit+"?"+param+"="+url.QueryEscape(name), "")
				continue
			}
			ask("GET", wire.PathMachines+"?"+param+"="+url.QueryEscape(name), "")
		}
	}
	if !reflect.DeepEqual(before, w.row(w.id)) || !reflect.DeepEqual(mine, w.row(w.mine)) {
		t.Errorf("\n%+v\n%+v", before, w.row(w.id))
	}
	people, waiting, err := w.store.Persons(t.Context(), w.now)
	if err != nil || len(people) != 2 || len(waiting) != 0 {
		t.Errorf("%+v %+v %v", people, waiting, err)
	}
}

// quoted is a JSON string of the bytes as they are, also of those that are none.
func quoted(s string) string {
	return `"` + strings.NewReplacer(`\`, `\\`, `"`, `\"`, "\n", `\n`, "\r", `\r`, "\x00", `\u0000`, "\x1b", `\u001b`).Replace(s) + `"`
}

// TestGuessingATokenTellsNothing: wrong secrets of machines that are and are
// not, of persons and of tokens have one answer, and none is nearer than another. // R22, R24
func TestGuessingATokenTellsNothing(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	answers := map[string]string{}
	near := w.key.Reveal()
	for name, bearer := range map[string]string{
		"a machine that is":             w.id + "." + secret.New("fm_").Reveal(),
		"its secret but for the end":    w.id + "." + near[:len(near)-1] + "_",
		"its secret, cut":               w.id + "." + near[:len(near)-1],
		"its secret and more":           w.id + "." + near + "a",
		"its secret at another machine": w.mine + "." + near,
		"its secret at none":            wire.NewMachineID() + "." + near,
		"its secret alone":              near,
		"its secret's digest":           w.id + "." + w.key.Digest().Hex(),
		"nothing":                       w.id + ".",
		"a person's session":            w.creds["owner"],
		"a token":                       w.creds["token:all"],
	} {
		rec := w.do("POST", wire.PathCheck, bearer, `{}`, wire.HeaderCheck, "instance=a; seq=1")
		answers[fmt.Sprint(rec.Code, rec.Header(), rec.Body)] = name
	}
	if len(answers) != 1 {
		t.Errorf("%d answers: %q", len(answers), answers)
	}
	for name, bearer := range map[string]string{"none": "", "made up": secret.New("fs_").Reveal(), "a machine's": w.creds["machine"],
		"cut": w.creds["owner"][:20], "an invitation": secret.New("fi_").Reveal()} {
		if rec := w.do("GET", wire.PathWhoami, bearer, ""); rec.Code != http.StatusUnauthorized || strings.TrimSpace(rec.Body.String()) != `{"error":{"code":"unauthorized"}}` {
			t.Errorf("%s: %d %s", name, rec.Code, rec.Body)
		}
	}
	if a, err := w.store.Audit(t.Context(), store.AuditFilter{}); err != nil || strings.Contains(fmt.Sprint(a.Entries), near) {
		t.Error("a guess stands in the audit log", err)
	}
}
