#!/bin/bash
# The figures: sizes, start-up, the agent at rest, installs against scp, checks
# against a no-op handler. Medians of runs that follow one another on this
# machine; a busy machine gives busy figures. As root it brings up a lab host.
set -euo pipefail
cd "$(dirname "$0")/../.."
make -s artifacts
GOPATH=$(go env GOPATH) GOCACHE=$(go env GOCACHE)
export GOPATH GOCACHE
bin=$PWD/bin
dir=$(mktemp -d /tmp/fleet-bench-XXXXXX)
plane_pid='' lab_up=''
cleanup() {
  if [ -n "$plane_pid" ]; then kill "$plane_pid" 2>/dev/null || true; fi
  if [ -n "$lab_up" ]; then "$dir/lab" down "$lab_up" >/dev/null || true; fi
  rm -rf "$dir"
}
trap cleanup EXIT

median() { # RUNS COMMAND… : milliseconds, the median
  local n=$1 i
  shift
  for ((i = 0; i < n; i++)); do
    local begin=$EPOCHREALTIME
    "$@" >/dev/null 2>&1 || { echo "failed: $*" >&2; exit 1; }
    local end=$EPOCHREALTIME
    echo $(((${end/./} - ${begin/./}) / 10))
  done | sort -n | awk '{v[NR]=$1} END{printf "%.2f\n", v[int((NR+1)/2)]/100}'
}

echo "== sizes (bytes)"
stat -c '%s %n' .cache/cross/linux-amd64/agentd .cache/cross/linux-amd64/agentd-shim .cache/cross/linux-amd64/fleet-plugins "$bin"/artifacts/*.tar.gz

echo "== start-up (ms, median of 50)"
mkdir "$dir/empty"
printf 'package main\n\nfunc main() {}\n' >"$dir/empty/main.go"
go build -o "$dir/nothing" "$dir/empty/main.go"
echo "a program that does nothing: $(median 50 "$dir/nothing")"
echo "fleet version:               $(median 50 "$bin/fleet" version)"

go build -o "$dir/lab" ./contrib/lab/cmd/lab
if why=$("$dir/lab" check 2>&1); then
  "$dir/lab" up --detach --account dana >"$dir/lab.json"
  lab_up=$(sed -n 's/^  "id": \(.*\),/\1/p' "$dir/lab.json")
  listen=$(sed -n 's/^  "plane": "\(.*\)",/\1/p' "$dir/lab.json")
  key=$(sed -n 's/^  "key": "\(.*\)",/\1/p' "$dir/lab.json")
  addr=$(sed -n 's/^ *"addr": "\(.*\)",/\1/p' "$dir/lab.json" | head -n 1)
  hostkey=$(sed -n 's/^ *"\(ssh-ed25519 .*\)",*$/\1/p' "$dir/lab.json" | head -n 1)
  fp=$(ssh-keygen -lf <(printf '%s\n' "$hostkey") | cut -d' ' -f2)
  home=$HOME
  export HOME=$dir/home
  mkdir -m 700 "$HOME"
  "$bin/planed" init --data "$dir/plane" --url "https://$listen:8443" --owner dana --json >"$dir/init.json"
  pin=$(sed -n 's/.*"ca_pin": "\(.*\)",*/\1/p' "$dir/init.json")
  "$bin/planed" serve --data "$dir/plane" --listen "$listen:8443" --test-floor 500ms --check-interval 1s 2>"$dir/plane.log" &
  plane_pid=$!
  until (: <>"/dev/tcp/$listen/8443") 2>/dev/null; do :; done
  "$bin/fleet" login "https://$listen:8443" --ca-pin "$pin" --invite-file "$dir/plane/owner.invite" --key "$key" >/dev/null
  ssh=(-i "$key" -o StrictHostKeyChecking=no -o "UserKnownHostsFile=$dir/known")
  copy() { scp "${ssh[@]}" "$bin/artifacts/fleet-agent-linux-amd64.tar.gz" "dana@$addr:x.tar.gz" && ssh "${ssh[@]}" "dana@$addr" true; }
  fresh() { "$bin/fleet" install "dana@$addr" -i "$key" --name box --fingerprint "$fp"; }
  gone() { "$bin/fleet" uninstall box >/dev/null 2>&1; }
  echo "== install (ms, median of 5)"
  echo "scp of the artifact and ssh true: $(median 5 copy)"
  for _ in 1 2 3 4 5; do
    median 1 fresh
    gone
  done | sort -n | sed -n '3s/^/install on a fresh account:       /p'
  fresh >/dev/null 2>&1
  echo "install with nothing to send:     $(median 5 fresh)"
  echo "fleet ls with one machine:        $(median 20 "$bin/fleet" ls)"
  echo "fleet exec box -- true, alone:    $(median 10 "$bin/fleet" --no-mux exec box -- true)"
  echo "ssh host true:                    $(median 10 ssh "${ssh[@]}" "dana@$addr" true)"
  echo "== how fast hosts are reached (ms, medians)"
  go run ./contrib/bench/reach "$bin"
  echo "== an upload of 16 MiB against scp"
  HOME=$home go test -run '^$' -bench Upload -benchtime 5x ./core/sshconn
else
  echo "== install: no lab here: $why"
fi

echo "== the agent at rest"
contrib/bench/agentd/run
echo "== a check against a no-op handler; 100,000 machines"
go run ./contrib/planebench

echo "== a whole fleet of 10,000 rotates"
go run ./contrib/swarm/cmd/rotatebench
