#!/usr/bin/env bash
# Measures this machine's rates for plan --rates and prints them as a file.
#   tests/bench/rates.sh [NAME] > configs/rates/NAME.toml
# Environment: PRESET (default cuda-release if nvcc is found, otherwise cpu-release); RANKS, one GPU each, must be all
# GPUs of this host (default 1: then the lines of the link and of all copies are guesses). Memory, network and overlap
# are always guesses, and marked as such.
set -euo pipefail
cd "$(dirname "$0")/../.."
preset=${PRESET:-$(command -v nvcc >/dev/null && echo cuda-release || echo cpu-release)}
device=${preset%%-*}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash
{
  cmake --preset "$preset" -DMEGALITH_BENCH=ON
  cmake --build --preset "$preset" --target rates
} >&2
mpirun --bind-to none -np "${RANKS:-1}" "build/$preset/tests/rates" --device "$device" --name "${1:-this machine}"
