#!/usr/bin/env python3
"""Writes tests/golden/tokenizer: small trained vocabularies and what the libraries make of some texts with them.

Needs Python with tokenizers, tiktoken and regex.  tests/tokenizer/make_golden.py
"""
import json
import os

import regex
import tiktoken
from tokenizers import AddedToken, normalizers, pre_tokenizers

import equality
import texts

FOLDER = os.path.join(texts.ROOT, "tests/golden/tokenizer")
TEXTS = [
    "", " ", "\n", "Hello, world!", "It is a truth universally acknowledged",
    "I'm sure we'll, they'Ve, 'S 'tis it\u2019s", "x'\u017f 'RE're'd",
    "  two  spaces   three\n\n  indented\n\ttab\r\n\r\nend  ", "   ", "a\n", "a \n \n b", " \n", "!?\n\n/ //\n",
    "3 12 123 1234 1234567 \u0663\u0664\u0665\u0666 \u00bd\u2167",
    "na\u00efve caf\u00e9 e\u0301te\u0301 A\u030angstr\u00f6m",
    "\u00c9COLE McDonald iPhone XMLHttpRequest JSONParser's ABC'S",
    "\u4e2d\u6587A\u6587 B\u4e2d ABC\u4e2d DEF ",
    "\u041f\u0440\u0438\u0432\u0435\u0442",
    "\u05e9\u05b8\u05c1\u05dc\u05d5\u05b9\u05dd \u0928\u092e\u0938\u094d\u0924\u0947",
    "\ud55c\uad6d\uc5b4 \u1112\u1161\u11ab \u65e5\u672c\u8a9e\u3001\u30ab\u30bf\u30ab\u30ca",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \U0001f1e9\U0001f1ea",
    "\u0301\u0302 !\u0301a \u0301A \u01c5\u01c8x \u02b0\u02b1 \u2160",
    "\u00a0nbsp\u2003em\u3000ideographic\u200bzero\x0b\x0c\x85", "a<|endoftext|>b <|endoftext|>", "<|endoftext",
    "\u1e9b\u0323 \u0344 \u0958 \u2126 \u212b \uf900 q\u0323\u0307 \u0b47\u0b3e",
    "a" * 70 + " " + "ab" * 40, "caf\u00e9" * 30, "\u0000\u0001\u007f",
]


def write(name, value):
    with open(os.path.join(FOLDER, name), "w", encoding="utf-8") as file:
        json.dump(value, file, ensure_ascii=True, indent=0)
        file.write("\n")


def main():
    os.makedirs(FOLDER, exist_ok=True)
    training = texts.novels() + TEXTS * 20
    gpt2 = equality.train(pre_tokenizers.ByteLevel(add_prefix_space=False), training, 700)
    llama3 = equality.train(equality.split("llama3"), training, 700)
    qwen2 = equality.with_parts(llama3, equality.split("qwen2"), normalizers.NFC())
    qwen2.add_special_tokens(["<|im_start|>"])
    qwen2.add_tokens([AddedToken("caf\u00e9caf\u00e9", normalized=True)])
    tokenizers = {"gpt2": gpt2, "llama3": equality.with_parts(llama3, equality.split("llama3"), ignore_merges=True),
                  "qwen2": qwen2}
    golden = {"texts": TEXTS, "words": {}, "ids": {}}
    gpt2.model.save(FOLDER)
    for name, tokenizer in tokenizers.items():
        with open(os.path.join(FOLDER, f"{name}.json"), "w", encoding="utf-8") as file:
            json.dump(json.loads(tokenizer.to_str()), file, ensure_ascii=False, separators=(",", ":"))
            file.write("\n")
        golden["ids"][name] = [tokenizer.encode(text, add_special_tokens=False).ids for text in TEXTS]
    ranks = equality.ranks_of(llama3)
    equality.write_ranks(os.path.join(FOLDER, "ranks.tiktoken"), ranks)
    for name, pattern in equality.PATTERNS.items():
        golden["words"][name] = [[m.group() for m in regex.finditer(pattern, text)] for text in TEXTS]
        encoding = tiktoken.Encoding(name, pat_str=pattern, mergeable_ranks=ranks,
                                     special_tokens={equality.EOD: len(ranks)})
        golden["ids"][f"tiktoken {name}"] = [encoding.encode(text, allowed_special="all") for text in TEXTS]
    write("golden.json", golden)


main()
