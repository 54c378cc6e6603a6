#!/usr/bin/env bash
# Installs missing Debian packages. If all are installed, it does nothing and needs no root rights.
#   apps/install_dependencies.sh            packages to build and run
#   apps/install_dependencies.sh --tests    also packages of the tests
#   apps/install_dependencies.sh --soak     also packages of tests/coverage.sh, which CI does not run
set -euo pipefail

packages=(g++ cmake ninja-build ccache git libopenmpi-dev openmpi-bin libcli11-dev libtomlplusplus-dev
          nlohmann-json3-dev libfmt-dev libxxhash-dev zlib1g-dev libzstd-dev libsentencepiece-dev)
if [ "${1:-}" = --tests ] || [ "${1:-}" = --soak ]; then
  packages+=(libeigen3-dev libgtest-dev libgmock-dev libbenchmark-dev clang-16 libclang-rt-16-dev clang-format-14)
  [ "$1" = --tests ] || packages+=(llvm-16 python3)
elif [ $# -gt 0 ]; then
  echo "install_dependencies.sh: expected --tests, --soak or nothing, got $1" >&2
  exit 2
fi

if ! command -v dpkg-query >/dev/null; then
  echo "install_dependencies.sh: nothing installed without dpkg. The packages on Debian are: ${packages[*]}" >&2
  exit 0
fi

missing=()
for package in "${packages[@]}"; do
  status=$(dpkg-query -W -f='${db:Status-Abbrev}' "$package" 2>/dev/null || true)
  [[ $status == ?i* ]] || missing+=("$package")
done
[ ${#missing[@]} -gt 0 ] || exit 0

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "install_dependencies.sh: missing ${missing[*]}. Run as root: apt-get install ${missing[*]}" >&2
    exit 1
  fi
  as_root=(sudo)
fi

echo "installing ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
log=$(mktemp)
trap 'rm -f "$log"' EXIT
if ! { "${as_root[@]}" apt-get update -qq &&
       "${as_root[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
     } >"$log" 2>&1; then
  tail -n 20 "$log" >&2
  echo "install_dependencies.sh: apt-get could not install ${missing[*]}. Check the network, and that" \
       "/etc/apt/sources.list has a Debian 12 mirror." >&2
  exit 1
fi
