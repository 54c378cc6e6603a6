#!/bin/sh
# Runs clang-tidy 14 over the product's C++ sources of the CPU build. Up to eight sources of a library are checked as one,
# as the quick tier compiles them. The script configures its build folder, in which nothing is compiled.
#   check_tidy.sh [REGEX]        checks groups with a source whose path matches, such as '^core/ops/'; default: all
#   environment: BUILD (default build/tidy), JOBS (default: the number of cores)
set -eu
cd "$(dirname "$0")/../.."
build=${BUILD:-build/tidy}
rooms='apps|core|parallel|moe|fsdp|offload|graphs'
cmake --preset cpu-debug -B "$build" -DMEGALITH_TIER=quick -DMEGALITH_TESTS=OFF >/dev/null
ninja -C "$build" megalith_commit >/dev/null  # writes a header

# Lists the compiled files of which a source matches $1. cpu_check.cpp is compiled for older processors.
compiled_files() {
  sed -n 's|^ *"file": "\(.*\)".*|\1|p' "$build/compile_commands.json" | grep -v '/cpu_check\.cpp$' | sort -u |
    while read -r file; do
      case $file in
        */Unity/*) sources=$(sed -n 's|^#include "\(.*\)"$|\1|p' "$file") ;;
        *) sources=$file ;;
      esac
      printf '%s\n' "$sources" | sed "s|^$PWD/||" | grep -qE -- "$1" && printf '%s\n' "$file" || true
    done
}

files=$(compiled_files "${1:-.}")
if [ -z "$files" ]; then
  echo "check_tidy.sh: no source matches '$1'. Give a path from the root, such as core/ops/." >&2
  exit 2
fi
# bugprone-suspicious-include would report that joined sources are included.
printf '%s\n' "$files" | xargs -P "${JOBS:-$(nproc)}" -n 1 clang-tidy-14 --quiet -p "$build" --warnings-as-errors='*' \
  --checks=-bugprone-suspicious-include --header-filter="^$PWD/($rooms)/.*\.(h|cpp)\$" --extra-arg=-Wno-everything \
  --extra-arg=-include --extra-arg="$PWD/tests/style/fixtures/clang14_source_location.h" 2>/dev/null
