#!/usr/bin/env bash
# Sharded units compared with the distributed optimizer (ZeRO-1) on GPUs: tokens per second and memory of complete
# steps, the forecast of `plan` for each, and a PyTorch FSDP2 trainer of the same model in the same call.
#   tests/bench/sharding.sh [CASE ...]     cases: llama8b llama8b-lean qwen14b qwen32b (both with
#                                          WAYS=optim_grads_params: they fit no other) qwen3; default: the first
# Environment: APPS, the folder of the built programs (default build/cuda-release/apps); RANKS, one GPU each (default
# 4); STEPS (default 10); WAYS, the strategies (default "optim optim_grads_params"); RATES, a file for the forecast
# (default configs/rates/h200.toml); PEER, a PyTorch trainer that accepts --fsdp 1, --model, --b, --t, --accum and
# prints tokens/s; DEVICE (default cuda); ARGS, more flags for train and plan; TRACE=1, to trace the last step and print
# the time in which the compute streams had no op (op_sum.py).
# Tokens are random ids of a Zipf distribution. Prints medians of the steps after the third.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/metrics.sh
apps=${APPS:-build/cuda-release/apps}
ranks=${RANKS:-4} steps=${STEPS:-10}

lean="--recompute-granularity selective --recompute-modules mlp_act layernorm"
qwen="--num-layers 48 --hidden-size 5120 --ffn-hidden-size 13824 --num-attention-heads 40 --group-query-attention --num-query-groups 8 --position-embedding-type rope \
--normalization RMSNorm --swiglu --disable-bias-linear --untie-embeddings-and-output-weights --bf16"
large=${qwen/48/64} large=${large/13824/27648}
# case: sequences and tokens of a microbatch, microbatches of a rank, vocabulary | flags | the peer's arguments
declare -A cases=(
  [llama8b]="1 8192 2 128255|--config configs/llama3_8b.toml --recompute-granularity none|--model llama8b --b 1 --t 8192 --accum 2"
  [llama8b-lean]="1 8192 2 128255|--config configs/llama3_8b.toml $lean|"
  [qwen14b]="1 8192 1 152063|$qwen $lean|"
  [qwen32b]="1 4096 4 152063|$large $lean mlp --recompute-num-layers 48 --main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 \
--fsdp-embedding-and-head sharded --loss-chunk-size 4096|"
  [qwen3]="2 4096 4 151935|--config configs/qwen3_8_layers.toml --moe-router-force-load-balancing|--model qwen --b 2 --t 4096 --accum 4"
)

printf '%-14s %-20s %14s %10s %10s  %s\n' case strategy 'tokens/s a GPU' 'ms a step' GiB forecast
for name in "${@:-llama8b}"; do
  for case in $name; do
    IFS='|' read -r sizes flags peer <<<"${cases[$case]}"
    read -r micro length many vocabulary <<<"$sizes"
    for way in ${WAYS:-optim optim_grads_params}; do
      shape="$flags --seq-length $length --max-position-embeddings $length --tokenizer-type null --vocab-size $vocabulary --micro-batch-size $micro
        --global-batch-size $((micro * many * ranks)) --data-parallel-sharding-strategy $way --overlap-grad-reduce --overlap-param-gather ${ARGS:-}"
      # shellcheck disable=SC2086
      forecast=$("$apps/plan" --world-size "$ranks" $shape --rates "${RATES:-configs/rates/h200.toml}" 2>&1 | sed -nE 's/^  (time|total) +([0-9.]+ M?.*)/\2/p; /error/p' | tr '\n' ' ')
      rm -f "$work/metrics"
      # shellcheck disable=SC2086
      if ! mpirun --bind-to none -np "$ranks" "$apps/train" --device "${DEVICE:-cuda}" --mock-data $shape --train-iters "$steps" --lr 1e-4 --lr-warmup-iters 0 \
          --eval-iters 0 ${TRACE:+--trace "$work/trace" --profile-step-start $((steps - 1)) --profile-step-end "$steps"} --metrics-jsonl "$work/metrics" >"$work/log" 2>&1; then
        printf '%-14s %-20s %s\n' "$case" "$way" "$(grep -m 1 -E 'error|rank' "$work/log" || tail -n 1 "$work/log")"
        continue
      fi
      printf '%-14s %-20s %14.0f %10.1f %10.1f  %s\n' "$case" "$way" "$(awk -v t="$(median "$work/metrics" tokens_per_second +4)" -v n="$ranks" 'BEGIN {print t / n}')" \
        "$(median "$work/metrics" step_ms +4)" "$(awk -v b="$(median "$work/metrics" memory_peak_bytes +4)" 'BEGIN {print b / 2^30}')" "$forecast"
      [ -z "${TRACE:-}" ] || python3 tests/bench/op_sum.py "$work/trace"
    done
    # shellcheck disable=SC2086
    [ -z "${PEER:-}" ] || [ -z "$peer" ] || "${PYTHON:-python3}" -m torch.distributed.run --nproc-per-node "$ranks" "$PEER" --fsdp 1 $peer 2>&1 | tail -n 1
  done
done
