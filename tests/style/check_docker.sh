#!/usr/bin/env bash
# The Dockerfiles install, configure and build as apps/quickstart.sh does: by the same script, presets and options, and
# at least the same targets. No image is built.
#   check_docker.sh [REPOSITORY]
set -euo pipefail
cd "${1:-"$(dirname "$0")/../.."}"

failed=0
expect() {  # expect FILE TEXT: a RUN line of the file holds the text
  grep '^RUN ' "$1" | grep -qF -- "$2" || { echo "$1: expected a RUN line with: $2"; failed=1; }
}
steps_of_quickstart() {  # fails where the script has no such step any more, so that this test is not blind
  grep -qF 'stage install apps/install_dependencies.sh' apps/quickstart.sh &&
    grep -qF 'cmake --preset "$1" "${@:2}" "${options[@]}" -DMEGALITH_TESTS=OFF' apps/quickstart.sh &&
    targets=$(sed -nE 's/^ *cmake --build --preset "\$preset" --target (.*)$/\1/p' apps/quickstart.sh) && [ -n "$targets" ]
}
steps_of_quickstart || { echo "apps/quickstart.sh: its steps differ from those that tests/style/check_docker.sh knows"; exit 1; }

for kind in cpu cuda; do
  file=apps/docker/$kind.Dockerfile
  expect "$file" apps/install_dependencies.sh
  expect "$file" "cmake --preset $kind-release "
  expect "$file" -DMEGALITH_TESTS=OFF
  expect "$file" "cmake --build --preset $kind-release --target $targets"
  grep -qF "\"name\": \"$kind-release\"" CMakePresets.json || { echo "$file: no preset $kind-release"; failed=1; }
done
exit "$failed"
