#!/usr/bin/env python3
"""What layers of experts take in a training step, from a trace of train --trace: router to merge, forward and backward.

    python3 tests/bench/layer_time.py TRACE TOKENS CHOICES HIDDEN FFN

Prints, by rank, the mean over layers and microbatches of the time from the first segment's begin to the last one's end
on the compute stream; the TFLOP/s of a rank's mean share, 18 x tokens a rank x choices x hidden x ffn of a SwiGLU
layer; the mean time of each exchange of rows.
"""
import collections
import json
import math
import re
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
flops = 18 * math.prod(int(size) for size in sys.argv[2:6])
lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
spans = sorted((e for e in events if e["ph"] == "X"), key=lambda e: e["ts"])
SEGMENT = re.compile(r"layer (\d+) (?:router|dispatch|experts|return|merge) (forward|backward)\S* microbatch (\d+)")

for rank in sorted({e["pid"] for e in spans}):
    mine = [e for e in spans if e["pid"] == rank]
    times = {}
    step = 0
    for e in mine:
        if lanes[rank, e["tid"]] != "compute":
            continue
        step += e["name"].startswith("step ")
        if found := SEGMENT.fullmatch(e["name"]):
            begin, end = times.get((step, *found.groups()), (e["ts"], 0))
            times[step, *found.groups()] = begin, max(end, e["ts"] + e["dur"])
    mean = collections.Counter()
    for (_, _, way, _), (begin, end) in times.items():
        mean[way] += 2 * (end - begin) / len(times)
    rows = [e["dur"] for e in mine if e["name"] == "exchange_rows"]
    print(
        f"rank {rank}: forward {mean['forward']:.0f} us, backward {mean['backward']:.0f} us, "
        f"{flops / mean.total() / 1e6:.0f} TFLOP/s; {len(rows)} exchanges of {sum(rows) / max(1, len(rows)):.0f} us"
    )
