#!/usr/bin/env python3
"""Writes routes.json: where tokens go when ranks share out experts, worked out from the definitions alone.

Of each case: sizes, the choices of each rank's tokens, and what the dispatch must make of them. Every list is made by
asking each token and each expert, without sorting or counting, so this shares no method with moe/dispatch.cpp.
Run: python3 generate.py, then compare with git diff.
"""

import json
import pathlib
import random
from fractions import Fraction
from math import ceil


def room_of(mean, factor, most):
    return min(ceil(ceil(factor * mean) / 128) * 128, most)


def rooms(case):
    """(tokens that may arrive, rows of experts) with all experts chosen alike, times the factor."""
    tokens, choices, experts, ranks = (case[name] for name in ("tokens", "choices", "experts", "ranks"))
    local = experts * case["copies"] // ranks
    elsewhere = Fraction(1)
    for i in range(choices):
        elsewhere *= Fraction(max(experts - local - i, 0), experts - i)
    factor = Fraction(case["factor"])
    everyone = ranks * tokens
    return (
        room_of(everyone * (1 - elsewhere), factor, everyone),
        room_of(Fraction(case["copies"] * tokens * choices), factor, everyone * min(choices, local)),
    )


def routes(case):
    ranks, tokens, local = case["ranks"], case["tokens"], case["experts"] * case["copies"] // case["ranks"]
    owned = [range(r // case["copies"] * local, (r // case["copies"] + 1) * local) for r in range(ranks)]
    chosen = case["choice"]  # [rank][token][choice]

    def goes(source, token, target):
        return any(expert in owned[target] for expert in chosen[source][token])

    sends = []
    for source in range(ranks):
        ends = [0]
        for target in range(ranks):
            ends.append(ends[-1] + sum(goes(source, token, target) for token in range(tokens)))
        sends.append(ends)
    room, row_room = rooms(case)
    targets = []
    for target in range(ranks):
        everyone = [(s, t) for s in range(ranks) for t in range(tokens) if goes(s, t, target)]
        arrived = everyone[:room]
        rows, offsets = [], [0]
        for expert in owned[target]:
            rows += [at for at, (s, t) in enumerate(arrived) if expert in chosen[s][t]]
            offsets.append(min(len(rows), row_room))
        targets.append(
            {
                "arrived": [s * tokens + t for s, t in arrived],
                "offsets": offsets,
                "token": rows[:row_room],
                "wanted": [len(everyone), len(rows)],
            }
        )
    return {**case, "room": [room, row_room], "sends": sends, "targets": targets}


def evenly(case, rng):
    choices = [
        [rng.sample(range(case["experts"]), case["choices"]) for _ in range(case["tokens"])]
        for _ in range(case["ranks"])
    ]
    for rank in choices:
        for token in rank:
            if rng.random() < 0.1:
                token[rng.randrange(len(token))] = -1  # dropped
    return choices


def one_rank(case, rng, target):
    local = case["experts"] * case["copies"] // case["ranks"]
    experts = range(target // case["copies"] * local, (target // case["copies"] + 1) * local)
    return [[rng.sample(experts, case["choices"]) for _ in range(case["tokens"])] for _ in range(case["ranks"])]


def main():
    rng = random.Random(18)
    cases = []

    def add(name, choice, **sizes):
        case = {"name": name, "copies": 1, "factor": "1.5", **sizes}
        cases.append(routes({**case, "choice": choice(case)}))

    add("two_ranks", lambda c: evenly(c, rng), tokens=7, choices=2, experts=4, ranks=2)
    add("four_ranks", lambda c: evenly(c, rng), tokens=9, choices=3, experts=8, ranks=4)
    add("copies", lambda c: evenly(c, rng), tokens=6, choices=2, experts=6, ranks=4, copies=2)
    add("all_to_the_first", lambda c: one_rank(c, rng, 0), tokens=5, choices=2, experts=8, ranks=4)
    add("all_to_the_last", lambda c: one_rank(c, rng, 3), tokens=5, choices=2, experts=8, ranks=4)
    add("no_room", lambda c: evenly(c, rng), tokens=96, choices=2, experts=8, ranks=2, factor="0.5")
    add("none", lambda c: [[[-1]] * c["tokens"]] * c["ranks"], tokens=3, choices=1, experts=2, ranks=2)
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    pathlib.Path(__file__).with_name("routes.json").write_text(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
