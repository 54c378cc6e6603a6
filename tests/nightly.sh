#!/usr/bin/env bash
# Runs the full tier and keeps the time of each stage, so that a slower build or test is seen over nights.
#   tests/nightly.sh [OPTION...]     options go to tests/run.sh --full
# Adds lines "date, commit, exit code, stage, seconds" to build/nightly/stage_times.tsv, separated by tabs, and keeps
# the last output in build/nightly/last.log. Ends with the exit code of tests/run.sh.
set -euo pipefail
cd "$(dirname "$0")/.."

folder=build/nightly
mkdir -p "$folder"
status=0
tests/run.sh --full "$@" 2>&1 | tee "$folder/last.log" || status=$?

times=$folder/stage_times.tsv
[ -e "$times" ] || printf 'date\tcommit\texit\tstage\tseconds\n' >"$times"
commit=$(git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
awk -v row="$(date -u +%Y-%m-%dT%H:%M:%SZ)"$'\t'"$commit"$'\t'"$status" '
  /^time of each stage:$/ { listed = 1; next }
  listed && match($0, /^  .* [0-9]+ s$/) {
    seconds = $(NF - 1)
    sub(/^  /, ""); sub(/ +[0-9]+ s$/, "")
    print row "\t" $0 "\t" seconds
    next
  }
  { listed = 0 }' "$folder/last.log" >>"$times"
echo "stage times: $times"
exit "$status"
