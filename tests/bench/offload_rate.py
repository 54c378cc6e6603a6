#!/usr/bin/env python3
"""What copies of activations reach of the link's own rate, from a trace of train --trace.

    python3 tests/bench/offload_rate.py TRACE [TO_HOST_GBPS FROM_HOST_GBPS]

Of each rank and way: bytes, the time that its stream was busy copying, and their quotient; with the rates that
`rates --only copies` printed also its share of them. A span counts what it reads and writes, the link carries half.
"""
import json
import sys

WAYS = {"offload": 0, "reload": 1}


def main():
    events = json.load(open(sys.argv[1]))["traceEvents"]
    own = [float(rate) for rate in sys.argv[2:4]]
    lanes = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "thread_name"}
    sums = {}
    for e in events:
        name = lanes.get((e["pid"], e.get("tid")))
        if e["ph"] != "X" or name not in WAYS or not e["args"].get("bytes"):
            continue
        total = sums.setdefault((e["pid"], name), [0.0, 0.0])
        total[0] += e["args"]["bytes"] / 2
        total[1] += e["dur"]
    for (rank, name), (size, busy) in sorted(sums.items()):
        rate = size / busy / 1e3
        share = f", {rate / own[WAYS[name]]:.3f} of the link's own" if own else ""
        print(f"rank {rank} {name}: {size / 1e9:.2f} GB in {busy / 1e3:.1f} ms: {rate:.2f} GB/s{share}")


if __name__ == "__main__":
    main()
