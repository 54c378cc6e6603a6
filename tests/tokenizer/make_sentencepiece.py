#!/usr/bin/env python3
"""Writes bpe.model, unigram.model and sentencepiece.json of tests/golden/tokenizer: SentencePiece models of 400 pieces
and the ids of the library for some texts.

Needs Python with sentencepiece.  tests/tokenizer/make_sentencepiece.py
"""
import json
import os

import sentencepiece

import texts

FOLDER = os.path.join(texts.ROOT, "tests/golden/tokenizer")
TEXTS = ["", " ", "Hello, world!", "It is a truth universally acknowledged", "  two  spaces   three\n\tend  ",
         "12 345", "na\u00efve caf\u00e9 e\u0301", "\u4e2d\u6587 \U0001f600", "<|im_start|>user\n", "a <|im_start|> b",
         "<s>text</s><unk>", "\u2581a\u2581", "\ufb01 \u00bd", "a" * 70, "\u0000\u0001"]


def main():
    golden = {"texts": TEXTS, "ids": {}}
    lines = texts.novels()[0].splitlines()[:2500]
    for kind in ("bpe", "unigram"):
        prefix = os.path.join(FOLDER, kind)
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(lines), model_prefix=prefix, vocab_size=400, model_type=kind, byte_fallback=True,
            character_coverage=0.99, normalization_rule_name="identity", split_digits=True, minloglevel=2,
            remove_extra_whitespaces=kind == "unigram", user_defined_symbols=["<|im_start|>"])
        os.remove(prefix + ".vocab")
        model = sentencepiece.SentencePieceProcessor(model_file=prefix + ".model")
        golden["ids"][kind] = [model.encode_as_ids(text) for text in TEXTS]
    with open(os.path.join(FOLDER, "sentencepiece.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file, ensure_ascii=True, indent=0)
        file.write("\n")


main()
