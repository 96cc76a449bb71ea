#!/bin/sh
# Regenerates the Go code of the plugin protos. With --check it changes nothing
# in the tree and fails if the committed code is not what the protos give.
set -eu
cd "$(dirname "$0")"
buf() { go tool -modfile=../../.ci/tools.mod buf "$@"; }
if [ "${1-}" != --check ]; then
	buf lint
	exec go tool -modfile=../../.ci/tools.mod buf generate
fi
buf lint
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
buf generate --output "$out"
(cd "$out" && find . -name '*.go') | while read -r f; do
	if ! cmp -s "$out/$f" "$f"; then
		echo "plugins/proto/$f is not what the protos give: run plugins/proto/generate.sh" >&2
		exit 1
	fi
done
