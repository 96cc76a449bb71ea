# shellcheck shell=sh disable=SC2154 # the variables are written before this text
# What follows reads the variables above and takes one argument: start, stop,
# restart, status, or supervise, which start runs in the background.
set -u
umask 077
PATH=${PATH:-/usr/bin:/bin}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin
export PATH
trap '' HUP

# A number of a process is given out again. What is written down beside it is
# when the process started: ticks since a boot that is named, or ps's words.
started() {
	if [ -r "/proc/$1/stat" ]; then
		stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
		boot=$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)
		# The second field is the program's name and may hold anything.
		# shellcheck disable=SC2086
		set -- ${stat##*) }
		[ "$1" != Z ] || return 1
		shift 19
		echo "$boot:$1"
	else
		LC_ALL=C ps -o lstart= -p "$1" 2>/dev/null | tr -s ' ' _ | grep .
	fi
}

# alive FILE: the process written down there lives. Sets pid.
alive() {
	pid=
	# shellcheck disable=SC2034
	read -r pid token 2>/dev/null <"$1" || return 1
	case $pid in '' | *[!0-9]*) pid=; return 1 ;; esac
	[ -n "$token" ] && [ "$(started "$pid")" = "$token" ]
}

record() { # record PID FILE
	echo "$1 $(started "$1")" >"$2.new" && mv -f "$2.new" "$2"
}

# claim makes this process the supervisor, unless there is one. The link is made
# or not; whoever removes a stale one looks again at what it removed.
claim() {
	mine=$state.pid.$$
	echo "$$ $(started $$)" >"$mine" || return 1
	tries=0
	until ln "$mine" "$state.pid" 2>/dev/null; do
		tries=$((tries + 1))
		if alive "$state.pid" || [ "$tries" -gt 5 ]; then
			rm -f "$mine"
			return 1
		fi
		mv "$state.pid" "$mine.old" 2>/dev/null || continue
		if alive "$mine.old"; then
			ln "$mine.old" "$state.pid" 2>/dev/null
			rm -f "$mine" "$mine.old"
			return 1
		fi
		rm -f "$mine.old"
	done
	rm -f "$mine"
}

pause() { # a sleep that a signal ends
	sleep "$1" &
	wait $!
}

supervise() {
	claim || exit 0
	child='' stopping='' delay=1
	trap 'stopping=1; [ -z "$child" ] || kill -TERM "$child" 2>/dev/null' TERM INT
	# An agent whose supervisor was killed goes on; it is waited for, not doubled.
	while [ -z "$stopping" ] && alive "$state.child"; do pause 2; done
	while [ -z "$stopping" ] && [ ! -e "$latch" ]; do
		if [ -f "$log" ] && [ "$(wc -c <"$log")" -gt 1048576 ]; then mv -f "$log" "$log.old"; fi
		# agentd makes the directory, but has not run yet the first time. Not the
		# colon command below: a redirection that fails would end the shell.
		mkdir -p "${log%/*}" 2>/dev/null
		[ -w "$log" ] || true >>"$log" 2>/dev/null || log=/dev/null
		began=$(date +%s)
		agent </dev/null >>"$log" 2>&1 &
		child=$!
		record "$child" "$state.child"
		wait "$child"
		code=$?
		# wait returns early when a signal comes; the process is still there then.
		while [ "$code" -gt 128 ] && kill -0 "$child" 2>/dev/null; do
			wait "$child"
			code=$?
		done
		child=
		rm -f "$state.child"
		echo "$code" >"$state.exit"
		[ "$code" -ne 0 ] || break
		[ -z "$stopping" ] || break
		if [ $(($(date +%s) - began)) -ge 60 ]; then delay=1; fi
		pause "$delay"
		delay=$((delay * 2))
		[ "$delay" -le 60 ] || delay=60
	done
	rm -f "$state.pid"
}

start() {
	alive "$state.pid" && return 0
	if command -v setsid >/dev/null 2>&1; then
		setsid /bin/sh "$0" supervise </dev/null >/dev/null 2>&1 &
	else
		nohup /bin/sh "$0" supervise </dev/null >/dev/null 2>&1 &
	fi
	n=0
	while [ "$n" -lt 50 ]; do
		alive "$state.child" && return 0
		[ -e "$latch" ] && [ "$n" -gt 5 ] && return 0
		n=$((n + 1))
		sleep 0.1 2>/dev/null || sleep 1
	done
	return 0
}

# stop ends the agent and its supervisor, by number, and nothing else: the
# processes of sessions are not theirs to end.
stop() {
	waited=0
	while :; do
		super='' child=''
		alive "$state.pid" && super=$pid
		alive "$state.child" && child=$pid
		[ -n "$super$child" ] || break
		if [ "$waited" -eq 0 ]; then
			[ -z "$super" ] || kill -TERM "$super" 2>/dev/null
			[ -z "$child" ] || kill -TERM "$child" 2>/dev/null
		elif [ "$waited" -ge "$((stop_s * 5))" ]; then
			[ -z "$super" ] || kill -KILL "$super" 2>/dev/null
			[ -z "$child" ] || kill -KILL "$child" 2>/dev/null
		fi
		waited=$((waited + 1))
		sleep 0.2 2>/dev/null || sleep 1
	done
	rm -f "$state.pid" "$state.child"
}

status() {
	if alive "$state.child"; then
		now=running
	elif alive "$state.pid"; then
		now=starting pid=0
	elif [ -e "$state.pid" ] && [ "${token%%:*}" = "$(cat /proc/sys/kernel/random/boot_id 2>/dev/null)" ]; then
		now=failed pid=0 # its supervisor was killed
	else
		now=stopped pid=0
	fi
	# What it ended with is read last: it stands there before the supervisor goes.
	code=-
	[ ! -r "$state.exit" ] || read -r code <"$state.exit"
	case $now:$code in stopped:- | stopped:0 | stopped:143) ;; stopped:*) now=failed ;; esac
	echo "$now $pid $code"
}

case ${1-} in
start | stop | status | supervise) "$1" ;;
restart)
	stop
	start
	;;
*)
	echo "usage: $0 start|stop|restart|status" >&2
	exit 2
	;;
esac
