#!/bin/sh
# Runs every fuzz test for a time each: contrib/fuzz.sh 10s
set -eu
cd "$(dirname "$0")/.."
for dir in $(grep -rl --include='*_test.go' '^func Fuzz' . | xargs -n1 dirname | sort -u); do
  sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' "$dir"/*_test.go | while read -r name; do
    echo "== $dir $name"
    go test -run '^$' -fuzz "^$name\$" -fuzztime "${1:-10s}" "$dir" </dev/null
  done
done
