#!/usr/bin/env bash
# Tokens per second of complete training steps on GPUs, next to a PyTorch trainer of the same model in the same call.
#   tests/bench/gpu.sh [CASE ...]     cases: gpt2 gpt2xl llama1b qwen7b; default: all
# Environment: APPS, the folder of the built programs (default build/cuda-release/apps); PEER, a PyTorch trainer that
# accepts --model, --b, --t, --accum and prints tokens/s (no peer without it); PYTHON; RANKS, one GPU each (default 1);
# STEPS (default 20), ARGS, more flags for train.
# Tokens are random ids of a Zipf distribution. Prints a table: median of the steps after the fifth.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/metrics.sh
apps=${APPS:-build/cuda-release/apps}
python=${PYTHON:-python3}
ranks=${RANKS:-1}
steps=${STEPS:-20}
metrics=$work/metrics

# case: configuration, sequences and microbatches per step and rank, vocabulary, flags | the peer's arguments
declare -A ours=(
  [gpt2]="gpt2_124m 64 8 50303 --seq-length 1024"
  [gpt2xl]="gpt2_1.5b 16 8 50303 --seq-length 1024"
  [llama1b]="llama_1b 8 4 128255 --seq-length 4096"
  [qwen7b]="qwen2.5_7b 16 4 152063 --seq-length 1024 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --main-grads-dtype bf16 --recompute-granularity selective --recompute-modules mlp_act layernorm"
)
declare -A peers=(
  [gpt2]="--model gpt2 --b 64 --t 1024 --accum 8"
  [gpt2xl]="--model gpt2xl --b 16 --t 1024 --accum 8"
  [llama1b]="--model llama1b --b 8 --t 4096"
)

field() { median "$metrics" "$1" +6; }

printf '%-8s %12s %10s %10s %10s %s\n' case tokens/s TFLOP/s 'ms a step' GiB peer
for name in "${@:-gpt2 gpt2xl llama1b qwen7b}"; do
  for case in $name; do
    read -r config micro accumulation vocabulary flags <<<"${ours[$case]}"
    rm -f "$metrics"
    # shellcheck disable=SC2086
    if ! mpirun --bind-to none -np "$ranks" "$apps/train" --config "configs/$config.toml" --device cuda --mock-data --tokenizer-type null \
        --vocab-size "$vocabulary" --micro-batch-size "$micro" --global-batch-size $((micro * accumulation * ranks)) \
        --train-iters "$steps" --lr-warmup-iters 0 --eval-iters 0 --lr 1e-4 --overlap-grad-reduce $flags ${ARGS:-} --metrics-jsonl "$metrics" \
        >"$metrics.log" 2>&1; then
      tail -n 5 "$metrics.log"
      continue
    fi
    peer=
    if [ -n "${PEER:-}" ] && [ -n "${peers[$case]:-}" ] && [ "$ranks" -eq 1 ]; then
      # shellcheck disable=SC2086
      peer=$("$python" "$PEER" ${peers[$case]} 2>&1 | tail -n 1)
    fi
    printf '%-8s %12.0f %10.1f %10.1f %10.2f %s\n' "$case" "$(field tokens_per_second)" "$(field tflops_per_device)" \
      "$(field step_ms)" "$(awk -v b="$(field memory_peak_bytes)" 'BEGIN {print b / 2^30}')" "$peer"
  done
done
