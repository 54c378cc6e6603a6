#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs missing packages, builds, prepares two novels, trains a small GPT
# with mpirun, plots the loss, and generates a text from the checkpoint. It trains on 2 CPU ranks, or with GPUs, nvcc,
# cuDNN and NCCL on up to 2 GPUs. All files are in runs/quickstart. An interrupted run continues when started again.
#   apps/quickstart.sh               all stages
#   apps/quickstart.sh --restart     first removes the checkpoints and metrics of an earlier run
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  sed -n '2,6s/^# \{0,1\}//p' "$0"
  exit 0
elif [ $# -gt 0 ] && [ "$1" != --restart ]; then
  echo "apps/quickstart.sh: expected --restart or nothing, got $1" >&2
  exit 2
fi

run=runs/quickstart
preset=cpu-release
ranks=2
device=(--device cpu)
[ "${1:-}" != --restart ] || rm -rf "$run"
mkdir -p build "$run"

times=()
stage() {  # stage NAME COMMAND...: runs and times the command; a failure ends the script with its exit code
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || { local status=$?; echo "apps/quickstart.sh: stage $name failed (exit code $status)" >&2; exit "$status"; }
  times+=("$(printf '%-10s %4d s' "$name" $((SECONDS - start)))")
}

configure() {  # configure PRESET OPTION...
  local log=build/quickstart.$1.configure.log options=()
  # Compilers other than Debian 12's have other warnings, which must not end the build.
  [ "$("${CXX:-c++}" -dumpversion)" = 12 ] || options=(-DMEGALITH_WERROR=OFF)
  cmake --preset "$1" "${@:2}" "${options[@]}" -DMEGALITH_TESTS=OFF >"$log" 2>&1 || { cat "$log"; return 1; }
  ! grep 'CUDA backend: off' "$log"
}

choose_device() {
  local gpus
  gpus=$(nvidia-smi -L 2>/dev/null | grep -c '^GPU') || true
  if [ -n "${CUDA_VISIBLE_DEVICES+set}" ] && [ "$gpus" -gt 0 ]; then
    gpus=$(tr ',' '\n' <<<"$CUDA_VISIBLE_DEVICES" | grep -c .) || true
  fi
  if [ "$gpus" -eq 0 ]; then
    echo "no GPU found: training on the CPU"
  elif configure cuda-release -DMEGALITH_CUDA=AUTO; then
    preset=cuda-release ranks=$((gpus < 2 ? gpus : 2)) device=(--device cuda --bf16)
    echo "GPUs found: $gpus; training on $ranks"
  else
    echo "GPUs found: $gpus, but the CUDA backend cannot be built: training on the CPU"
  fi
  bin=build/$preset/apps
}

build() {
  choose_device
  [ "$preset" = cuda-release ] || configure "$preset" || return
  cmake --build --preset "$preset" --target train prepare generate report plan
}

prepare() {
  local inputs=(configs/text/*.txt) newer
  if [ -e "$run/austen.idx" ] && [ -e "$run/austen.bin" ]; then
    newer=$(find "${inputs[@]}" -newer "$run/austen.idx")
    [ -n "$newer" ] || { echo "$run/austen.bin already exists"; return 0; }
  fi
  "$bin/prepare" --input "${inputs[@]}" --output-prefix "$run/austen" --document-start Chapter --append-eod
}

# mpirun requires these settings to run as root, and an option for more ranks than cores.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

train() {
  local status=0  # the same folder for --save and --load continues an earlier run, or starts a new one
  apps/launch.sh -np "$ranks" --oversubscribe "$bin/train" --config configs/quickstart.toml "${device[@]}" \
    --data-path "$run/austen" --save "$run/checkpoints" --load "$run/checkpoints" --save-interval 100 --keep-last 2 \
    --metrics-jsonl "$run/metrics.jsonl" || status=$?
  [ "$status" -ne 75 ] || echo "stopped on request after saving; run apps/quickstart.sh again to continue"
  return "$status"
}

sample() {
  "$bin/generate" --device "${device[1]}" --load "$run/checkpoints" --prompt "It was a truth" --max-new-tokens 400 \
    --temperature 0.5 --top-k 40 --seed 1 >"$run/sample.txt"
  cat "$run/sample.txt"
}

stage install apps/install_dependencies.sh
stage build build
stage prepare prepare
stage train train
stage report "$bin/report" "$run/metrics.jsonl" --output "$run/report.html"
stage generate sample

echo "== done"
printf '  %s\n' "${times[@]}" "$(printf '%-10s %4d s' total $SECONDS)"
echo "  checkpoints  $run/checkpoints"
echo "  loss curve   $run/report.html (open it in a browser)"
echo "  metrics      $run/metrics.jsonl (one JSON object per step)"
echo "  sample       $run/sample.txt"
echo "  more text    $bin/generate --load $run/checkpoints --prompt 'Dear Jane' --max-new-tokens 400"
