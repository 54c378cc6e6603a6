#!/usr/bin/env bash
# From a bare Debian 12 to a trained model: installs what is missing, builds, prepares two novels, trains a small GPT
# with mpirun, draws the loss, and writes a text with the checkpoint. Trains on 2 ranks of the CPU, or where there are
# GPUs, nvcc, cuDNN and NCCL on up to 2 GPUs. Everything lands in runs/quickstart. May be interrupted and started again:
# it goes on where it was.
#   apps/quickstart.sh               all of it
#   apps/quickstart.sh --restart     forget an earlier run's checkpoints and metrics first
set -euo pipefail
cd "$(dirname "$0")/.."

if [ "${1:-}" = -h ] || [ "${1:-}" = --help ]; then
  sed -n '2,7s/^# \{0,1\}//p' "$0"
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
stage() {  # stage NAME COMMAND...: runs it and keeps its time; a failure ends the script with the command's exit code
  local name=$1 start=$SECONDS
  shift
  echo "== $name"
  "$@" || { local status=$?; echo "apps/quickstart.sh: failed in: $name (exit code $status)" >&2; exit "$status"; }
  times+=("$(printf '%-10s %4d s' "$name" $((SECONDS - start)))")
}

configure() {  # configure PRESET OPTION...
  local log=build/quickstart.$1.configure.log options=()
  # Other compilers than Debian 12's warn of other things, which end no build here.
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
    echo "no GPU found: the CPU trains"
  elif configure cuda-release -DMEGALITH_CUDA=AUTO; then
    preset=cuda-release ranks=$((gpus < 2 ? gpus : 2)) device=(--device cuda --bf16)
    echo "GPUs found: $gpus; $ranks of them train"
  else
    echo "GPUs found: $gpus, but the CUDA backend cannot be built: the CPU trains"
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
    [ -n "$newer" ] || { echo "$run/austen.bin is there already"; return 0; }
  fi
  "$bin/prepare" --input "${inputs[@]}" --output-prefix "$run/austen" --document-start Chapter --append-eod
}

# mpirun refuses to run as root, and more ranks than cores, unless told otherwise.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1

train() {
  local status=0  # saving and loading the same folder goes on with what is there, or starts
  apps/launch.sh -np "$ranks" --oversubscribe "$bin/train" --config configs/quickstart.toml "${device[@]}" \
    --data-path "$run/austen" --save "$run/checkpoints" --load "$run/checkpoints" --save-interval 100 --keep-last 2 \
    --metrics-jsonl "$run/metrics.jsonl" || status=$?
  [ "$status" -ne 75 ] || echo "stopped on request after saving; start apps/quickstart.sh again to go on"
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
echo "  metrics      $run/metrics.jsonl (one JSON object a step)"
echo "  sample       $run/sample.txt"
echo "  more text    $bin/generate --load $run/checkpoints --prompt 'Dear Jane' --max-new-tokens 400"
