"""Fine-tunes models on packed chats here and with transformers, and compares the losses and gradient norms.

    check_packed.py BIN FOLDER     folder of the programs, and a folder that does not exist yet

A tiny random model of each family trains STEPS steps in fp32 on the packs that `prepare --sft` wrote: by `train --sft
--finetune`, and by transformers with torch's AdamW. transformers recognizes the documents of a pack by their position
ids. The script reads the packs' files by itself. It prints the largest relative differences of each family, and its
exit code is 1 if one exceeds LIMIT.
"""
import json
import pathlib
import random
import struct
import subprocess
import sys

import numpy
import torch
import transformers

from make_models import draw_weights, llama, llama31, mixtral, qwen3, qwen3_moe

STEPS, BATCH, ROWS, PAD, SEED = 20, 8, 512, 4, 1234
ADAM = dict(lr=1e-3, betas=(0.9, 0.95), eps=1e-8)
DECAY, CLIP, LIMIT = 0.1, 1.0, 1e-5
BYTES = 257  # vocabulary of the tokenizer of bytes
SIZE = dict(hidden=32, heads=4, groups=2, ffn=48, vocab=BYTES, positions=ROWS, experts=4)
FAMILIES = llama, llama31, qwen3, qwen3_moe, mixtral


def write_chats(path, count):
    """Chats of one or two turns, which chatml renders to about 75 to 250 bytes."""
    draw = random.Random(SEED)
    text = lambda longest: "".join(draw.choices("abcdefghij .,?\n", k=draw.randint(1, longest)))
    with path.open("w") as file:
        for _ in range(count):
            turns = draw.choice((1, 1, 1, 2))
            roles = ("user", "assistant") * turns
            messages = [{"role": role, "content": text(60 // turns)} for role in roles]
            file.write(json.dumps({"messages": messages}) + "\n")


def read_index(path):
    """Type of a token, tokens of each sequence, byte at which it begins, and first sequence of each document."""
    data = path.read_bytes()
    magic, version, kind, sequences, borders = struct.unpack_from("<9sQBQQ", data)
    assert magic == b"MMIDIDX\0\0" and version == 1
    lengths = numpy.frombuffer(data, numpy.int32, sequences, 34)
    begins = numpy.frombuffer(data, numpy.int64, sequences, 34 + lengths.nbytes)
    documents = numpy.frombuffer(data, numpy.int64, borders, 34 + lengths.nbytes + begins.nbytes)
    return {1: numpy.uint8, 4: numpy.int32, 8: numpy.uint16}[kind], lengths, begins, documents


def read_sequences(prefix):
    kind, lengths, begins, documents = read_index(prefix.with_name(prefix.name + ".idx"))
    data = prefix.with_name(prefix.name + ".bin").read_bytes()
    return [numpy.frombuffer(data, kind, *where) for where in zip(lengths, begins)], documents


def read_packs(prefix):
    """Inputs, labels (-100: not trained) and positions of the rows of each pack."""
    record = dict(line.split() for line in prefix.with_name(prefix.name + ".packs").read_text().splitlines())
    rows, multiple = int(record["seq_length"]), int(record["pad_multiple"])
    tokens, borders = read_sequences(prefix)
    trained, _ = read_sequences(prefix.with_name(prefix.name + "_mask"))
    packs = []
    for begin, end in zip(borders, borders[1:]):
        inputs, labels, positions = [], [], []
        for ids, marks in zip(tokens[begin:end], trained[begin:end]):
            padding = -len(ids) % multiple
            inputs += [*map(int, ids)] + [0] * padding
            labels += [int(id) if mark else -100 for id, mark in zip(ids[1:], marks[1:])] + [-100] * (1 + padding)
            positions += range(len(ids) + padding)
        rest = rows - len(inputs)
        packs.append((inputs + [0] * rest, labels + [-100] * rest, positions + list(range(rest))))
    return packs


def batches(packs):
    """The packs of each step: each epoch is all of them, shuffled."""
    random_state, order = numpy.random.RandomState(SEED), []
    while len(order) < STEPS * BATCH:
        epoch = numpy.arange(len(packs), dtype=numpy.uint32)
        random_state.shuffle(epoch)
        order += list(epoch)
    for step in range(STEPS):
        chosen = [packs[pack] for pack in order[step * BATCH:(step + 1) * BATCH]]
        yield [torch.tensor(values) for values in zip(*chosen)]


def check_separation(model, inputs, positions):
    """The model separates the documents: an explicit mask gives equal logits."""
    documents = (positions == 0).cumsum(1)
    visible = (documents[:, :, None] == documents[:, None, :]).tril()[:, None]
    mask = torch.zeros(visible.shape).masked_fill(~visible, torch.finfo(torch.float32).min)
    with torch.no_grad():
        found = model(input_ids=inputs, position_ids=positions, use_cache=False).logits
        masked = model(input_ids=inputs, position_ids=positions, attention_mask=mask, use_cache=False).logits
    torch.testing.assert_close(found, masked, rtol=1e-5, atol=1e-6)


def train_theirs(model, packs):
    """Losses and gradient norms of the steps."""
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [dict(params=matrices, weight_decay=DECAY), dict(params=others, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, **ADAM)
    steps = []
    for inputs, labels, positions in batches(packs):
        if not steps:
            check_separation(model, inputs, positions)
        logits = model(input_ids=inputs, position_ids=positions, use_cache=False).logits
        trained = (labels != -100).sum()
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum") / trained
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        steps.append((loss.item(), norm.item(), trained.item()))
    return steps


def run(*command):
    result = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert result.returncode == 0, f"{' '.join(map(str, command))}: exit code {result.returncode}: {result.stderr}"


def train_ours(bin, folder, chats):
    run(bin / "convert", "--from", "hf", "--load", folder / "theirs", "--save", folder / "base", "--tokenizer-type",
        "byte")
    run(bin / "train", "--config", folder / "base/model.toml", "--load", folder / "base", "--finetune", "--sft",
        "--data-path", chats, "--split", 1, "--seq-length", ROWS, "--micro-batch-size", 2, "--global-batch-size", BATCH,
        "--train-iters", STEPS, "--eval-iters", 0, "--seed", SEED, "--lr", ADAM["lr"], "--lr-decay-style", "constant",
        "--adam-beta1", ADAM["betas"][0], "--adam-beta2", ADAM["betas"][1], "--adam-eps", ADAM["eps"],
        "--weight-decay", DECAY, "--clip-grad", CLIP, "--metrics-jsonl", folder / "metrics.jsonl")
    lines = map(json.loads, (folder / "metrics.jsonl").read_text().splitlines())
    number = float.fromhex
    return [(number(s["lm_loss_hex"]), number(s["grad_norm_hex"]), s["trained_tokens"]) for s in lines]


def main():
    torch.set_num_threads(1)
    transformers.logging.disable_progress_bar()
    transformers.logging.set_verbosity_error()
    bin, root = pathlib.Path(sys.argv[1]).resolve(), pathlib.Path(sys.argv[2]).resolve()
    root.mkdir(parents=True)
    write_chats(root / "chats.jsonl", 200)
    run(bin / "prepare", "--sft", "--input", root / "chats.jsonl", "--output-prefix", root / "chats", "--seq-length",
        ROWS, "--pad-to-multiple", PAD, "--tokenizer-type", "byte", "--chat-template", "chatml")
    packs = read_packs(root / "chats")
    failed = False
    for family in FAMILIES:
        torch.manual_seed(SEED)
        model_class, config = family(SIZE)
        if hasattr(config, "router_aux_loss_coef"):
            config.router_aux_loss_coef = 0.0
        model = model_class._from_config(config, attn_implementation="eager")
        draw_weights(model, SIZE["hidden"])
        folder = root / family.__name__
        model.save_pretrained(folder / "theirs")
        theirs, ours = train_theirs(model, packs), train_ours(bin, folder, root / "chats")
        assert len(theirs) == len(ours) == STEPS
        assert [step[2] for step in theirs] == [step[2] for step in ours], "numbers of trained tokens"
        loss, norm = (max(abs(a[i] / b[i] - 1) for a, b in zip(ours, theirs)) for i in (0, 1))
        failed = failed or not max(loss, norm) <= LIMIT
        print(f"{family.__name__}: {STEPS} steps of {BATCH} packs, loss {theirs[0][0]:.4f} to {theirs[-1][0]:.4f}, "
              f"largest relative difference: loss {loss:.1e}, gradient norm {norm:.1e}", flush=True)
    sys.exit(failed)


if __name__ == "__main__":
    main()
