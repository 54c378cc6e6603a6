#!/usr/bin/env bash
# Builds the fuzz targets with clang, AddressSanitizer and UndefinedBehaviorSanitizer, and runs each.
#   tests/fuzz/run.sh [RUNS] [TARGET...]     RUNS inputs each, default 50000; all targets unless some are named
# Starts from tests/fuzz/corpus/TARGET; what is found stays in build/fuzz/finds, what reached new code in
# build/fuzz/corpus. Environment: CXX (default clang++-14), JOBS, SEED (default 1: the same inputs in every run).
set -euo pipefail
cd "$(dirname "$0")/../.."

runs=${1:-50000}
shift || true
cxx=${CXX:-clang++-14}
build=build/fuzz
command -v "$cxx" >/dev/null || { echo "fuzz: skipped, $cxx is not installed"; exit 0; }

mkdir -p "$build"
cmake -S tests/fuzz -B "$build" -G Ninja -DCMAKE_CXX_COMPILER="$cxx" >"$build/configure.log" 2>&1 ||
  { cat "$build/configure.log"; exit 1; }
cmake --build "$build" -j "${JOBS:-$(nproc)}"

targets=("$@")
[ ${#targets[@]} -gt 0 ] || for source in tests/fuzz/*_fuzz.cpp; do targets+=("$(basename "$source" .cpp)"); done
mkdir -p "$build/finds"
export ASAN_OPTIONS=quarantine_size_mb=16:allocator_may_return_null=1:detect_stack_use_after_return=0
export UBSAN_OPTIONS=print_stacktrace=1
failed=()
for target in "${targets[@]}"; do
  name=${target%_fuzz}
  mkdir -p "$build/corpus/$name"
  start=$SECONDS
  if "$build/${name}_fuzz" "$build/corpus/$name" "tests/fuzz/corpus/$name" -runs="$runs" -seed="${SEED:-1}" \
       -max_len=4096 -timeout=5 -rss_limit_mb=512 -artifact_prefix="$build/finds/$name-" \
       -print_final_stats=1 >"$build/$name.log" 2>&1; then
    executed=$(sed -n 's/^stat::number_of_executed_units: *//p' "$build/$name.log")
    echo "fuzz: $name: $executed inputs in $((SECONDS - start)) s, nothing found"
  else
    tail -n 60 "$build/$name.log"
    failed+=("$name")
  fi
done
[ ${#failed[@]} -eq 0 ] || { echo "fuzz: findings in ${failed[*]}; the inputs are in $build/finds" >&2; exit 1; }
