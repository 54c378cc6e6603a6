#!/usr/bin/env bash
# Runs one fuzz target of a build folder; prints one line, or the finding with a failing status.
#   run_target.sh BUILD NAME RUNS
# Starts from tests/fuzz/corpus/NAME. Findings are in BUILD/fuzz/finds, inputs that reached new code in
# BUILD/fuzz/corpus. Environment: SEED (default 1: the same inputs in every run); FORM (small: inputs up to 4 KiB;
# large: up to 1 MiB, filled by a dedicated mutator); FRESH (1, default: start with the committed corpus only; 0: also
# with inputs of earlier runs).
set -euo pipefail
build=$1/fuzz name=$2 runs=$3 form=${FORM:-small} start=$SECONDS
max_len=4096
[ "$form" = small ] || max_len=1048576
corpus=$build/corpus/$form/$name log=$build/$name.$form.log
[ "${FRESH:-1}" = 0 ] || rm -rf "$corpus"
mkdir -p "$corpus" "$build/finds"
export ASAN_OPTIONS=quarantine_size_mb=16:allocator_may_return_null=1:detect_stack_use_after_return=0:malloc_context_size=4
export UBSAN_OPTIONS=print_stacktrace=1
if "$1/tests/${name}_fuzz" "$corpus" "$(dirname "$0")/corpus/$name" -runs="$runs" -seed="${SEED:-1}" -max_len=$max_len \
     -timeout=60 -rss_limit_mb=512 -artifact_prefix="$build/finds/$name-" -print_final_stats=1 >"$log" 2>&1; then
  executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$log")
  peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$log")
  echo "fuzz: $name, $form: $executed inputs in $((SECONDS - start)) s, at most $peak MiB, nothing found"
else
  tail -n 60 "$log"
  echo "fuzz: $name: a find; the input is in $build/finds" >&2
  exit 1
fi
