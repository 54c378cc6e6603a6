#!/usr/bin/env bash
# Models with experts on GPUs: tokens per second of steps with forced balance and of natural routing, on the novels of
# configs/text as bytes. Experts are replicated on every GPU, or sharded over all of them.
#   tests/bench/experts.sh [CASE ...]     cases: qwen3, mixtral (8 layers); on four GPUs qwen3-30b (RANKS=4 EPS=4), on
#                                         eight mixtral-8x7b (RANKS=8 EPS=8); default: the first two
# Environment: APPS, the folder of the built programs (default build/cuda-release/apps); RANKS, one GPU each (default
# 2); EPS, the expert parallel sizes (default "1 RANKS"); STEPS of forced balance (default 16) and NATURAL ones (default
# 200, 0 for none), of which the last 30 count; MICRO, sequences of a microbatch; ARGS, more flags for train; DEVICE
# (default cuda).
# Prints medians, also of a GPU's TFLOP/s and of the host's time to enqueue a step. If experts are sharded, it also
# prints the largest load of a rank over the mean, and the time of expert layers in a traced step (layer_time.py).
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/metrics.sh
apps=${APPS:-build/cuda-release/apps}
ranks=${RANKS:-2} forced=${STEPS:-16} natural=${NATURAL:-200}
"$apps/prepare" --input configs/text/*.txt --document-start Chapter --append-eod --output-prefix "$work/text" >/dev/null

common="--device ${DEVICE:-cuda} --data-path $work/text --lr-warmup-iters 0 --eval-iters 0 --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
  --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2"
lean="--main-grads-dtype bf16 --exp-avg-dtype bf16 --exp-avg-sq-dtype bf16 --recompute-granularity selective --recompute-modules layernorm"
# case: configuration, vocabulary, sequences of a microbatch, microbatches, the sizes of layer_time.py | flags
declare -A cases=(
  [qwen3]="qwen3_8_layers 151936 2 2 8 2048 768|"
  [mixtral]="mixtral_8_layers 32000 4 2 2 2048 5632|"
  [qwen3-30b]="qwen3_30b_a3b 151936 1 8 8 2048 768|--seq-length 4096 $lean"
  [mixtral-8x7b]="mixtral_8x7b 32000 1 8 2 4096 14336|$lean"
)

printf '%-12s %3s %-8s %14s %8s %8s %8s  %s\n' case ep routing 'tokens/s a GPU' TFLOP/s 'host ms' GiB 'load of ranks, max/mean'
for name in "${@:-qwen3 mixtral}"; do
  for case in $name; do
    IFS='|' read -r sizes flags <<<"${cases[$case]}"
    read -r config vocabulary micro many choices hidden ffn <<<"$sizes"
    micro=${MICRO:-$micro}
    for ep in ${EPS:-1 $ranks}; do
      for routing in forced natural; do
        steps=$natural more="--lr 2e-4"
        [ $routing = natural ] || { steps=$forced more+=" --moe-router-force-load-balancing"; }
        [ "$steps" -gt 0 ] || continue
        more+=" --trace $work/trace --profile-step-start $((steps - 1)) --profile-step-end $steps"
        rm -f "$work/metrics" "$work/trace"
        # shellcheck disable=SC2086
        if ! mpirun --bind-to none -np "$ranks" "$apps/train" --config "configs/$config.toml" $common $flags --make-vocab-size-divisible-by "$vocabulary" \
            --micro-batch-size "$micro" --global-batch-size $((micro * many * ranks)) --train-iters "$steps" --expert-model-parallel-size "$ep" \
            $more ${ARGS:-} --metrics-jsonl "$work/metrics" >"$work/log" 2>&1; then
          printf '%-12s %3d %-8s %s\n' "$case" "$ep" $routing "$(grep -m 1 -E 'error|rank' "$work/log" || tail -n 1 "$work/log")"
          continue
        fi
        counted=$((steps > 60 ? 30 : steps - 4))
        printf '%-12s %3d %-8s %14.0f %8.1f %8.1f %8.1f  %s\n' "$case" "$ep" $routing "$(awk -v t="$(median "$work/metrics" tokens_per_second $counted)" -v n="$ranks" 'BEGIN {print t / n}')" \
          "$(median "$work/metrics" tflops_per_device $counted)" "$(median "$work/metrics" enqueue_ms $counted)" \
          "$(awk -v b="$(median "$work/metrics" memory_peak_bytes 1)" 'BEGIN {print b / 2^30}')" "$(grep -o 'by rank max/mean: [0-9.]*' "$work/log" | tail -n 1 | sed 's/.*: //')"
        python3 tests/bench/layer_time.py "$work/trace" $((micro * 4096)) "$choices" "$hidden" "$ffn"
      done
    done
  done
done
