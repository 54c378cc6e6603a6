#!/usr/bin/env bash
# Compares steps that offload activations with steps that keep or recompute them, on GPUs. Prints ms a step, memory,
# whether losses equal those of the first variant bitwise, and the run's measurements of its copies.
#   tests/bench/offload.sh [CASE ...]     cases: llama1b, qwen3 (1 GPU), llama8b-49k, llama8b-512k (4), qwen3-pipeline
#                                         (4, dp2 ep2 pp2 vpp2), mixed (the same, every other layer
#                                         dense), mixed8 (8, dp4 ep4 pp2 vpp2); default: the first;
#                                         if listed twice, its variants alternate
# Environment: APPS, the folder of the built programs (default build/cuda-release/apps); STEPS (default 12); RATES, a
# file (default configs/rates/h200.toml; `rates --only copies` measures the link's rates, which must be this machine's);
# ONLY, a regular expression of variants; GRAPHS, the graphed modules in pipelines (default "attn moe_router
# moe_preprocess"); DEVICE (default cuda); ARGS, more flags for train.
# Tokens are random ids of a Zipf distribution. Medians are of the steps after the third; with fewer than seven steps
# after the first; a single step counts itself. With ARGS=--deterministic-mode, losses must be equal bitwise.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/metrics.sh
apps=${APPS:-build/cuda-release/apps}
steps=${STEPS:-12}

moves="--rates ${RATES:-configs/rates/h200.toml} --fine-grained-activation-offloading --offload-modules"
full="--recompute-granularity full --recompute-method uniform"
lean="--recompute-granularity selective --recompute-modules mlp_act layernorm"
zero="--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
sharded="--data-parallel-sharding-strategy optim_grads_params --overlap-grad-reduce --overlap-param-gather"
llama8b="--config configs/llama3_8b.toml --vocab-size 128255 --micro-batch-size 1 $sharded"
graphs="--cuda-graph-impl local --cuda-graph-modules attn"
qwen3="--config configs/qwen3_8_layers.toml --vocab-size 151935 --moe-router-force-load-balancing"
pipeline="--pipeline-model-parallel-size 2 --pipeline-schedule interleaved --num-layers-per-virtual-pipeline-stage 2 $zero"
pipeline_graphs="--cuda-graph-impl local --cuda-graph-modules ${GRAPHS:-attn moe_router moe_preprocess}"
mixed="--moe-layer-freq [0,1,0,1,0,1,0,1]"
kinds="attn_norm qkv_linear core_attn attn_proj mlp_norm fc1 act fc2 expert_fc1 moe_act"
# case: ranks | flags | variants, each NAME FLAGS, separated by semicolons; the others are compared with the first
declare -A cases=(
  [llama1b]="1|--config configs/llama_1b.toml --vocab-size 128255 --seq-length 4096 --micro-batch-size 8 --global-batch-size 32|\
kept; attention $moves core_attn attn_proj; auto $moves auto; act $moves act; act-whole $moves act --offload-slowdown 1; \
act-6-behind $moves act --offload-distance 6; act-7-behind $moves act --offload-distance 7"
  [qwen3]="1|$qwen3 $graphs moe|kept; expert_fc1 $moves expert_fc1; with-act $moves expert_fc1 moe_act"
  [llama8b-49k]="4|$llama8b --seq-length 49152 --max-position-embeddings 49152 --global-batch-size 4|recomputed $full; auto $lean $moves auto"
  [llama8b-512k]="4|$llama8b --seq-length 524288 --max-position-embeddings 524288 --context-parallel-size 4 --global-batch-size 1 --loss-chunk-size 8192|\
recomputed $full; auto ${lean/mlp_act/mlp} $moves auto"
  [qwen3-pipeline]="4|$qwen3 $pipeline $pipeline_graphs --expert-model-parallel-size 2 --global-batch-size 16|\
kept; expert_fc1 $moves expert_fc1; with-act $moves expert_fc1 moe_act --offload-slowdown 0.05; with-act-whole $moves expert_fc1 moe_act --offload-distance 3"
  [mixed]="4|$qwen3 $pipeline $mixed --expert-model-parallel-size 2 --global-batch-size 16|\
kept $pipeline_graphs; expert_fc1 $pipeline_graphs $moves expert_fc1; all $pipeline_graphs $moves $kinds; \
eager; expert_fc1-near $moves expert_fc1 --offload-distance 0; all-near $moves $kinds --offload-distance 0"
  [mixed8]="8|$qwen3 $pipeline $mixed --expert-model-parallel-size 4 --global-batch-size 32|\
kept $pipeline_graphs; eager; expert_fc1 $pipeline_graphs $moves expert_fc1; all $pipeline_graphs $moves $kinds"
)

printf '%-16s %-12s %10s %8s %8s %8s\n' case way 'ms a step' ratio GiB losses
for name in "${@:-llama1b}"; do
  for case in $name; do
    IFS='|' read -r ranks flags ways <<<"${cases[$case]}"
    base='' first=''
    while read -r -d ';' way more; do
      [[ $way =~ ${ONLY:-} ]] || continue
      rm -f "$work/metrics"
      # shellcheck disable=SC2086
      if ! mpirun --bind-to none -np "$ranks" "$apps/train" --device "${DEVICE:-cuda}" --mock-data --tokenizer-type null $flags $more --train-iters "$steps" \
          --lr 1e-4 --lr-warmup-iters 0 --eval-iters 0 ${ARGS:-} --metrics-jsonl "$work/metrics" >"$work/log" 2>&1 </dev/null; then
        printf '%-16s %-12s %s\n' "$case" "$way" "$(grep -m 1 -E 'error|rank' "$work/log" || tail -n 1 "$work/log")"
        continue
      fi
      ms=$(median "$work/metrics" step_ms +$((steps < 2 ? 1 : steps < 7 ? 2 : 4)))
      losses=$(grep -o '"lm_loss_hex": *"[^"]*"' "$work/metrics")
      base=${base:-$ms} first=${first:-$losses}
      printf '%-16s %-12s %10.1f %8.3f %8.1f %8s\n' "$case" "$way" "$ms" "$(awk -v a="$ms" -v b="$base" 'BEGIN {print a / b}')" \
        "$(awk -v b="$(median "$work/metrics" memory_peak_bytes 1)" 'BEGIN {print b / 2^30}')" "$([ "$losses" = "$first" ] && echo same || echo differ)"
      grep -E "offload .*in step $steps" "$work/log" | sed 's/^\[megalith\]/ /' || true
    done <<<"$ways;"
  done
done
