#!/bin/bash
# The main job from end to end: a plane, a machine that nobody can dial into, an
# install over SSH, a command, a stop, a power cut, a delete. It prints each
# command before it runs it. Everything it makes is in one temporary directory
# and in the lab's namespaces, and is gone when it ends, however it ends.
set -euo pipefail
cd "$(dirname "$0")/../.."
bin=$PWD/bin
dir=$(mktemp -d /tmp/fleet-demo-XXXXXX)
trap 'rm -rf "$dir"' EXIT
go build -o "$dir/" ./contrib/lab/cmd/lab ./contrib/lab/cmd/loopback
own_home=$HOME
export HOME=$dir/home XDG_STATE_HOME=$dir/state XDG_CONFIG_HOME=$dir/config XDG_DATA_HOME=$dir/data PATH=$bin:$PATH
unset XDG_RUNTIME_DIR SSH_AUTH_SOCK FLEET_PLANE FLEET_TOKEN_FILE
mkdir -m 700 "$HOME" "$XDG_STATE_HOME"
plane_pid='' lab_up='' loop_pid='' installed=''

say() { printf '\n# %s\n' "$*"; }
run() { # what is printed can be typed
  local word line='$'
  for word; do
    case $word in
    '' | *[!A-Za-z0-9_./:@%+=,-]*) word=\'${word//\'/\'\\\'\'}\' ;;
    esac
    line+=" $word"
  done
  printf '%s\n' "$line"
  "$@"
}
end() { # PID
  [ -n "$1" ] || return 0
  kill "$1" 2>/dev/null || return 0
  wait "$1" 2>/dev/null || true
}
cleanup() {
  status=$?
  trap - EXIT
  if [ -n "$installed" ]; then "$bin/fleet" uninstall box --yes >/dev/null 2>&1 || echo "demo: an agent may be left in $installed" >&2; fi
  "$bin/fleet" mux stop >/dev/null 2>&1 || true
  end "$plane_pid"
  if [ -n "$lab_up" ]; then "$dir/lab" down "$lab_up" >/dev/null || true; fi
  exec 9>&- # the loopback server ends with its input
  end "$loop_pid"
  rm -rf "$dir"
  exit "$status"
}
trap cleanup EXIT
trap 'exit 130' INT TERM

wait_for() { # WHAT COMMAND…
  local what=$1 deadline=$((SECONDS + 30))
  shift
  until "$@" >/dev/null 2>&1; do
    if [ $SECONDS -ge $deadline ]; then echo "demo: $what did not happen in 30 s" >&2; exit 1; fi
    read -r -t 0.1 <> <(:) || true
  done
}

if why=$("$dir/lab" check 2>&1); then
  say "A machine behind NAT, with its own systemd and sshd (two seconds)"
  "$dir/lab" up --detach --account dana >"$dir/lab.json"
  lab_up=$(sed -n 's/^  "id": \(.*\),/\1/p' "$dir/lab.json")
  listen=$(sed -n 's/^  "plane": "\(.*\)",/\1/p' "$dir/lab.json")
  key=$(sed -n 's/^  "key": "\(.*\)",/\1/p' "$dir/lab.json")
  addr=$(sed -n 's/^ *"addr": "\(.*\)",/\1/p' "$dir/lab.json" | head -n 1)
  host=dana@$addr
  hostkey=$(sed -n 's/^ *"\(ssh-ed25519 .*\)",*$/\1/p' "$dir/lab.json" | head -n 1)
else
  echo "no lab here: $why"
  say "An unprivileged sshd on loopback, as this account"
  mkfifo "$dir/keep"
  "$dir/loopback" <"$dir/keep" >"$dir/loop" &
  loop_pid=$!
  exec 9>"$dir/keep"
  wait_for "an sshd" test -s "$dir/loop"
  read -r user port key hostkey <"$dir/loop"
  listen=127.0.0.1 host=$user@127.0.0.1:$port
fi
fp=$(ssh-keygen -lf <(printf '%s\n' "$hostkey") | cut -d' ' -f2)
listen_port=8443
while (: <>"/dev/tcp/$listen/$listen_port") 2>/dev/null; do listen_port=$((listen_port + 1)); done
url=https://$listen:$listen_port

say "The plane: one file, its own CA, an invitation for its first owner"
run planed init --data "$dir/plane" --url "$url" --owner dana --json | tee "$dir/init.json"
pin=$(sed -n 's/.*"ca_pin": "\(.*\)",*/\1/p' "$dir/init.json")
# A demo is a lab: checks come every second here, in place of every 30.
printf '$ planed serve --data %s --listen %s &\n' "$dir/plane" "$listen:$listen_port"
planed serve --data "$dir/plane" --listen "$listen:$listen_port" --test-floor 500ms --check-interval 1s 2>"$dir/plane.log" &
plane_pid=$!
wait_for "a listening plane" bash -c ": <>/dev/tcp/$listen/$listen_port"

say "A person logs in by a signature of their SSH key"
run fleet login "$url" --ca-pin "$pin" --invite-file "$dir/plane/owner.invite" --key "$key"

say "What would an install meet there? (changes nothing)"
run fleet test "$host" -i "$key"

say "Install the agent over SSH. The host key is confirmed by its fingerprint"
# On loopback it goes to this account's own home, and is taken away however this ends.
if [ -z "$lab_up" ]; then installed=$own_home/.local/share/fleet-agent; fi
run fleet install "$host" -i "$key" --name box --label env=demo --fingerprint "$fp"

say "A second time nothing is sent"
run fleet install "$host" -i "$key"

say "The machine keeps itself known by short outbound checks"
run fleet wait box --for present --timeout 30s
run fleet ls

say "Work on it: over SSH to the agent's UNIX socket, never through the plane"
# shellcheck disable=SC2016 # the machine's shell expands it
run fleet exec box -- sh -c 'echo "hello from $(uname -n)"; id -un'
run fleet logs box -n 3

say "An explicit stop says so, and leaves a latch"
run fleet stop box
run fleet wait box --for stopped --timeout 30s
run fleet ls
run fleet start box
run fleet wait box --for present --timeout 30s

if [ -n "$lab_up" ]; then
  say "A power cut says nothing: silence after running is unknown, not stopped"
  pid=$(sed -n 's/^ *"pid": \(.*\),/\1/p' "$dir/lab.json" | head -n 1)
  printf '$ kill -9 %s   # process 1 of the machine\n' "$pid"
  kill -9 "$pid"
  run fleet wait box --for absent --timeout 60s
  run fleet ls
  say "Delete it: its credential is dead at once"
  run fleet delete box --yes
else
  say "Uninstall it: service, files, row and link"
  run fleet uninstall box
  installed=''
fi
run fleet ls

say "Everybody's deeds are in a hash-chained log"
run fleet audit
run fleet audit verify
