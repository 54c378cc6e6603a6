#!/usr/bin/env bash
# Measures the figures of the CPU backend for RESULTS.md, on an otherwise idle machine. Every op is compared with the
# copy loop or the peak of the same run, then complete training steps with PyTorch on the same two cores.
#   tests/bench/cpu.sh             PYTHON is an interpreter with torch; without one the peer is left out
set -euo pipefail
cd "$(dirname "$0")/../.."
. tests/bench/metrics.sh
python=${PYTHON:-python3}

cmake --preset cpu-release -DMEGALITH_BENCH=ON >/dev/null
cmake --build --preset cpu-release -- -k 0 >build/bench.log 2>&1 || { tail -20 build/bench.log; exit 1; }
for bench in build/cpu-release/tests/bench/*_bench build/cpu-release/tests/*_bench; do
  [ ! -x "$bench" ] || "$bench" --benchmark_min_time=0.2
done

metrics=$work/metrics
# Median tokens/s of the steps after the third.
mpirun -np 2 build/cpu-release/apps/train --config configs/quickstart.toml --mock-data --train-iters 24 --micro-batch-size 8 --global-batch-size 16 --overlap-grad-reduce \
  --lr-warmup-iters 2 --eval-interval 0 --save-interval 0 --metrics-jsonl "$metrics" >/dev/null 2>&1
echo "megalith: 2 ranks x 1 thread: $(printf %.0f "$(median "$metrics" tokens_per_second +4)") tokens/s"
if "$python" -c 'import torch' 2>/dev/null; then
  "$python" tests/bench/torch_gpt_cpu.py --threads 2
  "$python" -m torch.distributed.run --nproc-per-node 2 tests/bench/torch_gpt_cpu.py --threads 1 2>/dev/null
else
  echo "torch: not installed, no peer"
fi
