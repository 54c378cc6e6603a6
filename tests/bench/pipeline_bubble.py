#!/usr/bin/env python3
"""The bubble of a pipeline, from a trace of train --trace, beside the one that its schedule has with the measured times.

    python3 tests/bench/pipeline_bubble.py TRACE [NAME]

Measured: the share of the step, up to the end of its last forward or backward, in which a rank's compute stream ran none
of them, mean over ranks. Formula: the same of a step in which every verb of every segment takes as long as it took, in the
order that the ranks took, begins as soon as what it depends on has ended, and messages take no time.
"""
import collections
import json
import re
import sys

VERB = re.compile(r"(embedding|head|layer (\d+) (attention|mlp)) (forward|backward_data|backward_weight) microbatch (\d+)$")


def segment_number(match):
    if match[1] == "embedding":
        return -1
    if match[1] == "head":
        return 1 << 30
    return 2 * int(match[2]) + (match[3] == "mlp")


def main():
    events = json.load(open(sys.argv[1]))["traceEvents"]
    compute = {(e["pid"], e["tid"]) for e in events if e["ph"] == "M" and e["name"] == "thread_name" and e["args"]["name"] == "compute"}
    begins = {}
    verbs = collections.defaultdict(list)  # key: rank; values: (begin, duration, kind, segment, microbatch)
    for e in events:
        if e["ph"] != "X" or (e["pid"], e["tid"]) not in compute:
            continue
        if re.fullmatch(r"step \d+", e["name"]):
            begins.setdefault(e["pid"], e["ts"])
            if begins[e["pid"]] != e["ts"]:
                sys.exit("pipeline_bubble.py: expected a trace of one step (--profile-step-start and -end)")
        match = VERB.match(e["name"])
        if match:
            verbs[e["pid"]].append((e["ts"], e["dur"], match[4], segment_number(match), int(match[5])))
    ranks = sorted(verbs)
    span = max(v[0] + v[1] - begins[r] for r in ranks for v in verbs[r])
    work = {r: sum(v[1] for v in verbs[r]) for r in ranks}

    segments = sorted({v[3] for r in ranks for v in verbs[r]})
    after = dict(zip(segments, segments[1:]))
    before = dict(zip(segments[1:], segments))
    done = {}
    queues = {r: collections.deque(sorted(verbs[r])) for r in ranks}
    clock = dict.fromkeys(ranks, 0.0)
    while any(queues.values()):
        progress = False
        for r in ranks:
            while queues[r]:
                _, duration, kind, segment, microbatch = queues[r][0]
                if kind == "forward":
                    needs = ("forward", before[segment], microbatch) if segment in before else None
                elif kind == "backward_data" and segment in after:
                    needs = ("backward_data", after[segment], microbatch)
                else:
                    needs = ("forward", segments[-1], microbatch)
                if kind == "backward_data" and segment == segments[0]:
                    needs = None  # the embedding has no gradient of its input; its time is negligible
                if needs is not None and needs not in done:
                    break
                clock[r] = max(clock[r], done.get(needs, 0.0)) + duration
                done[(kind, segment, microbatch)] = clock[r]
                queues[r].popleft()
                progress = True
        if not progress:
            sys.exit("pipeline_bubble.py: the order of the trace has a cycle")
    ideal = max(clock.values())
    total = sum(work.values())
    measured, formula = 1 - total / (len(ranks) * span), 1 - total / (len(ranks) * ideal)
    kinds = collections.Counter()
    for r in ranks:
        for v in verbs[r]:
            kinds[v[2]] += v[1] / 1000
    print(f"{sys.argv[2] if len(sys.argv) > 2 else sys.argv[1]}: step {span / 1000:.1f} ms, by its schedule {ideal / 1000:.1f} ms; "
          f"bubble {100 * measured:.1f} %, by the schedule {100 * formula:.1f} %, difference {100 * (measured - formula):.1f} points; "
          f"busy {', '.join(f'{work[r] / 1000:.0f}' for r in ranks)} ms; F {kinds['forward']:.0f} B {kinds['backward_data']:.0f} W {kinds['backward_weight']:.0f} ms")


main()
