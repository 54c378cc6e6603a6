#!/usr/bin/env python3
"""Writes gpt_order.json: sample orders as Megatron-LM defines them, worked out with numpy alone.

The order is computed here by walking the documents token by token and with numpy's own RandomState, so it shares
neither code nor method with core/data. Run: python3 generate.py (numpy >= 1.22), then compare with git diff.
"""

import json
import math
import pathlib
from fractions import Fraction

import numpy as np


def token(sequence, position):
    return (sequence * 31 + position * 7) % 251


def sequence_lengths(count, spread):
    """A fixed, uneven pattern with empty and one-token sequences in it."""
    return [(i * i * 17 + i * 5 + 3) % spread for i in range(count)]


def epochs_needed(tokens_per_epoch, num_samples, seq_length):
    epochs, tokens = 1, tokens_per_epoch
    while tokens < num_samples * seq_length + 1:
        epochs += 1
        tokens += tokens_per_epoch
    return epochs


def document_index(ids, epochs, state, separate):
    if separate and epochs > 1:
        return np.concatenate([document_index(ids, epochs - 1, state, False), document_index(ids, 1, state, False)])
    index = np.tile(np.array(ids, dtype=np.int32), epochs)
    state.shuffle(index)
    return index


def sample_index(lengths, documents, seq_length, num_samples):
    rows, at, offset = [(0, 0)], 0, 0
    for _ in range(num_samples):
        missing = seq_length + 1
        while True:
            available = lengths[documents[at]] - offset
            if available >= missing:
                offset += missing - 1  # the last token is the next sample's first
                break
            missing -= available
            at, offset = at + 1, 0
        rows.append((at, offset))
    return rows


def shuffle_index(first, total, state):
    head = np.arange(first, dtype=np.uint32)
    state.shuffle(head)
    tail = np.arange(first, total, dtype=np.uint32)
    if first < total:
        state.shuffle(tail)
    return np.concatenate([head, tail])


