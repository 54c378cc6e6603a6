#!/usr/bin/env bash
# Effect of experts: a byte model of 4 layers on the novels of configs/text, dense, and with 8 experts of which a token
# chooses 2, balanced by a loss or by a bias. All have the same steps and tokens. The dense one's MLP is wider by more
# than the routers' weights, so that it has the most active parameters.
#   tests/bench/moe_bytes.sh [FLAG ...]     more flags for train, such as --device cuda
# Environment: APPS, the folder of the built programs (default build/cpu-release/apps); STEPS (default 2400).
# Prints each run's validation loss. For its last 50 steps it prints the largest expert's rows over the mean, in the
# layer with the maximum, averaged over the steps, and the lowest entropy of a layer.
set -euo pipefail
cd "$(dirname "$0")/../.."
apps=${APPS:-build/cpu-release/apps}
steps=${STEPS:-2400}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$apps/prepare" --input configs/text/*.txt --document-start Chapter --append-eod --output-prefix "$work/text" >/dev/null
moe="--moe-ffn-hidden-size 96 --num-experts 8 --moe-router-topk 2 --moe-grouped-gemm --use-transformer-engine-op-fuser"
declare -A cases=(
  [dense]="--ffn-hidden-size 196"
  [loss]="$moe --moe-router-load-balancing-type aux_loss --moe-aux-loss-coeff 1e-2"
  [bias]="$moe --moe-router-score-function sigmoid --moe-router-enable-expert-bias --moe-router-bias-update-rate 3e-3"
)
for name in dense loss bias; do
  # shellcheck disable=SC2086
  "$apps/train" --num-layers 4 --hidden-size 64 --num-attention-heads 2 --seq-length 128 \
    --position-embedding-type rope --normalization RMSNorm --swiglu --disable-bias-linear ${cases[$name]} \
    --data-path "$work/text" --split 95,5,0 --micro-batch-size 16 --global-batch-size 16 --train-iters "$steps" --seed 1234 \
    --lr 5e-3 --min-lr 5e-4 --lr-decay-style cosine --lr-warmup-iters 50 --adam-beta2 0.98 --weight-decay 0.1 \
    --eval-interval "$steps" --eval-iters 30 --log-interval 400 --metrics-jsonl "$work/$name.jsonl" "$@" >"$work/log" 2>&1 ||
    { tail -n 5 "$work/log"; exit 1; }
  grep -m 1 "parameters" "$work/log" || true
  python3 - "$name" "$work/$name.jsonl" <<'END'
import json, sys
lines = [json.loads(line) for line in open(sys.argv[2])]
text = f"{sys.argv[1]:6} validation loss {lines[-1]['validation_loss']:.4f}"
last = [line["experts"] for line in lines[-50:] if "experts" in line]
if last:
    layers = range(len(last[0]["layer"]))
    ratio = [sum(e["max"][i] / e["mean"][i] for e in last) / len(last) for i in layers]
    worst = max(layers, key=ratio.__getitem__)
    text += f", largest load over the mean {ratio[worst]:.3f} (layer {last[0]['layer'][worst]}), entropy "
    text += f"{min(sum(e['entropy'][i] for e in last) / len(last) for i in layers):.4f}"
seconds = sum(line["step_ms"] for line in lines) / 1e3
print(f"{text}, {seconds:.0f} s", flush=True)
END
done
