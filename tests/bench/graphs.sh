#!/usr/bin/env bash
# Captured graphs compared with eager steps on GPUs: tokens per second and the host's part of a step, in turns.
#   tests/bench/graphs.sh [CASE ...]     cases: see below; default: those of one GPU
# Environment: APPS, the folder of the built programs (default build/cuda-release/apps); STEPS (default 40), TURNS
# (default 2), MODULES (default layer), ARGS, more flags for train.
# Tokens are random ids of a Zipf distribution. Prints the medians of the last three quarters of the steps.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/metrics.sh
apps=${APPS:-build/cuda-release/apps}
steps=${STEPS:-40}

tiny="--num-layers 12 --hidden-size 256 --num-attention-heads 4 --bf16"
gpt2="--config configs/gpt2_124m.toml"
llama="--config configs/llama_1b.toml"
llama8b="--config configs/llama3_8b.toml --recompute-granularity none --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16"
# case: ranks, sequences and tokens of a microbatch, microbatches, vocabulary | flags
declare -A cases=(
  [tiny]="1 1 256 16 50303|$tiny"
  [gpt2-256]="1 1 256 16 50303|$gpt2"
  [gpt2-1024]="1 1 1024 1 50303|$gpt2"
  [gpt2-64]="1 64 1024 8 50303|$gpt2"
  [llama1b-1024]="1 1 1024 1 128255|$llama"
  [llama1b-8]="1 8 4096 4 128255|$llama"
  [llama8b-tp2]="2 1 2048 1 128255|$llama8b --num-layers 16 --tensor-model-parallel-size 2 --sequence-parallel"
  [llama8b-tp4]="4 1 2048 1 128255|$llama8b --num-layers 16 --tensor-model-parallel-size 4 --sequence-parallel"
)

run() {  # name, flags
  local ranks micro length many vocabulary flags
  IFS='|' read -r sizes flags <<<"${cases[$1]}"
  read -r ranks micro length many vocabulary <<<"$sizes"
  rm -f "$work/now"
  # shellcheck disable=SC2086
  mpirun --bind-to none -np "$ranks" "$apps/train" $flags --seq-length "$length" --device cuda --mock-data --tokenizer-type null \
    --vocab-size "$vocabulary" --micro-batch-size "$micro" --global-batch-size $((micro * many)) --train-iters "$steps" \
    --lr-warmup-iters 0 --eval-iters 0 --lr 1e-4 $2 ${ARGS:-} --metrics-jsonl "$work/now" >"$work/log" 2>&1 || { tail -n 3 "$work/log"; return 1; }
  local counted=+$((steps / 4 + 1))
  printf '%s %s\n' "$(median "$work/now" tokens_per_second $counted)" "$(median "$work/now" enqueue_ms $counted)"
}

printf '%-14s %12s %12s %6s %18s  %s\n' case eager graphs ratio 'enqueue_ms' 'tokens/s by turn'
for name in "${@:-tiny gpt2-256 gpt2-1024 gpt2-64 llama1b-1024 llama1b-8}"; do
  for case in $name; do
    : >"$work/eager"
    : >"$work/graphs"
    for ((turn = 0; turn < ${TURNS:-2}; ++turn)); do
      # shellcheck disable=SC2086
      run "$case" "" >>"$work/eager" || { cat "$work/eager"; continue 2; }
      run "$case" "--cuda-graph-impl local --cuda-graph-modules ${MODULES:-layer}" >>"$work/graphs" || { cat "$work/graphs"; continue 2; }
    done
    best() { sort -g "$work/$1" | awk '{t[NR]=$1; e[NR]=$2} END {print t[int((NR+1)/2)], e[int((NR+1)/2)]}'; }
    read -r before before_enqueue <<<"$(best eager)"
    read -r after after_enqueue <<<"$(best graphs)"
    awk -v n="$case" -v b="$before" -v a="$after" -v be="$before_enqueue" -v ae="$after_enqueue" \
      -v t="$(cut -d' ' -f1 "$work/eager" "$work/graphs" | awk '{printf "%.0f ", $1}')" \
      'BEGIN {printf "%-14s %12.0f %12.0f %6.3f %8.2f %9.2f  %s\n", n, b, a, a / b, be, ae, t}'
  done
done
