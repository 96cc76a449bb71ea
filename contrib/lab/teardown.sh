# shellcheck shell=sh
# Takes one lab down: processes, mounts, network, cgroups, files. Arguments: the lab's directory, its token.
# Safe to run twice, late, and by several at once: see the package's doc.
dir=$1
token=$2
PATH=$PATH:/usr/sbin:/sbin

exec 9<"$dir" 2>/dev/null || exit 0
flock -w 60 9 || { echo "cannot lock $dir"; exit 1; }
[ "$(cat "$dir/token" 2>/dev/null)" = "$token" ] || exit 0
name=fleetlab-${dir##*/}

# The lab's cgroups, one in each hierarchy.
groups() {
	awk '$3 == "cgroup" || $3 == "cgroup2" { print $2 }' /proc/mounts | while read -r mount; do
		if [ -d "$mount/$name" ]; then echo "$mount/$name"; fi
	done
}

members() {
	groups | while read -r group; do
		find "$group" -name cgroup.procs -exec cat {} + 2>/dev/null
	done | sort -un
}

# A frozen process dies only when it thaws.
groups | while read -r group; do
	find "$group" -name cgroup.freeze 2>/dev/null | while read -r f; do echo 0 >"$f"; done
	find "$group" -name freezer.state 2>/dev/null | while read -r f; do echo THAWED >"$f"; done
done

tries=0
while pids=$(members) && [ -n "$pids" ] && [ $tries -lt 100 ]; do
	# shellcheck disable=SC2086 # one argument a process
	kill -9 $pids 2>/dev/null
	tries=$((tries + 1))
	sleep 0.05
done

mounted() {
	awk -v path="$1" '$2 == path { found = 1 } END { exit !found }' /proc/mounts
}

# What a killed nspawn leaves: a lock named by the device and inode of the host's root, which are the host's own
# while it is mounted.
for root in "$dir"/h*/merged; do
	lock=$(stat -c 'inode-%d:%i' "$root" 2>/dev/null) && rm -f "/run/systemd/nspawn/locks/$lock"
done

for mount in "$dir"/h* "$dir"/ns/*; do
	[ -e "$mount" ] || continue
	tries=0
	while mounted "$mount"; do
		if [ $tries -ge 20 ]; then
			umount -R -l "$mount" 2>/dev/null || echo "cannot unmount $mount"
			break
		fi
		umount -R "$mount" 2>/dev/null || sleep 0.05
		tries=$((tries + 1))
	done
done

ip link del "$name" 2>/dev/null

tries=0
while left=$(groups) && [ -n "$left" ] && [ $tries -lt 100 ]; do
	echo "$left" | while read -r group; do
		find "$group" -depth -type d -exec rmdir {} + 2>/dev/null
	done
	[ -z "$(groups)" ] && break
	tries=$((tries + 1))
	sleep 0.05
done
[ -z "$(groups)" ] || echo "cannot remove cgroup $(groups)"

rm -rf "/run/systemd/nspawn/propagate/$name"-* "/run/systemd/nspawn/unix-export/$name"-*
rmdir /run/systemd/nspawn/* /run/systemd/nspawn 2>/dev/null

rm -rf --one-file-system "$dir"
# Not while somebody who holds the lock is about to make a lab in it.
flock -n "${dir%/*}" rmdir "${dir%/*}" 2>/dev/null
exit 0
