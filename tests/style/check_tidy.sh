#!/bin/sh
# Runs clang-tidy 14 over the given sources, or over all of the rooms of the product (minutes). Needs a configured build without
# precompiled headers, which clang cannot read.
#   check_tidy.sh [FILE...]      environment: BUILD (default build/cpu-debug)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/cpu-debug}
[ -e "$build/compile_commands.json" ] || { echo "no $build/compile_commands.json; run: cmake --preset cpu-debug" >&2; exit 2; }
[ $# -gt 0 ] || set -- $(find core parallel moe fsdp offload graphs apps -name '*.cpp' ! -name cpu_check.cpp)
printf '%s\n' "$@" | xargs -P "$(nproc)" -n 1 clang-tidy-14 --quiet -p "$build" --warnings-as-errors='*' \
  --extra-arg=-include --extra-arg="$PWD/tests/style/fixtures/clang14_source_location.h" --extra-arg=-Wno-everything 2>/dev/null
