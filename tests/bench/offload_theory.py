#!/usr/bin/env python3
"""What moving activations to the host saves at best, from the printed list of a step alone.

  plan ... --print-actions | python3 tests/bench/offload_theory.py

A slot is on the device from its offload (it has just been written) to the last backward verb of the segment it is
named after; with offload not between its wait_offload and its reload. For each stage: how many slots are in flight at
most, how many of them are on the device at most with offload, and the difference in bytes of the fullest moments.
Everything else that a step holds is taken as the same at both moments. Shares no code with the program.
"""
import re
import sys

SLOT = re.compile(r"slot (\d+): chunk (\d+), (.+): (\S+), (\d+) bytes$")
ACTION = re.compile(r"\s*\d+  (\w+) chunk (\d+) microbatch (\d+)(?: slot (\d+))?(?: segment \d+)?(?: column \d+)?"
                    r"(?: \(([^)]*)\))?")


def stages_of(lines):
    stage = {"slots": {}, "actions": []}
    stages = []
    for line in lines:
        line = line.rstrip("\n")
        if re.fullmatch(r"stage \d+", line):
            if stage["actions"]:
                stages.append(stage)
            stage = {"slots": {}, "actions": []}
        if slot := SLOT.match(line):
            item, chunk, segment, _, size = slot.groups()
            stage["slots"][int(item)] = (int(chunk), segment, int(size))
        elif action := ACTION.match(line):
            kind, chunk, microbatch, item, segment = action.groups()
            stage["actions"].append((kind, int(chunk), int(microbatch), item and int(item), segment))
    return stages + [stage] if stage["actions"] else stages


def peak(changes):
    """The most of a running sum; changes by place, those that end first."""
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def theory(stage):
    slots, actions = stage["slots"], stage["actions"]
    ends = {}  # end of a segment's backward; key: (chunk, microbatch, segment)
    places = {}  # places of a slot's actions
    for place, (kind, chunk, microbatch, item, segment) in enumerate(actions):
        if kind.startswith("backward"):
            ends[chunk, microbatch, segment] = place
        elif item is not None:
            places[kind, microbatch, item] = place
    lives = {"keep": [], "offload": []}
    for (kind, microbatch, item), begin in places.items():
        if kind != "offload":
            continue
        chunk, segment, size = slots[item]
        end = ends[chunk, microbatch, segment] + 1
        left, back = places["wait_offload", microbatch, item], places["reload", microbatch, item]
        lives["keep"].append((begin, end, size))
        lives["offload"] += [(begin, left, size), (back, end, size)]

    def most(name, weigh):
        return peak([(begin, weigh(size)) for begin, _, size in lives[name]] +
                    [(end, -weigh(size)) for _, end, size in lives[name]])

    counts = {name: most(name, lambda size: 1) for name in lives}
    sizes = {name: most(name, lambda size: size) for name in lives}
    return counts["keep"], counts["offload"], sizes["keep"] - sizes["offload"]


def main():
    for number, stage in enumerate(stages_of(sys.stdin)):
        kept, left, saved = theory(stage)
        print(f"stage {number}: {kept} slots in flight, {left} on the device, saves {saved} bytes")


if __name__ == "__main__":
    main()
