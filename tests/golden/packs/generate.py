"""Writes packs of 8 and of 64 rows, which random draws of runs read (tests/unit/train/draws_table.cpp).

    generate.py PREPARE     the program
"""
import json
import pathlib
import random
import subprocess
import sys
import tempfile

PACKS = {"short": dict(rows=8, multiple=1, count=60), "long": dict(rows=64, multiple=4, count=120)}

folder = pathlib.Path(__file__).parent
for name, pack in PACKS.items():
    draw = random.Random(name)
    text = lambda longest: "".join(draw.choices("abcdefgh", range(8, 0, -1), k=draw.randint(1, longest)))
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
        for _ in range(pack["count"]):
            longest = draw.choice((pack["rows"] // 8, pack["rows"] // 4, pack["rows"] // 2))
            file.write(json.dumps({"prompt": text(longest), "completion": text(longest)}) + "\n")
        file.flush()
        subprocess.run([sys.argv[1], "--sft", "--input", file.name, "--output-prefix", folder / name, "--seq-length",
                        str(pack["rows"]), "--pad-to-multiple", str(pack["multiple"]), "--chat-template", "identity"],
                       check=True)
