"""What tests/coverage.sh found: lines of core, and branches of the parsers and of the checkpoint code, file by file.

  coverage_report.py COVERAGE.json     as llvm-cov export writes it

Fails where core has less than 90 % of its lines, or a file below less than 95 % of its branches. A branch that no test
can reach stands with its reason in coverage_reviewed.txt, a line each:

  FILE | TEXT OF THE LINE | REASON
"""

import json
import os
import sys
from fnmatch import fnmatch

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
CORE_LINES = 90.0
BRANCHES = 95.0
PARSERS = {
    "configuration": ["apps/flags/flags.cpp", "core/flags/binding.cpp", "core/flags/values.cpp", "apps/flags/flags_check.cpp", "core/flags/config_file.cpp"],
    "command line": ["core/flags/command_line.cpp"],
    ".idx and .bin": ["core/data/indexed_dataset.cpp"],
    "text": ["core/data/document_reader.cpp", "core/data/split.cpp"],
    "safetensors": ["core/checkpoint/safetensors*.cpp"],
    "manifest and state": ["parallel/checkpoint/manifest.cpp", "core/checkpoint/train_state.cpp",
                           "core/checkpoint/strict_json.cpp"],
    "tokenizer files": ["core/tokenizer/bpe_*file*.cpp", "core/tokenizer/bpe_spelling.cpp", "core/base/text/utf8.cpp"],
    "Hugging Face": ["*/hf_*.cpp"],
    "checkpoint": ["core/checkpoint/*.cpp", "parallel/checkpoint/*.cpp"],
}


def kind_of(path):
    for kind, patterns in PARSERS.items():
        if any(fnmatch(path, pattern) for pattern in patterns):
            return kind
    return None


def read_reviewed():
    reviewed = {}
    with open(os.path.join(ROOT, "tests/coverage_reviewed.txt"), encoding="utf-8") as lines:
        for line in lines:
            if line.strip() and not line.startswith("#"):
                path, text, reason = (part.strip() for part in line.split(" | "))
                assert reason, line
                reviewed[path, text] = False  # not needed so far
    return reviewed


def merged_branches(file):
    """Per place in the source whether each way was taken, over all instances of a template."""
    ways = {}
    for branch in file["branches"]:
        place = tuple(branch[:4])
        taken = ways.get(place, (False, False))
        ways[place] = (taken[0] or branch[4] > 0, taken[1] or branch[5] > 0)
    return ways


def main():
    with open(sys.argv[1], encoding="utf-8") as text:
        files = json.load(text)["data"][0]["files"]
    reviewed = read_reviewed()
    failures = []
    core = [0, 0]
    rows = []
    sources = [os.path.relpath(file["filename"], ROOT) for file in files]
    for pattern in sum(PARSERS.values(), []):
        if not any(fnmatch(path, pattern) for path in sources):
            failures.append(f"{pattern}: no source of that name")
    for file in files:
        path = os.path.relpath(file["filename"], ROOT)
        lines = file["summary"]["lines"]
        if path.startswith(("core/", "moe/ops/")):
            core[0] += lines["covered"]
            core[1] += lines["count"]
        kind = kind_of(path)
        if kind is None:
            continue
        with open(os.path.join(ROOT, path), encoding="utf-8") as source:
            texts = [""] + [line.strip() for line in source]
        total = taken = excused = 0
        missed = []
        for place, ways in sorted(merged_branches(file).items()):
            total += 2
            taken += sum(ways)
            if all(ways):
                continue
            key = (path, texts[place[0]])
            if key in reviewed:
                reviewed[key] = True
                excused += 2 - sum(ways)
            else:
                never = "never true" if not ways[0] else "never false"
                never = "never evaluated" if not any(ways) else never
                missed.append(f"      {path}:{place[0]}:{place[1]}: {never}: {texts[place[0]][:90]}")
        share = 100.0 * taken / (total - excused) if total > excused else 100.0
        rows.append((kind, path, share, total, taken, excused, lines["percent"], missed))
        if share < BRANCHES:
            failures.append(f"{path}: {share:.1f} % of branches, expected {BRANCHES:.0f} %")

    for kind in PARSERS:
        mine = sorted(row for row in rows if row[0] == kind)
        if mine:
            print(f"{kind}")
        for _, path, share, total, taken, excused, lines, missed in mine:
            print(f"  {share:5.1f} % of {total} branches ({taken} taken, {excused} reviewed), {lines:5.1f} % of lines: "
                  f"{path}")
            print("".join(line + "\n" for line in missed), end="")
    share = 100.0 * core[0] / core[1] if core[1] else 0.0
    print(f"core: {share:.1f} % of {core[1]} lines")
    if share < CORE_LINES:
        failures.append(f"core: {share:.1f} % of lines, expected {CORE_LINES:.0f} %")
    failures += [f"coverage_reviewed.txt: {path} | {text}: covered or gone, remove it"
                 for (path, text), needed in reviewed.items() if not needed]
    for failure in failures:
        print(f"coverage: {failure}", file=sys.stderr)
    return 1 if failures else 0


sys.exit(main())
