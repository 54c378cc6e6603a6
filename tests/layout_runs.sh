#!/usr/bin/env bash
# Trains one small model under mpirun in every kind of layout that RANKS ranks can have, and compares every loss with
# the run of one rank. Schedules of one layout, and strategies with the same order of sums, must agree bitwise. Prints a
# line per run; fails if one differs.
#   tests/layout_runs.sh [RANKS]      default 2; 4 or 8 add layouts of two and three axes
# Environment: APPS, the folder of the built programs (default build/cpu-release/apps); DEVICE (default cpu); STEPS
# (default 20); BF16=1, bfloat16 instead of fp32; TOLERANCE, the largest relative difference of a loss (default 1e-5,
# with BF16 2e-3); ONLY, a regular expression of runs; ARGS, more flags for train; EXPERTS, the number in each layer (a
# multiple of RANKS), which adds the layouts of ranks that shard them; GRAPHS, modules of --cuda-graph-modules: each
# layout runs once more with graphs of them, and must give the bits of its eager run.
set -euo pipefail
cd "$(dirname "$0")/.."
ranks=${1:-2} device=${DEVICE:-cpu} steps=${STEPS:-20} apps=${APPS:-build/cpu-release/apps}
tolerance=${TOLERANCE:-$([ -n "${BF16:-}" ] && echo 2e-3 || echo 1e-5)}
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash OMPI_MCA_rmaps_base_oversubscribe=1
out=$(mktemp -d)
trap 'rm -rf "$out"' EXIT

model="--num-layers $((ranks > 2 ? 8 : 4)) --hidden-size 256 --num-attention-heads 4 --group-query-attention --num-query-groups 2 --seq-length 128
  --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear --hidden-dropout 0.1"
[ -z "${EXPERTS:-}" ] || model+=" --num-experts $EXPERTS --moe-ffn-hidden-size 256 --moe-aux-loss-coeff 1e-2
  --moe-shared-expert-intermediate-size 256"
# Routing makes other choices of rounding: at 1e-3 plain data parallelism of four CPU ranks is off by 9.5e-6, at 5e-4 by 1.5e-6.
training="--micro-batch-size 2 --global-batch-size 32 --train-iters $steps --lr $([ -n "${EXPERTS:-}" ] && echo 5e-4 || echo 1e-3) --lr-warmup-iters 2 --eval-iters 0
  --mock-data --tokenizer-type null --vocab-size 255 --deterministic-mode ${BF16:+--bf16}"
tp="--tensor-model-parallel-size" cp="--context-parallel-size" pp="--pipeline-model-parallel-size" ep="--expert-model-parallel-size" zero="--use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather"
fsdp="--data-parallel-sharding-strategy optim_grads_params"

# run NAME RANKS FLAG...: leaves the losses, their bits and those of the gradient norms in $out/NAME
run() {
  local name=$1 np=$2
  shift 2
  # shellcheck disable=SC2086
  if ! mpirun --bind-to none -np "$np" "$apps/train" --device "$device" $model $training ${ARGS:-} "$@" \
    --metrics-jsonl "$out/$name.jsonl" >"$out/$name.log" 2>&1; then
    echo "$name: failed: $(grep -m 3 -iE 'error|rank' "$out/$name.log" || tail -n 3 "$out/$name.log")"
    return 1
  fi
  sed -nE 's/.*"lm_loss": *([^,}]*),.*"lm_loss_hex": *"([^"]*)".*"grad_norm_hex": *"([^"]*)".*/\1 \2 \3/p' "$out/$name.jsonl" >"$out/$name"
  [ "$(wc -l <"$out/$name")" = "$steps" ] || { echo "$name: $(wc -l <"$out/$name") losses of $steps steps"; return 1; }
}

