#!/usr/bin/env python3
"""Prepares texts by byte-level BPE and requires the ids that the Hugging Face and tiktoken libraries give.

  tests/tokenizer/equality.py [--prepare build/cpu-release/apps/prepare] [--megabytes 12] [--vocab-size 50000]

Trains the vocabularies itself (no network), on what texts.py finds here. Needs Python with tokenizers and tiktoken.
Prints a line for each tokenizer and ends with 1 if any id differs. --keep FOLDER: leaves the tokenizers there.
"""
import argparse
import json
import os
import struct
import subprocess
import sys
import tempfile
import time
from array import array

import tiktoken
import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, trainers

import texts

CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+%s|"
         r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*%s|")
ENDINGS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
CASED_TAIL = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {
    "gpt2": r"""'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s""",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|"
              r"\s*[\r\n]|\s+(?!\S)|\s",
    "llama3": ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}|" + TAIL,
    "qwen2": ENDINGS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|" + TAIL,
    "o200k": CASED % (ENDINGS + "?", ENDINGS + "?") + r"\p{N}{1,3}|" + CASED_TAIL,
    "v1": r"[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+",
    "v2": CASED % ("", "") + r"\p{N}|" + CASED_TAIL,
}
EOD = "<|endoftext|>"


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(PATTERNS[pattern]), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def train(pre_tokenizer, documents, vocab_size):
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=[EOD], show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    tokenizer.train_from_iterator(documents, trainer)
    return tokenizer


def with_parts(tokenizer, pre_tokenizer, normalizer=None, ignore_merges=False):
    """A copy with other parts around the same vocabulary."""
    copy = tokenizers.Tokenizer.from_str(tokenizer.to_str())
    copy.model.ignore_merges = ignore_merges
    copy.pre_tokenizer = pre_tokenizer
    if normalizer:
        copy.normalizer = normalizer
    return copy


def ranks_of(tokenizer):
    """tiktoken's ranks of a trained vocabulary: the bytes, then the merges in their order."""
    byte_of = {c: bytes([b]) for b, c in zip(spelled_bytes(), spelled_characters())}
    ranks = {bytes([b]): b for b in range(256)}
    for left, right in json.loads(tokenizer.to_str())["model"]["merges"]:
        merged = b"".join(byte_of[c] for c in left + right)
        ranks.setdefault(merged, len(ranks))
    return ranks


def spelled_bytes():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return plain + [b for b in range(256) if b not in plain]


def spelled_characters():
    plain = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    return [chr(c) for c in plain] + [chr(0x100 + i) for i in range(256 - len(plain))]


def write_ranks(path, ranks):
    import base64
    with open(path, "wb") as file:
        for token, rank in ranks.items():
            file.write(base64.b64encode(token) + b" " + str(rank).encode() + b"\n")


def read_documents(prefix):
    with open(prefix + ".idx", "rb") as file:
        index = file.read()
    dtype, sequences, _ = struct.unpack_from("<BQQ", index, 17)
    lengths = struct.unpack_from(f"<{sequences}i", index, 34)
    tokens = array({8: "H", 4: "i"}[dtype])
    with open(prefix + ".bin", "rb") as file:
        tokens.frombytes(file.read())
    documents = []
    at = 0
    for length in lengths:
        documents.append(tokens[at : at + length].tolist())
        at += length
    return documents


def compare(name, prepare, flags, documents, reference, folder):
    start = time.time()
    prefix = os.path.join(folder, "out")
    ran = subprocess.run([prepare, "--input", os.path.join(folder, "texts.jsonl"), "--output-prefix", prefix, *flags],
                         capture_output=True, text=True)
    if ran.returncode != 0:
        print(f"{name}: prepare ended with {ran.returncode}: {ran.stderr.strip()}")
        return False
    rate = ran.stdout.strip().split(", ")[-1]
    got = read_documents(prefix)
    wrong = 0
    first = None
    tokens = 0
    for i in range(0, len(documents), 1000):
        for j, want in enumerate(reference(documents[i : i + 1000])):
            tokens += len(want)
            if i + j >= len(got) or got[i + j] != want:
                wrong += 1
                first = first or (documents[i + j], want, got[i + j] if i + j < len(got) else None)
    same = wrong == 0 and len(got) == len(documents)
    print(f"{name}: {len(documents)} documents, {tokens} tokens, {wrong} documents differ; {rate} out of JSON lines, "
          f"{time.time() - start:.0f} s", flush=True)
    if first:
        text, want, ids = first
        at = next((k for k, (a, b) in enumerate(zip(want, ids or [])) if a != b), min(len(want), len(ids or [])))
        print(f"  first: token {at}, expected {want[at : at + 8]}, got {(ids or [])[at : at + 8]} in {text[:2000]!r}")
    return same


