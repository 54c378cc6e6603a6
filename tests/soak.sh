#!/usr/bin/env bash
# Kills a training run again and again at random moments and resumes from its checkpoint. At the end the losses and
# gradient norms of all steps, in hex, and their validation losses must equal those of an uninterrupted run. Not part of
# tests/run.sh.
#   tests/soak.sh [MINUTES]          default 5; needs the programs of cpu-release (apps/quickstart.sh or tests/run.sh)
# Every second run has sharded weights, and evaluations.
# The following parts also need the tests of cpu-release. Random draws of layouts and features are compared with plain
# runs, 60 a minute of MINUTES (tests/unit/train/draws_table.cpp has the table). For the same time, kills occur at
# random sites of the code (--fault); 50 kills hit eight ranks in every parallelism, and allocations fail. In 5,000
# steps with 200 saves, memory, descriptors and threads must stay constant. Ranks hang for about the same time. A
# thousand bits are flipped. Each fuzz target has a million inputs (about half an hour each on one core). Every layout
# of eight ranks runs with every schedule, dtype and recompute (hours: LAYOUTS=N runs one of N). Ids of byte-level BPE
# on 18 MB of text are compared with the Hugging Face and tiktoken libraries (a few minutes; tests/tokenizer). The
# coverage of the unit tests comes last.
# On GPUs, kills only: APPS=build/cuda-release/apps ARGS='--device cuda --deterministic-mode' KILLS=20 STEPS=2000
# FIRST_KILL=30 tests/soak.sh
# Draws on GPUs, many in one start: SEED=1 MEGALITH_DRAWS=100 mpirun -np 4 mpi_draws --device=cuda
# Draws that have a value of one row of the table: MEGALITH_DRAWS_WITH=overlap
# Environment: APPS, the folder of the programs; ARGS, more flags for train; KILLS, the minimum of kills at random
# moments, without the other parts; STEPS, the minimum of a run (default 200); FIRST_KILL, tenths of a second until the
# first kill (default 5); SEED of the random moments (default: the time, printed), RANKS (default 2), LAYOUTS (N: one of
# N cases, default 1), DRAWS (default 60 x MINUTES; 0: none), FUZZ_RUNS (default 1000000), PYTHON with those libraries
# (default python3), COVERAGE (0: without).
set -euo pipefail
cd "$(dirname "$0")/.."

minutes=${1:-5}
ranks=${RANKS:-2}
seed=${SEED:-$(date +%s)}
RANDOM=$((seed % 32768))
bin=${APPS:-build/cpu-release/apps}
steps_least=${STEPS:-200}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 PMIX_MCA_gds=hash
echo "soak: $minutes minutes, $ranks ranks, SEED=$seed"

"$bin/prepare" --input configs/text/*.txt --document-start Chapter --append-eod --output-prefix "$work/text" >/dev/null

train() {  # train FOLDER STEPS
  local folder=$1 steps=$2 async=
  [ $((RANDOM % 2)) -eq 0 ] || async=--async-save  # a run may resume with or without it
  # shellcheck disable=SC2086
  setsid mpirun -np "$ranks" --oversubscribe "$bin/train" --num-layers 2 --hidden-size 64 --num-attention-heads 1 \
    --seq-length 64 --micro-batch-size 2 --global-batch-size $((4 * ranks)) --train-iters "$steps" \
    --lr 1e-3 --lr-decay-iters "$steps" --hidden-dropout 0.1 --data-path "$work/text" --save-interval 5 --keep-last 2 \
    --save "$folder" --load "$folder" $async $sharding ${ARGS:-} --metrics-jsonl "$folder/metrics.jsonl" >>"$folder/log" 2>&1
}

# Sends SIGKILL to mpirun (the child of process $1, which leads a separate session), to all its ranks, or to all of
# these. Waits until no process is left that could write. Survivors, mpirun and ranks, have 20 seconds to notice. False
# if mpirun had ended already.
kill_session_below() {
  local leader
  leader=$(cat "/proc/$1/task/$1/children" 2>/dev/null) && leader=${leader%% *} && [ -n "$leader" ] || return 1
  local pids=($(pids_of_session "$leader")) tenths=0
  [ ${#pids[@]} -gt 0 ] || return 1
  case $((RANDOM % 3)) in
    0) kill -KILL "${pids[@]}" 2>/dev/null || true ;;
    1) kill -KILL "$leader" 2>/dev/null || true ;;
    2) printf '%s\n' "${pids[@]}" | grep -vx "$leader" | xargs -r kill -KILL 2>/dev/null || true ;;
  esac
  while pids=($(pids_of_session "$leader")) && [ ${#pids[@]} -gt 0 ]; do
    sleep 0.1
    [ $((++tenths)) -lt 200 ] || { echo "soak: ${#pids[@]} processes did not notice a kill" >&2; exit 1; }
  done
  return 0
}
pids_of_session() {  # running processes: /proc/PID/stat is PID (NAME) STATE PPID PGRP SESSION
  { cat /proc/[0-9]*/stat 2>/dev/null || true; } |  # a process may end between the listing and its reading
    sed -nE 's/^([0-9]+) \(.*\) ([A-Z]) [0-9]+ [0-9]+ ([0-9]+) .*/\1 \2 \3/p' |
    awk -v session="$1" '$3 == session && $2 != "Z" { print $1 }'
}

