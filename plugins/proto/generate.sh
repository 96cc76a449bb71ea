#!/bin/sh
# Regenerates the Go code of the plugin protos. With --check it changes nothing
# in the tree and fails if the committed code is not what the protos give, or if
# a proto breaks what released.binpb holds: the protos as vendors have them. A
# release that adds to them writes it anew, with `generate.sh --release`.
set -eu
cd "$(dirname "$0")"
buf() { go tool -modfile=../../.ci/tools.mod buf "$@"; }
buf lint
buf breaking --against released.binpb
if [ "${1-}" = --release ]; then
	exec go tool -modfile=../../.ci/tools.mod buf build --exclude-source-info --as-file-descriptor-set -o released.binpb
fi
if [ "${1-}" != --check ]; then
	exec go tool -modfile=../../.ci/tools.mod buf generate
fi
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT
buf generate --output "$out"
(cd "$out" && find . -name '*.go') | while read -r f; do
	if ! cmp -s "$out/$f" "$f"; then
		echo "plugins/proto/$f is not what the protos give: run plugins/proto/generate.sh" >&2
		exit 1
	fi
done
