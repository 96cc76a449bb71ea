package api

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"sort"
	"strings"
	"testing"
	"time"

	"fleet.example/fleet/core/secret"
	"fleet.example/fleet/core/wire"
	"fleet.example/fleet/planed/enrol"
	"fleet.example/fleet/planed/machine"
)

// waiting is a machine that asked for approval.
type waiting struct {
	code               string
	installation, poll secret.Text
}

func (w *world) enroll(installation secret.Text, report string) waiting {
	w.t.Helper()
	m := waiting{installation: installation, poll: secret.New("fp_")}
	body := fmt.Sprintf(`{"installation_digest":%q,"credential_digest":%q,"poll_digest":%q,"report":%s,"later":1}`,
		installation.Digest().Hex(), secret.New("fm_").Digest().Hex(), m.poll.Digest().Hex(), report)
	rec := w.do("POST", wire.PathEnroll, "", body)
	if rec.Code != http.StatusOK {
		w.t.Fatal(rec.Code, rec.Body)
	}
	var a wire.EnrollAnswer
	must(w.t, json.Unmarshal(rec.Body.Bytes(), &a))
	if strings.Contains(a.URL, strings.ReplaceAll(a.Code, "-", "")[:4]) {
		w.t.Fatal("the code stands in the URL", a.URL) // R7
	}
	m.code = a.Code
	return m
}

func (w *world) codeRequest(path, bearer, code string) *httptest.ResponseRecorder {
	return w.do("POST", path, bearer, fmt.Sprintf(`{"code":%q}`, code))
}

const aReport = `{"host":"box","account":"ops","os":"linux","arch":"amd64","version":"1","scope":"user"}`

// cases are one code of each kind that finds nothing, and its poll secret.
func (w *world) deadCodes() map[string]waiting {
	w.t.Helper()
	out := map[string]waiting{}
	expired := w.enroll(secret.New(""), aReport)
	w.now = w.now.Add(enrol.Life)
	used, refused, replaced := w.enroll(secret.New(""), aReport), w.enroll(secret.New(""), aReport), w.enroll(secret.New(""), aReport)
	if rec := w.codeRequest(wire.PathEnrollmentApprove, w.creds["owner"], used.code); rec.Code != http.StatusOK {
		w.t.Fatal(rec.Code, rec.Body)
	}
	if rec := w.do("POST", wire.PathEnrollPoll, used.poll.Reveal(), ""); rec.Code != http.StatusOK || !strings.Contains(rec.Body.String(), `"approved"`) {
		w.t.Fatal(rec.Code, rec.Body)
	}
	if rec := w.codeRequest(wire.PathEnrollmentDeny, w.creds["owner"], refused.code); rec.Code != http.StatusOK {
		w.t.Fatal(rec.Code, rec.Body)
	}
	w.enroll(replaced.installation, aReport)
	out["expired"], out["used"], out["refused"], out["replaced"] = expired, used, refused, replaced
	out["unknown"] = waiting{code: wire.ShowCode(enrol.NewCode()), poll: secret.New("fp_")}
	return out
}

// TestDeadCodesCannotBeToldApart compares every byte that a holder of a code,
// or of a poll secret, gets to see. // R7
func TestDeadCodesCannotBeToldApart(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	dead := w.deadCodes()
	dead["no code at all"] = waiting{code: "hello", poll: secret.Of("hello")}
	seen := func(rec *httptest.ResponseRecorder) string {
		var b strings.Builder
		fmt.Fprintln(&b, rec.Code)
		for _, k := range slices.Sorted(maps.Keys(rec.Header())) {
			fmt.Fprintln(&b, k, rec.Header()[k])
		}
		return b.String() + rec.Body.String()
	}
	for _, path := range []string{wire.PathEnrollmentLook, wire.PathEnrollmentApprove, wire.PathEnrollmentDeny, wire.PathEnrollPoll} {
		answers := map[string][]string{}
		for name, m := range dead {
			var rec *httptest.ResponseRecorder
			if path == wire.PathEnrollPoll {
				rec = w.do("POST", path, m.poll.Reveal(), "")
			} else {
				rec = w.codeRequest(path, w.creds["member"], m.code)
			}
			answers[seen(rec)] = append(answers[seen(rec)], name)
		}
		if len(answers) != 1 {
			t.Errorf("%s: cases are told apart: %v", path, answers)
		}
		for a := range answers {
			if path == wire.PathEnrollPoll && !strings.HasPrefix(a, "401") || path != wire.PathEnrollPoll && !strings.HasPrefix(a, "404") {
				t.Errorf("%s: %s", path, a)
			}
		}
	}
}

// TestDeadCodesTakeTheSameTime: each of them is looked up, and counted, in one
// transaction of the same shape. The medians may differ by what the machine's
// other work makes of them; a case that skipped the write would be a hundred
// times faster.
func TestDeadCodesTakeTheSameTime(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	dead := w.deadCodes()
	took := map[string][]time.Duration{}
	for i := range 60 {
		if i%(enrol.MaxWrong/len(dead)) == 0 {
			w.now = w.now.Add(enrol.Window)
			must(t, w.store.Logout(t.Context(), secret.Of(w.creds["member"]).Digest(), w.now))
			w.loginAs("member")
		}
		for name, m := range dead {
			start := time.Now()
			rec := w.codeRequest(wire.PathEnrollmentLook, w.creds["member"], m.code)
			took[name] = append(took[name], time.Since(start))
			if rec.Code != http.StatusNotFound {
				t.Fatal(name, rec.Code, rec.Body)
			}
		}
	}
	least, most := time.Hour, time.Duration(0)
	for name, all := range took {
		sort.Slice(all, func(i, j int) bool { return all[i] < all[j] })
		median := all[len(all)/2]
		t.Logf("%s: %s", name, median)
		least, most = min(least, median), max(most, median)
	}
	if most > 4*least {
		t.Errorf("the slowest case takes %s, the fastest %s", most, least)
	}
}

