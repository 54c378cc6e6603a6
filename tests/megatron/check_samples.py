"""Compares samples that Megalith reads with those of megatron-core.

    check_samples.py gpt PREFIX SAMPLES FLAGS...   samples of a GPTDataset over the indexed dataset PREFIX
    check_samples.py sft PREFIX SAMPLES FLAGS...   packs of Megatron-LM's SFTDataset

samples_test.cpp writes SAMPLES, a line of JSON for each sample of each combination of masks, and the documents of
`prepare` in PREFIX. $MEGATRON_LM is a folder with Megatron-LM's sources. Without it, megatron-core's wheel is compared,
which has neither inter-document masking (as of 0.16) nor the SFTDataset. Prints a line for each combination of masks.
The exit code is 1 if a sample differs.
"""
import argparse
import importlib.util
import itertools
import json
import os
import pathlib
import sys
import tempfile
import warnings

import numpy
import torch

warnings.simplefilter("ignore")
MEGATRON_LM = os.environ.get("MEGATRON_LM")
if MEGATRON_LM:  # its compiled helper is the wheel's
    wheel = importlib.util.find_spec("megatron.core.datasets").submodule_search_locations
    for name in [name for name in sys.modules if name.split(".")[0] == "megatron"]:
        del sys.modules[name]
    sys.path.insert(0, MEGATRON_LM)
    import megatron.core.datasets

    megatron.core.datasets.__path__ += wheel

import megatron.core
from megatron.core.datasets.blended_megatron_dataset_builder import BlendedMegatronDatasetBuilder
from megatron.core.datasets.gpt_dataset import GPTDataset, GPTDatasetConfig

MASKS = "reset_position_ids", "reset_attention_mask", "eod_mask_loss", "inter_document_masking"
NOT_TRAINED = -100


class Tokenizer:
    """A conversation of a pack is a list of one message, whose content is the ids and marks of its tokens."""

    def __init__(self, eod):
        self.eod = self.eos = eod
        self.pad = 1 << 20  # no token of the data
        self.vocab_size = None
        self.unique_identifiers = {}

    def tokenize_conversation(self, conversation, return_target, add_generation_prompt):
        ids, marks = (torch.tensor(values) for values in conversation[0]["content"])
        return ids, ids.masked_fill(marks == 0, NOT_TRAINED)


def config_of(arguments, masks, cache):
    masks = {name: value for name, value in masks.items() if name in GPTDatasetConfig.__dataclass_fields__}
    return GPTDatasetConfig(random_seed=arguments.seed, sequence_length=arguments.seq_length,
                            blend=([arguments.prefix], None), split=arguments.split, path_to_cache=cache,
                            tokenizer=Tokenizer(arguments.eod), create_attention_mask=True, **masks)


def begins_of(sample):
    return list(itertools.accumulate((rows for rows, _ in sample["documents"]), initial=0))


def rows_of(sample, masks):
    """Megatron's form of a sample of ours, with each row's position and visible rows."""
    tokens, length = torch.tensor(sample["tokens"]), len(sample["tokens"]) - 1
    begins = begins_of(sample) if sample["documents"] else [0, length]
    lengths = torch.tensor(begins).diff()
    document = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    rows = {"tokens": tokens[:-1], "labels": tokens[1:],
            "loss_mask": torch.tensor(sample["trained"] or [1] * length, dtype=torch.float)}
    row = torch.arange(length)
    restarts = masks["reset_position_ids"] or masks["inter_document_masking"]
    rows["position_ids"] = row - torch.tensor(begins)[document] if restarts else row
    if masks["inter_document_masking"]:
        rows["cu_seqlens"] = torch.tensor(begins)
    else:
        visible = torch.ones(length, length, dtype=torch.bool).tril()
        if masks["reset_attention_mask"]:
            visible &= document[:, None] == document[None]
        rows["attention_mask"] = ~visible[None]
    return rows


def differences(ours, theirs):
    if "cu_seqlens" in theirs:  # padded with the length of the sample
        theirs["cu_seqlens"] = theirs["cu_seqlens"][:1 + int((theirs["cu_seqlens"] < len(theirs["tokens"])).sum())]
    return [key for key in ours if not torch.equal(ours[key], theirs[key].to(ours[key].dtype))]


