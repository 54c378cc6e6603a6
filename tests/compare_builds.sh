#!/usr/bin/env bash
# Compares two builds bitwise by runs of every parallelism, schedule, model family and recomputation, with the programs
# of each. It compares losses and gradient norms of all steps, and by hash every tensor of the last checkpoint (weights,
# main parameters, moments). AFTER then resumes from the checkpoint of BEFORE's third step, and its end must equal
# BEFORE's.
#   tests/compare_builds.sh BEFORE AFTER     folders of programs, such as build/cpu-release/apps
# Environment: DEVICE (cpu), RUNS, the runs to compare (all), FLAGS, more flags for each run.
set -uo pipefail
cd "$(dirname "$0")/.." || exit
before=$(readlink -f "${1:?the programs before}") after=$(readlink -f "${2:?the programs after}")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash OMPI_MCA_rmaps_base_oversubscribe=1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

small="--num-layers 4 --hidden-size 32 --num-attention-heads 4 --seq-length 16 --micro-batch-size 1 --global-batch-size 8
  --train-iters 6 --save-interval 3 --lr 1e-3 --lr-warmup-iters 2 --mock-data --eval-interval 3 --eval-iters 2 --seed 11
  --log-interval 1000 --ddp-bucket-size 1000 --init-method-std 0.05"
llama="--swiglu --ffn-hidden-size 32 --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
  --group-query-attention --num-query-groups 2 --untie-embeddings-and-output-weights --qk-layernorm"
qwen="--swiglu --ffn-hidden-size 32 --normalization RMSNorm --position-embedding-type rope --disable-bias-linear
  --add-qkv-bias --group-query-attention --num-query-groups 2"
tp="--tensor-model-parallel-size 2"
pp="--pipeline-model-parallel-size 2 --pipeline-schedule"
experts="$llama --num-experts 4 --moe-router-topk 2 --moe-ffn-hidden-size 32 --moe-aux-loss-coeff 0.01"
shared="$experts --moe-shared-expert-intermediate-size 16"
ep="--expert-model-parallel-size 2" dispatcher="--moe-token-dispatcher-type"
fsdp="--data-parallel-sharding-strategy optim_grads_params"
graphs="--cuda-graph-impl local --cuda-graph-modules"
offload="--fine-grained-activation-offloading --min-offload-bytes 0 --offload-modules"
zero="--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
# name | ranks | flags
runs=(
  "gpt2 | 1 | --hidden-dropout 0.1"
  "llama-bf16 | 1 | $llama --bf16 --loss-chunk-size 8"
  "qwen-full | 1 | $qwen --recompute-granularity full --recompute-method uniform --recompute-num-layers 2"
  "llama-selective | 1 | $llama --recompute-granularity selective --recompute-modules core_attn layernorm mlp_act"
  "data | 2 | --overlap-grad-reduce"
  "zero | 2 | $llama $zero --async-save"
  "tensor | 2 | $tp --hidden-dropout 0.1"
  "tensor-overlap | 2 | $llama $tp --sequence-parallel --tp-comm-overlap"
  "context-p2p | 2 | $llama --context-parallel-size 2 --cp-comm-type p2p"
  "context-a2a | 2 | $qwen --context-parallel-size 2 --cp-comm-type a2a"
  "gpipe | 2 | $pp gpipe"
  "1f1b | 2 | $pp 1f1b $llama --bf16"
  "interleaved | 2 | $pp interleaved --num-virtual-stages-per-pipeline-rank 2 --hidden-dropout 0.1"
  "zb-h1 | 2 | $pp zb-h1 $qwen"
  "zb-v | 2 | $pp zb-v"
  "dualpipe-v | 2 | $pp dualpipe-v $llama --recompute-granularity selective --recompute-modules mlp"
  "tp-pp | 4 | $tp --sequence-parallel $pp interleaved --num-virtual-stages-per-pipeline-rank 2"
  "pp-zero | 4 | $zero $pp 1f1b"
  "all | 8 | $llama $tp --sequence-parallel $zero $pp zb-h1"
  "experts | 1 | $shared --hidden-dropout 0.1"
  "experts-capacity | 1 | $experts --moe-expert-capacity-factor 1.0 --moe-token-drop-policy probs"
  "ep-alltoall | 2 | $experts $ep $dispatcher alltoall"
  "ep-allgather | 2 | $experts $ep $dispatcher allgather"
  "ep-flex | 2 | $experts $ep $dispatcher flex --bf16"
  "ep-capacity | 2 | $experts $ep --moe-expert-capacity-factor 1.0 --moe-pad-expert-input-to-capacity"
  "ep-shared | 2 | $shared $ep --moe-shared-expert-overlap"
  "ep-regrows | 2 | $experts $ep --moe-expert-rank-capacity-factor 0.2"
  "ep-etp | 4 | $shared $ep --expert-tensor-parallel-size 2"
  "fsdp | 2 | $llama $fsdp --bf16"
  "fsdp-hybrid | 4 | $llama $fsdp --num-distributed-optimizer-instances 2"
  "fsdp-experts | 4 | $experts $ep $fsdp"
  "graphs-layer | 1 | $llama $graphs layer --bf16"
  "graphs-attn-mlp | 2 | $llama $tp --sequence-parallel $graphs attn mlp"
  "graphs-moe | 2 | $experts $ep $graphs attn moe"
  "graphs-dispatch | 2 | $shared $ep $graphs attn moe_router moe_preprocess"
  "graphs-pp | 2 | $pp zb-v $graphs layer"
  "offload | 1 | $llama $offload attn_norm core_attn fc1 --bf16"
  "offload-experts | 2 | $experts $ep $offload attn_norm expert_fc1 moe_act"
  "moe-all | 4 | $shared $ep $fsdp $pp zb-v $graphs attn moe_router moe_preprocess $offload attn_norm fused_group_mlp"
  "moe-all-1f1b | 4 | $shared $ep $fsdp $pp 1f1b $graphs attn moe_router $offload core_attn expert_fc1 --bf16"
)

