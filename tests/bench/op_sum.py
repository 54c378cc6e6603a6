#!/usr/bin/env python3
"""The times of all ops of the compute stream, from a trace of train --trace: ms a step.

    python3 tests/bench/op_sum.py TRACE

Each op is timed by two events, so that where the host is behind, its way from one op to the next counts as well.
"""
import json
import sys

events = json.load(open(sys.argv[1]))["traceEvents"]
lanes = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == "compute"}
mine = [e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) in lanes]
steps = sum(e["name"].startswith("step ") for e in mine)
print(f"{sum(e['dur'] for e in mine if 'bytes' in e['args']) / steps / 1000:.3f} ms a step of {steps}")
