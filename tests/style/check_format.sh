#!/bin/sh
# Every source is formatted as .clang-format says. clang-format's versions disagree, so only 14 counts; without it the
# test is skipped (exit 77). First shows that the tool notices a badly formatted line.
#   check_format.sh REPOSITORY
set -eu
cd "$1"
tool=
for candidate in clang-format-14 clang-format; do
  if "$candidate" --version 2>/dev/null | grep -q 'version 14\.'; then tool=$candidate; break; fi
done
if [ -z "$tool" ]; then
  echo "skipped: clang-format 14 is not installed (apt-get install clang-format-14)"
  exit 77
fi
if printf 'int   main( ){return 0 ;}\n' | "$tool" --dry-run -Werror --assume-filename=a.cpp 2>/dev/null; then
  echo "clang-format accepts a badly formatted line"
  exit 1
fi
find apps core parallel moe fsdp offload graphs tests -type f \
  \( -name '*.h' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) -print0 >"${TMPDIR:-/tmp}/format.$$"
trap 'rm -f "${TMPDIR:-/tmp}/format.$$"' EXIT
count=$(tr -cd '\0' <"${TMPDIR:-/tmp}/format.$$" | wc -c)
if ! xargs -0 "$tool" --dry-run -Werror <"${TMPDIR:-/tmp}/format.$$"; then
  echo "run: clang-format-14 -i FILE ..."
  exit 1
fi
echo "$count files are formatted"
[ "$count" -ge 10 ]