train() {  # train PROGRAMS FOLDER RANKS FLAGS...
  local programs=$1 folder=$2 ranks=$3
  shift 3
  mkdir -p "$folder"
  MEGALITH_CACHE=$scratch/cache mpirun --bind-to none -np "$ranks" "$programs/train" --device "${DEVICE:-cpu}" "$@" \
    --save "$folder/save" --metrics-jsonl "$folder/metrics" >"$folder/log" 2>&1
}
numbers() { grep -oE '"(iteration|lm_loss|grad_norm|validation_loss)": *[^,}]*' "$1/metrics"; }
tensors() {  # tensors of a checkpoint, with their hashes
  python3 - "$1/save/step_0000006/manifest.json" <<'PYTHON'
import json, sys
for name, tensor in sorted(json.load(open(sys.argv[1]))["tensors"].items()):
    print(name, [(chunk[3], chunk[4]) for chunk in tensor["chunks"]])
PYTHON
}

same=0 other=0
printf '%-18s %6s %s\n' run ranks result
for run in "${runs[@]}"; do
  IFS='|' read -r name ranks flags <<<"${run//$'\n'/ }"
  name=${name// /} ranks=${ranks// /}
  [ -z "${RUNS:-}" ] || [[ " $RUNS " == *" $name "* ]] || continue
  read -ra all <<<"${small//$'\n'/ } $flags ${FLAGS:-}"
  a=$scratch/$name/before b=$scratch/$name/after c=$scratch/$name/resumed
  result=
  train "$before" "$a" "$ranks" "${all[@]}" || result="before: $(grep -m 1 error "$a/log")"
  train "$after" "$b" "$ranks" "${all[@]}" || result="after: $(grep -m 1 error "$b/log")"
  train "$after" "$c" "$ranks" "${all[@]}" --load "$a/save" --ckpt-step 3 || result="resumed: $(grep -m 1 error "$c/log")"
  if [ -z "$result" ]; then
    [ -n "$(numbers "$a")" ] && [ -n "$(tensors "$a")" ] || result+="no numbers; "
    diff <(numbers "$a") <(numbers "$b") >"$scratch/diff" || result+="losses: $(sed -n 2p "$scratch/diff"); "
    diff <(tensors "$a") <(tensors "$b") >"$scratch/diff" || result+="$(grep -c '^<' "$scratch/diff") tensors differ; "
    diff <(tensors "$a") <(tensors "$c") >/dev/null || result+="resumed: tensors differ; "
  fi
  if [ -z "$result" ]; then same=$((same + 1)); else other=$((other + 1)); fi
  printf '%-18s %6d %s\n' "$name" "$ranks" "${result:-the same}"
  rm -rf "${scratch:?}/$name"
done
echo "$same the same, $other not"
[ "$other" -eq 0 ] && [ "$same" -gt 0 ]
