#!/usr/bin/env bash
# Builds the fuzz targets with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs each.
#   tests/fuzz/run.sh [RUNS] [TARGET...]     RUNS inputs each, default 50000; all targets unless some are named
# Starts from tests/fuzz/corpus/TARGET; what is found stays in build/fuzz/finds, what reached new code in
# build/fuzz/corpus. Environment: CXX (default clang++-14), JOBS, SEED (default 1: the same inputs in every run), FRESH
# (1: begin with the committed corpus alone, as on a new machine).
set -euo pipefail
cd "$(dirname "$0")/../.."

runs=${1:-50000}
shift || true
cxx=${CXX:-clang++-14}
jobs=${JOBS:-$(nproc)}
build=build/fuzz
if ! command -v "$cxx" >/dev/null; then
  echo "fuzz: expected $cxx, which brings libFuzzer, got none; apps/install_dependencies.sh --tests installs it" >&2
  exit 1
fi

mkdir -p "$build"
cmake -S tests/fuzz -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log"; exit 1; }
targets=()
for name in "$@"; do targets+=("${name%_fuzz}_fuzz"); done
[ ${#targets[@]} -gt 0 ] || for source in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" .cpp)"); done
cmake --build "$build" -j "$jobs" --target "${targets[@]}"

mkdir -p "$build/finds"
[ "${FRESH:-0}" = 0 ] || rm -rf "$build/corpus"
export ASAN_OPTIONS=quarantine_size_mb=16:allocator_may_return_null=1:detect_stack_use_after_return=0:malloc_context_size=4
export UBSAN_OPTIONS=print_stacktrace=1
run() {  # run TARGET BUILD RUNS SEED
  local name=${1%_fuzz} build=$2 start=$SECONDS
  mkdir -p "$build/corpus/$name"
  if "$build/${name}_fuzz" "$build/corpus/$name" "tests/fuzz/corpus/$name" -runs="$3" -seed="$4" \
       -max_len=4096 -timeout=60 -rss_limit_mb=512 -artifact_prefix="$build/finds/$name-" \
       -print_final_stats=1 >"$build/$name.log" 2>&1; then
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
    peak=$(sed -n 's/^stat::peak_rss_mb: *//p' "$build/$name.log")
    echo "fuzz: $name: $executed inputs in $((SECONDS - start)) s, at most $peak MiB, nothing found"
  else
    tail -n 60 "$build/$name.log"
    echo "fuzz: $name: a find; the input is in $build/finds" >&2
    return 1
  fi
}
export -f run
printf '%s\n' "${targets[@]}" | xargs -P "$jobs" -I{} bash -c 'run "$@"' run {} "$build" "$runs" "${SEED:-1}" ||
  { echo "fuzz: findings; see above" >&2; exit 1; }