class Gpt:
    def __init__(self, lengths, begin, end, num_samples, seq_length, seed):
        """num_samples None: one epoch."""
        self.lengths, self.seq_length = lengths, seq_length
        per_epoch = sum(lengths[begin:end])
        self.epochs = 1 if num_samples is None else epochs_needed(per_epoch, num_samples, seq_length)
        self.separate, before_last = False, 0
        if self.epochs > 1:
            before_last = ((self.epochs - 1) * per_epoch - 1) // seq_length
            self.separate = num_samples - before_last < int(0.80 * ((per_epoch - 1) // seq_length))
        state = np.random.RandomState(seed)
        self.documents = document_index(range(begin, end), self.epochs, state, self.separate)
        total = (self.epochs * per_epoch - 1) // seq_length
        self.starts = sample_index(lengths, self.documents, seq_length, total)
        self.order = shuffle_index(before_last if self.separate else total, total, state)

    def __len__(self):
        return len(self.order)

    def __getitem__(self, k):
        i = self.order[k]
        (at, offset), (last, last_offset) = self.starts[i], self.starts[i + 1]
        tokens = []
        for place in range(at, last + 1):
            sequence = int(self.documents[place])
            begin = offset if place == at else 0
            end = last_offset + 1 if place == last else self.lengths[sequence]
            tokens += [token(sequence, t) for t in range(begin, end)]
        assert len(tokens) == self.seq_length + 1
        return tokens


def split(text, count):
    fractions = [float(x) for x in text.split(",")]
    fractions += [0.0] * (3 - len(fractions))
    fractions = (np.array(fractions) / np.sum(np.array(fractions))).tolist()
    borders = [0]
    for fraction in fractions:
        borders.append(borders[-1] + fraction)
    return [[int(round(a * float(count))), int(round(b * float(count)))] for a, b in zip(borders, borders[1:])]


def normalized(weights):
    values = np.array(weights, dtype=np.float64)
    return (values / np.sum(values)).tolist()


def blend_order(weights, size, fused=False):
    """fused: with one rounding instead of two, which is what a compiler's FMA would give."""
    drawn, order = [0] * len(weights), []
    for k in range(size):
        share = max(float(k), 1.0)
        if fused:
            lags = [float(Fraction(w) * Fraction(share) - n) for w, n in zip(weights, drawn)]
        else:
            lags = [w * share - float(n) for w, n in zip(weights, drawn)]
        choice = lags.index(max(lags))
        order.append((choice, drawn[choice]))
        drawn[choice] += 1
    return order


def blended(datasets, weights, num_samples, text, seq_length, seed):
    """Training samples of `datasets` (lists of sequence lengths), as tokens."""
    ranges = [split(text, len(lengths))[0] for lengths in datasets]
    if weights is None:
        parts = [Gpt(l, b, e, None, seq_length, seed) for l, (b, e) in zip(datasets, ranges)]
        weights, size = [len(p) for p in parts], min(num_samples, sum(len(p) for p in parts))
    else:
        weights = normalized(weights)
        wanted = [math.ceil(num_samples * w) for w in weights]
        parts = [Gpt(l, b, e, int(math.ceil(n * (1 + 0.005))), seq_length, seed)
                 for l, (b, e), n in zip(datasets, ranges, wanted)]
        size = sum(wanted)
    order = blend_order(normalized(weights), size)
    return [parts[d][k] for d, k in order]


def fnv(values):
    h = 0xCBF29CE484222325
    for byte in np.asarray(values, dtype="<u4").tobytes():
        h = ((h ^ byte) * 0x100000001B3) % 2**64
    return f"{h:016x}"


def order_case(name, count, spread, part, num_samples, seq_length, seed, full=True):
    lengths = sequence_lengths(count, spread)
    gpt = Gpt(lengths, part[0], part[1], num_samples, seq_length, seed)
    case = {"name": name, "count": count, "spread": spread, "range": part, "num_samples": num_samples,
            "seq_length": seq_length, "seed": seed, "epochs": gpt.epochs, "separate_last_epoch": gpt.separate,
            "size": len(gpt), "document_index_fnv": fnv(gpt.documents),
            "sample_index_fnv": fnv(np.array(gpt.starts[:-1]).reshape(-1)), "shuffle_index_fnv": fnv(gpt.order)}
    if full:
        case |= {"document_index": gpt.documents.tolist(), "sample_index": gpt.starts[:-1],
                 "shuffle_index": gpt.order.tolist(), "samples": [gpt[k] for k in range(min(4, len(gpt)))]}
    return case


def main():
    cases = [
        order_case("one epoch", 9, 23, [0, 9], 8, 5, 1234),
        order_case("part of the sequences", 20, 31, [5, 14], 6, 7, 42),
        order_case("last epoch shuffled with the others", 7, 19, [0, 7], 42, 4, 7),
        order_case("last epoch apart", 7, 19, [0, 7], 22, 4, 7),
        order_case("samples longer than an epoch", 4, 11, [0, 4], 5, 40, 3),
        order_case("one token per sample", 3, 7, [0, 3], 20, 1, 0),
        order_case("largest seed", 8, 29, [1, 8], 30, 6, 4294967295),
        order_case("many sequences, one epoch", 20000, 97, [0, 19380], 5000, 64, 1234, full=False),
        order_case("many sequences, last epoch apart", 3000, 97, [0, 3000], 5000, 64, 99, full=False),
        order_case("many sequences, many epochs", 700, 97, [0, 650], 9700, 16, 5, full=False),
    ]
    assert {c["separate_last_epoch"] for c in cases if c["epochs"] > 1} == {True, False}

    splits = [{"split": s, "count": n, "ranges": split(s, n)} for s, n in [
        ("969,30,1", 111), ("969,30,1", 2), ("969,30,1", 1000000), ("1,1", 5), ("1,1", 7), ("1,1,1", 10), ("98,2,0", 113),
        ("0.2,0.3,0.5", 15), ("100", 3), ("0,0,1", 9), ("1,0,1", 4), ("70,20,10", 0), ("0.7,0.2,0.1", 65)]]

    many = [3.0, 0.1, 0.2, 7.5, 0.3, 1.1, 2.2, 0.7, 0.9, 1.3, 5.7]
    weights = [[0.3, 0.7], [1.0, 1.0, 1.0], [0.1, 0.2, 0.7], [5.0, 0.0, 2.0], [1.0], many, many * 13]
    orders = []
    for raw in weights:
        final = normalized(normalized(raw))
        order = [d for d, _ in blend_order(final, 3000)]
        orders.append({"weights": raw, "normalized": [w.hex() for w in final], "size": len(order), "first": order[:40],
                       "fnv": fnv(order), "rounding_matters": order != [d for d, _ in blend_order(final, 3000, True)]})
    assert any(o["rounding_matters"] for o in orders)

    sets = [sequence_lengths(30, 41), sequence_lengths(12, 67)]
    blends = []
    for raw, samples in [([0.3, 0.7], 60), ([2.0, 1.0], 300), (None, 60), (None, 20)]:
        rows = blended(sets, raw, samples, "80,20", 8, 77)
        blends.append({"counts": [30, 12], "spreads": [41, 67], "weights": raw, "num_samples": samples,
                       "split": "80,20", "seq_length": 8, "seed": 77, "size": len(rows), "samples": rows[:5],
                       "fnv": fnv([t for row in rows for t in row])})
    rows = blended(sets[:1], [1.0], 50, "80,20", 8, 77)
    blends.append({"counts": [30], "spreads": [41], "weights": [1.0], "num_samples": 50, "split": "80,20",
                   "seq_length": 8, "seed": 77, "size": len(rows), "samples": rows[:5],
                   "fnv": fnv([t for row in rows for t in row])})

    golden = {"orders": cases, "splits": splits, "blend_orders": orders, "blends": blends}
    lines = ",\n".join(f'"{key}": [\n' + ",\n".join(json.dumps(v) for v in value) + "\n]"
                       for key, value in golden.items())
    pathlib.Path(__file__).with_name("gpt_order.json").write_text("{\n" + lines + "\n}\n")


if __name__ == "__main__":
    main()
