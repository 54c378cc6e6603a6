#!/bin/sh
# Runs clang-tidy 14 over the given sources, or over those that a configured build compiles in all rooms of the product.
# The build may have no precompiled headers, which clang cannot read.
#   check_tidy.sh [FILE...]      environment: BUILD (default build/cpu-debug), JOBS (default: the number of cores)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/cpu-debug}
[ -e "$build/compile_commands.json" ] || { echo "no $build/compile_commands.json; run: cmake --preset cpu-debug" >&2; exit 2; }
# cpu_check.cpp is compiled for older processors; version.cpp includes a header that the build writes.
sources() {
  sed -n "s|^ *\"file\": \"$PWD/\(.*\.cpp\)\".*|\1|p" "$build/compile_commands.json" |
    grep -E '^(core|parallel|moe|fsdp|offload|graphs|apps)/' | grep -vE '/(cpu_check|version)\.cpp$' | sort -u
}
[ $# -gt 0 ] || set -- $(sources)
printf '%s\n' "$@" | xargs -P "${JOBS:-$(nproc)}" -n 1 clang-tidy-14 --quiet -p "$build" --warnings-as-errors='*' \
  --extra-arg=-include --extra-arg="$PWD/tests/style/fixtures/clang14_source_location.h" --extra-arg=-Wno-everything 2>/dev/null