func TestApprovalAdmitsAsThePersonAndWhatTheMachineSaysIsNoProof(t *testing.T) { // R7, R8, R13
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	m := w.enroll(secret.New(""), `{"host":"ip-192-0-2-17","account":"root\u001b[2J","os":"linux","arch":"amd64","version":"9","scope":"galaxy","service_manager":"../../x","owner":"owner","machine":"`+w.id+`"}`)
	var look wire.Enrollment
	rec := w.codeRequest(wire.PathEnrollmentLook, w.creds["member"], strings.ToLower(m.code))
	must(t, json.Unmarshal(rec.Body.Bytes(), &look))
	if !look.Unproven || look.Code != m.code || strings.Contains(rec.Body.String(), "192-0-2-17") || strings.Contains(rec.Body.String(), "u001b") || look.Report.Scope != "" || look.Report.ServiceManager != "" {
		t.Fatal(rec.Body)
	}
	for _, kind := range []string{"", "token:all", "machine"} {
		for _, path := range []string{wire.PathEnrollmentLook, wire.PathEnrollmentApprove, wire.PathEnrollmentDeny} {
			if rec := w.codeRequest(path, w.creds[kind], m.code); rec.Code != http.StatusUnauthorized && rec.Code != http.StatusForbidden {
				t.Errorf("%s as %q: %d", path, kind, rec.Code)
			}
		}
	}
	rec = w.do("POST", wire.PathEnrollmentApprove, w.creds["member"], fmt.Sprintf(`{"code":%q,"name":"mine","labels":{"a":"b"}}`, m.code))
	var did wire.Enrolled
	must(t, json.Unmarshal(rec.Body.Bytes(), &did))
	row, err := w.store.Machine(t.Context(), did.Machine)
	if err != nil || row.Owner != "member" || row.Name != "mine" || row.Labels["a"] != "b" || did.Status != wire.AdmitNew {
		t.Fatal(rec.Body, row, err)
	}
	rec = w.do("POST", wire.PathEnrollPoll, m.poll.Reveal(), "")
	if strings.Contains(rec.Body.String(), "fm_") || !strings.Contains(rec.Body.String(), did.Machine) {
		t.Fatal(rec.Body)
	}
}

func TestApprovalsWantATouchToo(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	w.api.RequireTouch = true
	key := newSK(t, "ed25519", 1)
	w.giveKey("member", key)
	m := w.enroll(secret.New(""), aReport)
	if rec := w.codeRequest(wire.PathEnrollmentApprove, w.creds["member"], m.code); rec.Code != http.StatusForbidden || !strings.Contains(rec.Body.String(), wire.CodeTouchRequired) {
		t.Fatal(rec.Code, rec.Body)
	}
	normal, _ := wire.NormalCode(m.code)
	approve := func(subject string) int {
		touch := w.touch(key, wire.NamespaceAdmit, func(n string) []byte { return wire.AdmitMessage(n, w.api.URL, subject) })
		b, err := json.Marshal(wire.CodeRequest{Code: m.code, Touch: touch})
		must(t, err)
		return w.do("POST", wire.PathEnrollmentApprove, w.creds["member"], string(b)).Code
	}
	if got := approve(wire.ApproveSubject("00000000")); got != http.StatusForbidden {
		t.Fatal("a touch for another code:", got)
	}
	if got := approve(wire.ApproveSubject(normal)); got != http.StatusOK {
		t.Fatal(got)
	}
}

func TestOneSourceFillsNoTable(t *testing.T) {
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	for i := range enrollPerSource + 5 {
		body := fmt.Sprintf(`{"installation_digest":%q,"credential_digest":%q,"poll_digest":%q,"report":{}}`,
			secret.New("").Digest().Hex(), secret.New("fm_").Digest().Hex(), secret.New("fp_").Digest().Hex())
		rec := w.do("POST", wire.PathEnroll, "", body)
		if want := i >= enrollPerSource; (rec.Code == http.StatusTooManyRequests) != want || want && rec.Header().Get("Retry-After") == "" {
			t.Fatal(i, rec.Code, rec.Body)
		}
	}
}

func TestEmptySecretsEnrollNothing(t *testing.T) { // R24
	w := newWorld(t, machine.Policy{Interval: 30 * time.Second})
	good, none := secret.New("x").Digest().Hex(), secret.Text{}.Digest().Hex()
	for _, d := range [][3]string{{none, good, good}, {good, none, good}, {good, good, none}, {good, good, good}, {"", good, good}, {good, "x", good}, {strings.Repeat("0", 64), good, good}} {
		body := fmt.Sprintf(`{"installation_digest":%q,"credential_digest":%q,"poll_digest":%q,"report":{}}`, d[0], d[1], d[2])
		if rec := w.do("POST", wire.PathEnroll, "", body); rec.Code != http.StatusBadRequest {
			t.Errorf("%v: %d %s", d, rec.Code, rec.Body)
		}
	}
	if rec := w.do("POST", wire.PathEnrollPoll, "", ""); rec.Code != http.StatusUnauthorized {
		t.Error(rec.Code)
	}
}
