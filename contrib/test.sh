#!/bin/sh
# Runs every test of the project. As root on Linux the end-to-end tests bring up
# hosts of their own; where they cannot, they say why and are counted as skipped.
set -eu
cd "$(dirname "$0")/.."
make --no-print-directory artifacts >/dev/null
FLEET_BIN=$PWD/bin
export FLEET_BIN
race=
if [ "${RACE:-}" = 1 ]; then race=-race; CGO_ENABLED=1; export CGO_ENABLED; fi
# shellcheck disable=SC2086 # one flag or none
go test $race -timeout 60m -p 2 ./...
