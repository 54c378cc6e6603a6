#!/usr/bin/env python3
"""Writes tests/golden/chat/golden.json: what Hugging Face transformers make of the templates and conversations here.

Needs Python with transformers 5 and jinja2 3.1.  tests/chat/make_golden.py
"""
import datetime
import json
import os

import jinja2
from transformers import PreTrainedTokenizerFast
from transformers.utils import chat_template_utils as library

from conversations import CONVERSATIONS, TOKENIZED, TOOLS
from expressions import EXPRESSIONS, STATEMENTS, VARIABLES

HERE = os.path.dirname(os.path.abspath(__file__))
TOKENIZERS = os.path.join(HERE, "../golden/tokenizer")
GOLDEN = os.path.join(HERE, "../golden/chat")
SPECIAL = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
OPTIONS = [{}, {"enable_thinking": False, "reasoning_effort": "high"}]


class Date(datetime.datetime):
    @classmethod
    def now(cls, tz=None):
        return cls(2024, 7, 26)


def render(text, variables):
    """Returns the text and the byte ranges of {% generation %}, or None for an error."""
    blocks, generated = [], []
    try:
        template = library._compile_jinja_template(text)
        with template.environment.activate_tracker(blocks, generated):
            for block in template.generate(**variables):
                blocks.append(block)
    except (jinja2.exceptions.TemplateError, TypeError, ValueError, OverflowError, ArithmeticError, LookupError,
            AttributeError, SyntaxError):
        return None
    text = "".join(blocks)
    return [text, [[len(text[:at].encode()) for at in pair] for pair in generated]]


def template_cases():
    cases = []
    for file in sorted(os.listdir(os.path.join(HERE, "templates"))):
        with open(os.path.join(HERE, "templates", file), encoding="utf-8", newline="") as source:
            text = source.read()
        for name, messages in CONVERSATIONS.items():
            for has_tools in (False, True) if "tools" in text else (False,):
                for prompts in (False, True) if "add_generation_prompt" in text else (False,):
                    for number, options in enumerate(OPTIONS):
                        if number > 0 and not any(option in text for option in options):
                            continue
                        variables = {"messages": messages, "tools": TOOLS if has_tools else None, "documents": None,
                                     "add_generation_prompt": prompts, **SPECIAL, **options}
                        cases.append([file, name, has_tools, prompts, number, render(text, variables)])
    return cases


def token_cases():
    """Ids and masks of templates with {% generation %}, with the vocabularies of tests/golden/tokenizer."""
    cases = []
    for vocabulary in ("gpt2", "llama3", "qwen2"):
        for file in ("smollm.jinja", "nemotron.jinja"):
            with open(os.path.join(HERE, "templates", file), encoding="utf-8", newline="") as source:
                text = source.read()
            tokenizer = PreTrainedTokenizerFast(tokenizer_file=os.path.join(TOKENIZERS, vocabulary + ".json"),
                                                chat_template=text)
            for name, messages in TOKENIZED.items():
                encoded = tokenizer.apply_chat_template(messages, return_dict=True, return_assistant_tokens_mask=True)
                cases.append([vocabulary, file, name, encoded["input_ids"], encoded["assistant_masks"]])
    return cases


def main():
    library.datetime = Date
    texts = ["{{ " + text + " }}" for text in EXPRESSIONS] + STATEMENTS
    golden = {"special": SPECIAL, "options": OPTIONS, "tools": TOOLS, "conversations": CONVERSATIONS,
              "variables": VARIABLES, "small": [[text, render(text, VARIABLES)] for text in texts],
              "templates": template_cases(),
              "tokenized": TOKENIZED, "tokens": token_cases()}
    os.makedirs(GOLDEN, exist_ok=True)
    with open(os.path.join(GOLDEN, "golden.json"), "w", encoding="utf-8") as file:
        # One case a line.
        file.write("{\n" + ",\n".join(
            json.dumps(key) + ": " + ("[\n" + ",\n".join(json.dumps(case) for case in value) + "\n]"
                                      if key in ("small", "templates", "tokens") else json.dumps(value))
            for key, value in golden.items()) + "\n}\n")


main()