def check_gpt(arguments, samples, cache):
    failed = False
    for combination, group in itertools.groupby(samples, lambda sample: [sample[name] for name in MASKS]):
        masks, group = dict(zip(MASKS, combination)), list(group)
        title = " ".join(name for name in MASKS if masks[name]) or "no masks"
        if masks["inter_document_masking"] and "inter_document_masking" not in GPTDatasetConfig.__dataclass_fields__:
            print(f"{title}: not in megatron-core {megatron.core.__version__}")
            continue
        config = config_of(arguments, masks, cache)
        sizes = [arguments.train_samples, arguments.valid_samples, 0]
        train, valid, _ = BlendedMegatronDatasetBuilder(GPTDataset, sizes, lambda: True, config).build()
        theirs = {"train": train, "valid": valid}
        found = [(sample["split"], sample["index"], different) for sample in group
                 if (different := differences(rows_of(sample, masks), dict(theirs[sample["split"]][sample["index"]])))]
        for split, data in theirs.items():
            if len(data) != (count := sum(sample["split"] == split for sample in group)):
                found.append((split, f"{count} samples, expected {len(data)}"))
        failed = failed or bool(found)
        documents = sum(len(sample["documents"]) for sample in group)
        print(f"{title}: {len(group)} samples, {documents} documents: {found[:3] or 'equal'}")
    return failed


def sft_dataset_class():
    path = pathlib.Path(MEGATRON_LM) / "megatron/training/datasets/sft_dataset.py"
    spec = importlib.util.spec_from_file_location("sft_dataset", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.SFTDataset


def conversations_of(sample):
    """Those of a pack as messages of Megatron's SFTDataset; each begins with a message of the system."""
    return [{"role": "system", "content": (sample["tokens"][begin:begin + count],
                                           [0] + sample["trained"][begin:begin + count - 1])}
            for begin, (_, count) in zip(begins_of(sample), sample["documents"]) if count > 0]


def check_sft(arguments, samples, cache):
    if not MEGATRON_LM:
        print("packs: not compared, as MEGATRON_LM is not set")
        return False
    sft_dataset = sft_dataset_class()
    found = []
    for sample in samples:
        config = config_of(arguments, {name: False for name in MASKS}, cache)
        config.create_attention_mask, config.context_parallel_size = False, 2
        theirs = sft_dataset.__new__(sft_dataset)
        theirs.config, theirs.dataset, theirs.indices = config, [conversations_of(sample)], numpy.zeros(1, numpy.int64)
        theirs = dict(theirs[0])
        # Rows of padding hold no token; those at the end belong to the last document.
        ours, begins, length = rows_of(sample, dict.fromkeys(MASKS, True)), begins_of(sample), arguments.seq_length
        is_token = torch.cat([torch.arange(rows) < count for rows, count in sample["documents"]])
        ours["tokens"] = torch.where(is_token, ours["tokens"], config.tokenizer.pad)
        if sample["documents"][-1][1] == 0:
            ours["cu_seqlens"] = torch.tensor(begins[:-2] + [length])
            ours["position_ids"][begins[-3]:] = torch.arange(length - begins[-3])
        is_trained = ours["loss_mask"] > 0
        ours["labels"], theirs["labels"] = (torch.where(is_trained, rows["labels"], 0) for rows in (ours, theirs))
        found += [(sample["index"], different)] if (different := differences(ours, theirs)) else []
    print(f"packs: {len(samples)} packs, {sum(len(s['documents']) for s in samples)} documents: {found[:3] or 'equal'}")
    return bool(found)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("kind", choices=("gpt", "sft"))
    parser.add_argument("prefix")
    parser.add_argument("samples", type=pathlib.Path)
    parser.add_argument("--split")
    for flag in ("--seed", "--seq-length", "--train-samples", "--valid-samples", "--eod"):
        parser.add_argument(flag, type=int)
    arguments = parser.parse_args()
    samples = list(map(json.loads, arguments.samples.read_text().splitlines()))
    assert samples
    with tempfile.TemporaryDirectory() as cache:
        failed = {"gpt": check_gpt, "sft": check_sft}[arguments.kind](arguments, samples, cache)
    sys.exit(failed)


if __name__ == "__main__":
    main()
