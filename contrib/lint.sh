#!/bin/sh
# What a reviewer should not have to look for.
set -eu
cd "$(dirname "$0")/.."
unformatted=$(git ls-files '*.go' | grep -v '\.pb\.go$' | xargs gofmt -l)
if [ -n "$unformatted" ]; then
  echo "not formatted: $unformatted" >&2
  exit 1
fi
go vet ./...
GOOS=darwin go vet ./...
go mod tidy -diff
go tool -modfile=.ci/tools.mod staticcheck ./...
plugins/proto/generate.sh --check
# shellcheck disable=SC2046 # one word a file
shellcheck $(git ls-files '*.sh') .ci/run