steps_of() {  # iteration, loss, gradient norm, validation loss by step; the last one of a repeated step
  sed -n '/"lm_loss_hex"/s/.*"iteration": *\([0-9]*\).*/\1 &/p' "$1/metrics.jsonl" |
    awk '{ line[$1] = $0 } END { for (i in line) print line[i] }' | sort -n |
    sed -E 's/^([0-9]+) .*"lm_loss_hex": *"([^"]*)".*/\1 \2 &/; s/^([0-9]+ [^ ]+) .*"grad_norm_hex": *"([^"]*)".*/\1 \2 &/' |
    sed -E 's/^([^ ]+ [^ ]+ [^ ]+) .*"validation_loss": *([^,}]*).*/\1 \2/; t; s/^([^ ]+ [^ ]+ [^ ]+) .*/\1/'
}

round=0
kills=0
end=$((SECONDS + minutes * 60))
continues() {
  if [ -n "${KILLS:-}" ]; then [ $kills -lt "$KILLS" ]; else [ $SECONDS -lt $end ]; fi
}
while continues; do
  round=$((round + 1))
  steps=$((steps_least + RANDOM % steps_least))
  sharding=
  [ $((round % 2)) -eq 1 ] || sharding='--data-parallel-sharding-strategy optim_grads_params --eval-interval 7 --eval-iters 2'
  mkdir -p "$work/whole" "$work/killed"
  train "$work/whole" "$steps" || {
    echo "soak: round $round: a run that nobody kills failed:" >&2
    tail -n 20 "$work/whole/log" >&2
    exit 1
  }
  done=false
  while [ $done = false ]; do
    { train "$work/killed" "$steps"; } 2>/dev/null &  # bash would report the kill
    child=$!
    for ((tenths = ${FIRST_KILL:-5} + RANDOM % 25; tenths > 0; --tenths)); do
      kill -0 $child 2>/dev/null || break
      sleep 0.1
    done
    if kill_session_below $child; then
      kills=$((kills + 1))
      wait $child 2>/dev/null || true
    elif wait $child; then
      done=true
    else
      echo "soak: round $round: a run that was not killed failed:" >&2
      tail -n 20 "$work/killed/log" >&2
      exit 1
    fi
  done
  if ! diff <(steps_of "$work/whole") <(steps_of "$work/killed") >"$work/difference"; then
    echo "soak: round $round: the killed run differs from the whole one (SEED=$seed):" >&2
    head -n 10 "$work/difference" >&2
    exit 1
  fi
  [ "$(steps_of "$work/whole" | wc -l)" -eq "$steps" ] || { echo "soak: expected $steps steps in the metrics" >&2; exit 1; }
  echo "soak: round $round: $steps steps equal after $kills kills in all"
  rm -rf "$work/whole" "$work/killed"
done
[ $kills -gt 0 ] || { echo "soak: no run was killed" >&2; exit 1; }
[ -z "${KILLS:-}" ] || exit 0

if [ -x build/cpu-release/tests/unit_draws ]; then
  draws=${DRAWS:-$((60 * minutes))}
  [ "$draws" -eq 0 ] || SEED=$seed MEGALITH_DRAWS=$draws build/cpu-release/tests/unit_draws >"$work/draws" 2>/dev/null ||
    { grep -v '^\[megalith\]' "$work/draws" >&2; exit 1; }
  grep '^seed' "$work/draws" || true
fi
if [ -x build/cpu-release/tests/e2e ]; then
  SEED=$seed MEGALITH_CRASH_MINUTES=$minutes MEGALITH_LAYOUT_KILLS=50 build/cpu-release/tests/e2e \
    --gtest_filter='Crash.Long*:Crash.KilledInEvery*'
  MEGALITH_LEAK_STEPS=5000 build/cpu-release/tests/e2e_timed --gtest_filter='Leaks.*'
  # Ranks that are stopped, loop or disagree, each kind once a minute: time until the report and until all have ended.
  SEED=$seed MEGALITH_HANG_ROUNDS=$minutes build/cpu-release/tests/e2e_timed --gtest_filter=Hangs.LongMeasured
fi
if [ -x build/cpu-release/tests/unit_train ]; then
  SEED=$seed MEGALITH_BIT_FLIPS=1000 build/cpu-release/tests/unit_train --gtest_filter=Numbers.EveryFlippedBitIsFoundOnItsRank
  MEGALITH_ALL_LAYOUTS=${LAYOUTS:-1} build/cpu-release/tests/unit_train \
    --gtest_filter='*Layouts.TrainTheModelOfOneRank*' >"$work/layouts" 2>&1 ||
    { grep -v "iteration" "$work/layouts" | tail -n 40 >&2; exit 1; }
  echo "soak: all layouts train the model of one rank"
fi
fuzz_runs=${FUZZ_RUNS:-1000000}
[ "$fuzz_runs" -eq 0 ] || SEED=$seed tests/fuzz/run.sh "$fuzz_runs"
python=${PYTHON:-python3}
if "$python" -c 'import tokenizers, tiktoken' 2>/dev/null; then
  "$python" tests/tokenizer/equality.py --prepare "$bin/prepare"
else
  echo "soak: byte-level BPE is not compared: $python has no tokenizers and tiktoken (PYTHON names another)"
fi
if [ "${COVERAGE:-1}" -ne 0 ]; then
  apps/install_dependencies.sh --soak
  tests/coverage.sh
fi
