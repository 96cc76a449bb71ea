package moving_test

import (
	"crypto/tls"
	"net/http"
	"os"
	"strings"
	"syscall"
	"testing"

	"fleet.example/fleet/core/wire"
)

// knock makes a request that is no check at a URL, without looking who answers.
func knock(t *testing.T, url string) int {
	t.Helper()
	tr := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}
	resp, err := (&http.Client{Transport: tr}).Post(url+wire.PathCheck, "application/json", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	return resp.StatusCode
}

// TestAFleetMovesToAnotherURL: the plane gets another name and a second listener;
// one machine sleeps through it, one takes nobody's statements; the plane is
// killed on the way; at the end the old URL refuses, and whoever slept is back by
// itself. // R26
func TestAFleetMovesToAnotherURL(t *testing.T) {
	t.Parallel()
	second, mtls := freeAddr(t), freeAddr(t)
	w := newWorld(t, "--listen", second, "--mtls-listen", mtls)
	roots := readFile(t, w.data+"/root.pem")
	awake, asleep, deaf := w.agent("awake", roots), w.agent("asleep", roots), w.agent("deaf", roots)
	certified := w.agent("certified", roots) // on the rung of mutual TLS
	for _, a := range []*agent{awake, asleep, certified} {
		a.takes(w.key)
	}
	w.must("fleet", "rotate", "certified", "--kind", "mtls", "--wait", "--timeout", "2m")
	asleep.stop()
	old, to := w.url, "https://"+second

	w.fails(2, "--to", "rotate", "url")
	w.fails(2, "https://", "rotate", "url", "--to", "http://"+second)
	w.fails(9, "has that url already", "rotate", "url", "--to", old)
	w.fails(8, "asleep", "rotate", "url", "--to", to, "--timeout", "5s", "--key", w.key)
	awake.at(to, 2)
	certified.at(to, 2)
	w.plane.end(syscall.SIGKILL)
	w.serve()
	w.poll("the stragglers to be named", func() error {
		r := w.rotation("url")
		var names []string
		for _, s := range r.Stragglers {
			names = append(names, s.Name)
		}
		if r.Step != wire.StepRoll || r.To != 2 || strings.Join(names, " ") != "asleep deaf" && strings.Join(names, " ") != "deaf asleep" {
			return errorf("step %s, version %d, stragglers %v", r.Step, r.To, names)
		}
		return nil
	})
	w.poll("the machine that takes nobody's statements to say so", func() error {
		for _, b := range w.show("deaf").Readiness.Blockers {
			if b.Code == "statement_refused" && strings.Contains(b.Detail, "no signers") {
				return nil
			}
		}
		return errorf("it does not")
	})
	if p := deaf.plane(); p.URL != old || p.URLVersion != 0 {
		t.Fatalf("%+v", p)
	}
	if knock(t, old) == http.StatusUnauthorized {
		t.Error("the old URL refuses before anything was narrowed")
	}
	// Another one's key: the machine does not take it for the plane's word.
	newKey(t, w.root+"/other")
	deaf.takes(w.root + "/other")
	w.poll("the machine to refuse a key that is not its signer's", func() error {
		for _, b := range w.show("deaf").Readiness.Blockers {
			if b.Code == "statement_refused" && strings.Contains(b.Detail, "not trusted") {
				return nil
			}
		}
		return errorf("it does not")
	})
	deaf.takes(w.key)
	deaf.at(to, 2)
	w.must("fleet", "rotate", "url", "--resume", "--leave", "asleep", "--timeout", "2m")
	if out := w.must("fleet", "whoami"); !strings.Contains(out, to) {
		t.Errorf("fleet knows the plane still as %s", out)
	}
	if got := knock(t, old); got != http.StatusUnauthorized {
		t.Errorf("the old URL answers with %d", got)
	}
	if got := knock(t, to); got != http.StatusBadRequest {
		t.Errorf("the new URL answers with %d", got)
	}
	asleep.start()
	asleep.at(to, 2)

	// The old listener goes, and the plane is where it says, after a restart too.
	w.plane.end(syscall.SIGTERM)
	w.args = []string{"serve", "--data", w.data, "--listen", second, "--mtls-listen", mtls, "--check-interval", "1s", "--test-floor", "200ms"}
	w.serve()
	for _, name := range []string{"awake", "asleep", "deaf", "certified"} {
		before := w.show(name).LastCheck
		w.poll(name+" to check at the new URL alone", func() error {
			if now := w.show(name).LastCheck; now == nil || before != nil && !now.After(before.Time) {
				return errorf("not yet")
			}
			return nil
		})
	}
	if k := w.show("certified").Credential.Kind; k != wire.KindMTLS {
		t.Errorf("the machine that was known by certificate is known by %s", k)
	}
	w.must("fleet", "login", to, "--ca-pin", w.pin, "--key", w.key)
}

// TestAMoveThatDoesNotWorkIsTakenBack: nobody is sent to a URL where the plane
// was not reached; where the new place goes after machines arrived, an abort
// reaches them at the place before. // R26
func TestAMoveThatDoesNotWorkIsTakenBack(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	roots := readFile(t, w.data+"/root.pem")
	awake, asleep := w.agent("awake", roots), w.agent("asleep", roots)
	awake.takes(w.key)
	asleep.takes(w.key)
	asleep.stop()

	nowhere := "https://" + freeAddr(t)
	w.fails(8, "before you reach the plane at", "rotate", "url", "--to", nowhere, "--timeout", "3s", "--key", w.key)
	if r := w.rotation("url"); r.Step != wire.StepWiden || awake.plane().URL != w.url {
		t.Fatalf("%+v", r)
	}
	w.fails(9, "another rotation", "rotate", "url", "--to", "https://elsewhere.example")
	w.must("fleet", "rotate", "url", "--abort", "--timeout", "2m")

	d := openDoor(t, strings.Replace(strings.TrimPrefix(w.url, "https://"), "localhost", "127.0.0.1", 1))
	w.fails(8, "asleep", "rotate", "url", "--to", d.url(), "--timeout", "5s", "--key", w.key)
	awake.at(d.url(), 3)
	d.shut()
	w.must("fleet", "rotate", "url", "--abort", "--timeout", "2m", "--key", w.key)
	awake.at(w.url, 4)
	if r := w.rotation("url"); r.State != wire.RotationAborted || r.Version != 4 || r.Value != w.url {
		t.Fatalf("%+v", r)
	}
	asleep.start()
	asleep.at(w.url, 4)
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
