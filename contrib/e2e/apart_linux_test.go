package e2e

import (
	"encoding/json"
	"strings"

	"fleet.example/fleet/contrib/lab"
	"fleet.example/fleet/core/wire"
)

// askOver is the head and body of what an agent's own bridge brings for a request
// with a token.
func askOver(agentd, token string) string {
	return "printf 'GET /v1/sessions HTTP/1.1\\r\\nHost: a\\r\\nAuthorization: Bearer %s\\r\\nConnection: close\\r\\n\\r\\n' '" + token + "' | " + agentd + " bridge"
}

// accountsApart holds that of two accounts on one host, whose machines are box-1
// and box-2, neither sees or reaches what is the other's.
func (w *world) accountsApart(h *lab.Host) { // R31, R33
	t := w.t
	const hidden = "Zx93-secret-of-dana"
	var s wire.Session
	r := w.input("SECRET="+hidden+"\n", "fleet", "exec", "--detach", "--json", "--env-file", "-", "box-1", "--", "sh", "-c", "sleep 600; : $SECRET")
	if err := json.Unmarshal([]byte(r.out), &s); err != nil || s.ID == "" {
		t.Fatal(r)
	}
	defer func() {
		w.must("fleet", "kill", "box-1", s.ID, "--signal", "KILL")
	}()
	data := strings.TrimSpace(w.sh(h, "dana", "echo "+dataGlob))
	sockets := strings.Fields(w.sh(h, "root", "find /run /tmp -type s -user dana -name '*.sock' -path '*fleet*' 2>/dev/null || true"))
	if len(sockets) < 3 { // the agent's, the mint's and the session's
		t.Fatalf("dana's sockets: %q", sockets)
	}

	// What erin may do to what is dana's: nothing, by any of its names.
	for _, path := range append([]string{data, data + "/credential", data + "/installation", data + "/sessions", data + "/current/agentd"}, sockets...) {
		if out := w.sh(h, "erin", "if ls -ld "+path+" >/dev/null 2>&1 || cat "+path+" >/dev/null 2>&1; then echo seen; fi"); out != "" {
			t.Errorf("erin sees %s", path)
		}
	}
	for _, dir := range []string{data, sockets[0][:strings.LastIndex(sockets[0], "/")]} {
		if mode := w.sh(h, "root", "stat -c '%a %U' "+dir); mode != "700 dana\n" {
			t.Errorf("%s has %s", dir, mode)
		}
	}
	if modes := w.sh(h, "root", "stat -c '%a %U' "+strings.Join(sockets, " ")+" | sort -u"); modes != "600 dana\n" {
		t.Errorf("dana's sockets have %q", modes)
	}
	if abstract := w.sh(h, "root", "grep -E ' @.*(agent|fleet|shim|s_)' /proc/net/unix | grep -v -E '@/?(org|run/systemd|tmp/dbus)' || true"); strings.Contains(abstract, "fleet") || strings.Contains(abstract, "agentd") {
		t.Errorf("a socket without a file, which anybody reaches:\n%s", abstract)
	}
	if argv := w.sh(h, "erin", "cat /proc/[0-9]*/cmdline 2>/dev/null | tr '\\0' ' '"); strings.Contains(argv, hidden) || strings.Contains(argv, "fa_") || strings.Contains(argv, "fm_") || strings.Contains(argv, "fs_") {
		t.Error("erin reads a secret in the arguments of dana's programs")
	}
	if env := w.sh(h, "erin", "cat /proc/[0-9]*/environ 2>/dev/null | tr '\\0' ' '"); strings.Contains(env, hidden) {
		t.Error("erin reads the environment of dana's session")
	}

	// Each's token is good at the own agent, and at the other's it is nothing.
	agentd := dataGlob + "/current/agentd"
	mine := strings.ReplaceAll(agentd, "/home/dana/", "/home/erin/")
	token := map[string]string{"dana": strings.TrimSpace(w.sh(h, "dana", agentd+" token")), "erin": strings.TrimSpace(w.sh(h, "erin", mine+" token"))}
	if got := w.sh(h, "dana", askOver(agentd, token["dana"])); !strings.HasPrefix(got, "HTTP/1.1 200 ") || !strings.Contains(got, s.ID) {
		t.Fatalf("dana's token at dana's agent: %q", got)
	}
	if got := w.sh(h, "erin", askOver(mine, token["dana"])); !strings.HasPrefix(got, "HTTP/1.1 401 ") || !strings.HasSuffix(got, `{"error":{"code":"unauthorized"}}`+"\n") {
		t.Errorf("dana's token at erin's agent: %q", got)
	}
	if got := w.sh(h, "erin", askOver(mine, token["erin"])); !strings.HasPrefix(got, "HTTP/1.1 200 ") || strings.Contains(got, s.ID) {
		t.Errorf("erin's token at erin's agent: %q", got)
	}
	run := sockets[0][:strings.LastIndex(sockets[0], "/")]
	if got := w.sh(h, "erin", askOver(mine, token["dana"])+" --data "+data+" --runtime "+run+" 2>/dev/null || true"); strings.Contains(got, "HTTP/") {
		t.Errorf("erin reached dana's agent with a token of dana's: %q", got)
	}

	// Nor by fleet: the session is none of box-2, and its link leads nowhere else.
	w.fails(255, "no such session", "attach", "box-2", s.ID)
	if out := w.must("fleet", "sessions", "--json", "box-2"); strings.Contains(out, s.ID) {
		t.Errorf("box-2 lists %s", out)
	}
	one, two := w.show("box-1"), w.show("box-2")
	if one.ID == two.ID {
		t.Fatal("one row for two accounts")
	}
	w.fails(9, two.ID, append([]string{"host", "link", one.ID}, w.dest(h, "erin")...)...)
	if r := w.run("fleet", "exec", "box-1", "--", "id", "-un"); r.out != "dana\n" {
		t.Errorf("after a link that was refused: %s", r)
	}
}