def hugging_face_cases(gpt2, llama3, o200k):
    """name -> tokenizer"""
    qwen2 = with_parts(llama3, split("qwen2"), normalizers.NFC())
    qwen2.add_special_tokens(["<|im_start|>", AddedToken("<|im_end|>", special=True)])
    prefixed = with_parts(gpt2, pre_tokenizers.ByteLevel(add_prefix_space=True))
    return {"gpt2 json": gpt2, "gpt2 json with prefix space": prefixed,
            "llama3 json": with_parts(llama3, split("llama3"), ignore_merges=True), "qwen2 json, NFC": qwen2,
            "o200k json": with_parts(o200k, split("o200k")), "v2 json": with_parts(o200k, split("v2"))}


def run(arguments, folder):
    size = arguments.megabytes * 1000000
    documents = (texts.special() + texts.novels() + texts.random_unicode(size // 5) + texts.every_character()
                 + texts.translations(size // 3) + texts.manuals(size // 4) + texts.sources())
    documents = [d for d in documents if d]
    with open(os.path.join(folder, "texts.jsonl"), "w", encoding="utf-8") as file:
        for document in documents:
            file.write(json.dumps({"text": document}, ensure_ascii=False) + "\n")
    print(f"tokenizers {tokenizers.__version__}, tiktoken {tiktoken.__version__}: {len(documents)} documents, "
          f"{sum(len(d.encode()) for d in documents) / 1e6:.1f} MB", flush=True)
    training = texts.novels() + texts.manuals(size) + texts.translations(size) + texts.sources()
    gpt2 = train(pre_tokenizers.ByteLevel(add_prefix_space=False), training, arguments.vocab_size)
    llama3 = train(split("llama3"), training, arguments.vocab_size)
    o200k = train(split("o200k"), training, arguments.vocab_size // 2)
    print(f"vocabularies: {[t.get_vocab_size() for t in (gpt2, llama3, o200k)]}", flush=True)

    gpt2.model.save(folder)
    files = ["--vocab-file", os.path.join(folder, "vocab.json"), "--merge-file", os.path.join(folder, "merges.txt")]
    plain = tokenizers.Tokenizer(models.BPE.from_file(files[1], files[3]))
    plain.pre_tokenizer = gpt2.pre_tokenizer

    def encode_batch(tokenizer):
        return lambda batch: [e.ids for e in tokenizer.encode_batch(batch, add_special_tokens=False)]

    same = compare("GPT2BPETokenizer", arguments.prepare, ["--tokenizer-type", "GPT2BPETokenizer", *files], documents,
                   encode_batch(plain), folder)
    for name, tokenizer in hugging_face_cases(gpt2, llama3, o200k).items():
        path = os.path.join(folder, name.replace(" ", "-").replace(",", "") + ".json")
        tokenizer.save(path)
        flags = ["--tokenizer-type", "HuggingFaceTokenizer", "--tokenizer-model", path]
        same &= compare(name, arguments.prepare, flags, documents, encode_batch(tokenizer), folder)
    for name, pattern in PATTERNS.items():
        ranks = ranks_of({"gpt2": gpt2, "o200k": o200k, "v2": o200k}.get(name, llama3))
        path = os.path.join(folder, f"{name}.tiktoken")
        write_ranks(path, ranks)
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks, special_tokens={EOD: len(ranks) + 1})
        same &= compare(f"tiktoken {name}", arguments.prepare,
                        ["--tokenizer-type", "TikTokenizer", "--tokenizer-model", path, "--tiktoken-pattern", name,
                         "--tiktoken-special-tokens", f"{EOD}={len(ranks) + 1}"], documents,
                        lambda batch: encoding.encode_batch(batch, allowed_special="all", num_threads=1), folder)
    return same


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--prepare", default=os.path.join(texts.ROOT, "build/cpu-release/apps/prepare"))
    parser.add_argument("--megabytes", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=50257)
    parser.add_argument("--keep")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.keep:
            os.makedirs(arguments.keep, exist_ok=True)
        sys.exit(0 if run(arguments, arguments.keep or folder) else 1)


if __name__ == "__main__":
    main()
