#!/usr/bin/env python3
"""The times of all ops of the compute stream, from a trace of train --trace: ms a step, of each rank, and how long it had none.

    python3 tests/bench/op_sum.py TRACE

Each op is timed by two events, so that where the host is behind, its way from one op to the next counts as well.
"""
import collections
import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
lanes = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == "compute"}
ops, steps = collections.defaultdict(list), collections.defaultdict(list)
for e in events:
    if e["ph"] == "X" and (e["pid"], e["tid"]) in lanes:
        if e["name"].startswith("step "):
            steps[e["pid"]].append(e["dur"])
        elif "bytes" in e["args"]:
            ops[e["pid"]].append(e["dur"])
for rank in sorted(ops):
    many, busy, whole = len(steps[rank]), sum(ops[rank]), sum(steps[rank])
    print(f"rank {rank}: {busy / many / 1000:.3f} ms a step of {many}, without an op {(whole - busy) / many / 1000:.3f} of {whole / many / 1000:.3f} ({1 - busy / whole:.2%})")
