#!/usr/bin/env bash
# Runs shellcheck over all shell scripts; without shellcheck the test is skipped (exit 77).
#   check_shell.sh [REPOSITORY]
set -euo pipefail
cd "${1:-"$(dirname "$0")/../.."}"
command -v shellcheck >/dev/null || { echo "skipped: shellcheck is not installed (apt-get install shellcheck)"; exit 77; }
mapfile -t scripts < <(find .ci apps configs tests -type f \( -name '*.sh' -o -name '*.sbatch' -o -path .ci/run \) | sort)
shellcheck --severity=warning "${scripts[@]}"
echo "${#scripts[@]} scripts are clean"
[ "${#scripts[@]}" -ge 10 ]
