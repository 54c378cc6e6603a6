#!/usr/bin/env bash
# Builds the fuzz targets (clang, AddressSanitizer, UndefinedBehaviorSanitizer: preset cpu-asan-ubsan) and runs each.
#   tests/fuzz/run.sh [--large] [RUNS] [TARGET...]     RUNS inputs each, default 50000; default: all targets
# Inputs have up to 4 KiB; with --large (default 2000 of them) up to 1 MiB. Environment: JOBS, and variables of
# run_target.sh. FRESH is 0 here, so that runs continue from the inputs that earlier ones found.
set -euo pipefail
cd "$(dirname "$0")/../.."

export FORM=small FRESH=${FRESH:-0}
runs=50000
if [ "${1:-}" = --large ]; then
  FORM=large runs=2000
  shift
fi
runs=${1:-$runs}
shift || true
jobs=${JOBS:-$(nproc)}
build=build/cpu-asan-ubsan
names=("${@%_fuzz}")
[ ${#names[@]} -gt 0 ] || for source in tests/fuzz/*_fuzz.cpp; do names+=("$(basename "$source" _fuzz.cpp)"); done

mkdir -p build
cmake --preset cpu-asan-ubsan >build/fuzz.configure.log 2>&1 || { cat build/fuzz.configure.log; exit 1; }
cmake --build --preset cpu-asan-ubsan -j "$jobs" --target "${names[@]/%/_fuzz}"
printf '%s\n' "${names[@]}" | xargs -P "$jobs" -I{} tests/fuzz/run_target.sh "$build" {} "$runs" ||
  { echo "fuzz: findings; see above" >&2; exit 1; }