failed=0
# compare NAME [TWIN]: with the run of one rank, and in bits with TWIN
compare() {
  local verdict bits=
  verdict=$(paste -d' ' "$out/one" "$out/$1" | awk -v t="$tolerance" '{d = ($4 - $1) / $1; if (d < 0) d = -d; if (d > m) m = d}
    END {printf "%.1e %s", m, m <= t ? "ok" : "DIFFERS"}')
  # A twin may be one that ONLY leaves out.
  if [ -n "${2:-}" ] && [ -e "$out/$2" ]; then cmp -s "$out/$1" "$out/$2" && bits="as $2 in bits" || bits="DIFFERS from $2"; fi
  printf '%-28s last loss %s, largest difference %s %s\n' "$1" "$(tail -n 1 "$out/$1" | cut -d' ' -f1)" "$verdict" "$bits"
  [[ "$verdict$bits" != *DIFFERS* ]] || failed=1
}
# check NAME TWIN|- FLAG...
check() {
  local name=$1 twin=${2#-}
  [ "$twin" != "$name" ] || twin=
  shift 2
  [[ $name =~ ${ONLY:-} ]] || return 0
  if ! run "$name" "$ranks" "$@"; then failed=1; return 0; fi
  compare "$name" "$twin"
  if [[ $name == *_regrows ]] && ! grep -q 'it is rerun with' "$out/$name.log"; then
    echo "$name: no step lacked room"
    failed=1
  fi
  if [[ $name == ep_flex && $device == cuda ]] && ! grep -q 'rows by flex' "$out/$name.log"; then
    echo "$name: rows did not go by flex"
    failed=1
  fi
  [ -n "${GRAPHS:-}" ] || return 0
  # A fully recomputed layer is one segment.
  [[ $GRAPHS == *layer* || "$* ${ARGS:-}" != *"--recompute-granularity full"* ]] || return 0
  # shellcheck disable=SC2086
  if run "${name}_graphs" "$ranks" "$@" --cuda-graph-impl local --cuda-graph-modules $GRAPHS; then
    compare "${name}_graphs" "$name"
    grep -q 'graphs | captured: [1-9]' "$out/${name}_graphs.log" || { echo "${name}_graphs: no graph was captured"; failed=1; }
  else
    failed=1
  fi
}

run one 1 || exit 1
if [ "$ranks" -gt 1 ]; then
  check dp - --overlap-grad-reduce
  whole=dp  # for more than two ranks, NCCL adds the parts in other orders
  [ "$device" = cpu ] || [ "$ranks" -eq 2 ] || whole=-
  check dp_zero1 $whole $zero
  check dp_optim_grads - --data-parallel-sharding-strategy optim_grads
  check dp_fsdp ${whole/#dp/dp_optim_grads} $fsdp
  check dp_fsdp_last $whole $fsdp --fsdp-reduce-grads last
  if [ -n "${BF16:-}" ]; then
    check dp_grads_in_bf16 - --data-parallel-sharding-strategy optim_grads --megatron-fsdp-grad-comm-dtype bf16
    check dp_fsdp_in_bf16 ${whole/#dp/dp_grads_in_bf16} $fsdp --megatron-fsdp-grad-comm-dtype bf16
  fi
  [ -n "${EXPERTS:-}" ] || check tp - $tp "$ranks"
  check tp_sequence - $tp "$ranks" --sequence-parallel
  check tp_overlap - $tp "$ranks" --sequence-parallel --tp-comm-overlap
  for type in p2p all_gather; do check cp_$type - $cp "$((ranks < 4 ? ranks : 4))" --cp-comm-type $type; done
  check cp_a2a - $cp 2 --cp-comm-type a2a
  check pp_gpipe - $pp "$ranks" --pipeline-schedule gpipe
  for schedule in 1f1b zb-h1; do check pp_$schedule pp_gpipe $pp "$ranks" --pipeline-schedule $schedule; done
  check pp_interleaved - $pp "$ranks" --pipeline-schedule interleaved --num-layers-per-virtual-pipeline-stage 1
  for schedule in zb-v dualpipe-v; do check pp_$schedule - $pp "$ranks" --pipeline-schedule $schedule; done
  check pp_recompute pp_gpipe $pp "$ranks" --recompute-granularity full --recompute-method uniform
fi
if [ "$ranks" -gt 1 ] && [ -n "${EXPERTS:-}" ]; then
  check ep - $ep "$ranks" --moe-token-dispatcher-type alltoall
  for type in allgather flex; do check ep_$type ep $ep "$ranks" --moe-token-dispatcher-type $type; done
  check ep_overlap ep $ep "$ranks" --moe-shared-expert-overlap
  check ep_regrows ep $ep "$ranks" --moe-expert-rank-capacity-factor 0.2
  check etp - --expert-tensor-parallel-size "$ranks"
  check tp_ep - $tp "$ranks" --sequence-parallel $ep "$ranks"
  check cp_ep - $cp 2 $ep "$ranks"
  check ep_zero1 ep $ep "$ranks" $zero
fi
if [ "$ranks" -ge 4 ] && [ -n "${EXPERTS:-}" ]; then
  check ep2_etp2 - $ep 2 --expert-tensor-parallel-size 2
  check ep2_fsdp - $ep 2 $fsdp
  check pp2_ep2 - $pp 2 $ep 2
  check tp2_ep2_zero1 - $tp 2 --sequence-parallel $ep 2 $zero
  # Activations on the host; ARGS="--moe-layer-freq [0,1,0,1,0,1,0,1]" makes every other layer dense.
  half="$pp 2 --pipeline-schedule interleaved --num-layers-per-virtual-pipeline-stage 2 $ep 2 $zero"
  moves="--fine-grained-activation-offloading --min-offload-bytes 1 --offload-modules"
  check pp2_vpp2_ep2_kept - $half
  check pp2_vpp2_ep2_rows_moved pp2_vpp2_ep2_kept $half $moves expert_fc1
  check pp2_vpp2_ep2_moved pp2_vpp2_ep2_kept $half $moves attn_norm qkv_linear core_attn attn_proj mlp_norm expert_fc1 moe_act $([[ ${ARGS:-} != *moe-layer-freq* ]] || echo fc1 act)
fi
if [ "$ranks" -ge 4 ]; then
  check dp_hsdp2 - $zero --num-distributed-optimizer-instances 2
  check dp_fsdp_hsdp2 - $fsdp --num-distributed-optimizer-instances 2
  check dp_fsdp_outer2 dp_fsdp_hsdp2 $fsdp --num-distributed-optimizer-instances 2 --outer-dp-sharding-strategy optim
  check tp2_pp2 - $tp 2 --sequence-parallel $pp 2
  check tp2_cp2 - $tp 2 --sequence-parallel $cp 2
  check tp2_dp2_zero1 - $tp 2 --sequence-parallel --tp-comm-overlap $zero
  check pp2_dp2_zero1 - $pp 2 $zero
  # GEMMs' algorithms that one replica measures, and all use from the first step on.
  MEGALITH_CACHE=$out/cache check pp2_measured - $pp 2 --deterministic-mode=false --comm-timeout 60
  # A strategy against itself: recomputation, slots, prefetch, schedules.
  full="--recompute-granularity full --recompute-method uniform"
  check dp_zero1_recompute dp_zero1 $zero $full
  check dp_optim_grads_recompute dp_optim_grads --data-parallel-sharding-strategy optim_grads $full
  check dp_fsdp_recompute dp_fsdp $fsdp $full
  check dp_fsdp_slots dp_fsdp $fsdp --fsdp-unit-slots 3 --fsdp-gradient-slots 1 --fsdp-prefetch 2
  check dp_fsdp_no_prefetch dp_fsdp $fsdp --fsdp-prefetch 0
  check dp_fsdp_last_slots dp_fsdp_last $fsdp --fsdp-reduce-grads last --fsdp-unit-slots 4 --fsdp-prefetch 3 $full
  for sharding in optim optim_grads optim_grads_params; do
    for schedule in gpipe 1f1b zb-h1; do
      check pp2_${sharding}_$schedule pp2_${sharding}_gpipe $pp 2 --pipeline-schedule $schedule --data-parallel-sharding-strategy $sharding
    done
  done
fi
if [ "$ranks" -ge 8 ]; then
  check tp2_pp2_dp2_zero1 - $tp 2 --sequence-parallel --tp-comm-overlap $pp 2 --pipeline-schedule zb-v $zero
fi
exit $failed
