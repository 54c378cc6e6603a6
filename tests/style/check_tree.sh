#!/usr/bin/env bash
# Builds check_tree without CMake, if it is older than its sources, and runs it on this repository: for a commit hook.
#   check_tree.sh [FOLDER]
set -euo pipefail
cd "$(dirname "$0")/../.."
program=build/check_tree/check_tree
if [ ! -x "$program" ] || [ -n "$(find tests/style -name '*.cpp' -newer "$program" -o -name '*.h' -newer "$program")" ]; then
  mkdir -p "${program%/*}"
  mapfile -t sources < <(find tests/style -maxdepth 1 -name '*.cpp' ! -name '*_test.cpp')
  "${CXX:-c++}" -std=c++20 -O1 -I. -o "$program" "${sources[@]}"
fi
exec "$program" . "$@"
