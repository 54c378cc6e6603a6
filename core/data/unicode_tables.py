#!/usr/bin/env python3
"""Writes unicode_class_table.cpp, unicode_decomposition_table.cpp and unicode_combining_table.cpp next to itself.

Needs a unicodedata of Unicode 16.0 (pip install unicodedata2==16.0.0, or Python 3.14) and perl, which knows the age of
characters: NFC is that of Unicode 9.0, the version in the Hugging Face library, so what is newer does not compose.
"""
import os
import subprocess

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

assert unicodedata.unidata_version == "16.0.0", unicodedata.unidata_version

CLASSES = {"Lu": 4, "Lt": 4, "Ll": 5, "Lm": 6, "Lo": 6}
WHITE_SPACE = [0x9, 0xB, 0xC, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000]
CODE_POINTS = [c for c in range(0x110000) if not 0xD800 <= c < 0xE000]
HEADER = '#include "core/data/unicode_tables.h"\n\nnamespace megalith {\n\nnamespace {\n\n'


def char_class(code):
    category = unicodedata.category(chr(code))
    if code in (0xA, 0xD):
        return 2
    if code in WHITE_SPACE:
        return 1
    return CLASSES.get(category, {"N": 3, "M": 7}.get(category[0], 0))


def lines(items):
    text = ""
    line = "   "
    for item in items:
        if len(line) + len(item) + 2 > 120:
            text += line + "\n"
            line = "   "
        line += f" {item},"
    return text + line + "\n"


def write(name, text):
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), name)
    with open(path, "w", encoding="ascii") as file:
        file.write("// Made by unicode_tables.py.\n" + HEADER + text + "\n}  // namespace megalith\n")


def write_classes():
    runs = []
    last = None
    for code in range(0x110000):
        now = 0 if 0xD800 <= code < 0xE000 else char_class(code)
        if now != last:
            runs.append(f"{code << 3 | now:#x}")
            last = now
    write("unicode_class_table.cpp",
          "// clang-format off\nconstexpr std::uint32_t kRuns[] = {\n" + lines(runs) + "};\n// clang-format on\n\n"
          "}  // namespace\n\nstd::span<const std::uint32_t> char_class_runs() { return kRuns; }\n")


def present_in_9():
    script = r'for (0 .. 0xd7ff, 0xe000 .. 0x10ffff) { print "$_\n" if chr($_) =~ /\p{Present_In: 9.0}/ }'
    ran = subprocess.run(["perl", "-e", script], check=True, capture_output=True, text=True)
    return set(map(int, ran.stdout.split()))


def write_nfc():
    known = present_in_9()
    decompositions = []
    classes = {}
    for code in CODE_POINTS:
        char = chr(code)
        if code not in known:
            continue
        if unicodedata.combining(char):
            classes[code] = unicodedata.combining(char)
        mapping = unicodedata.decomposition(char)
        if not mapping or mapping.startswith("<") or 0xAC00 <= code < 0xD7A4:
            continue
        parts = [int(part, 16) for part in mapping.split()]
        excluded = unicodedata.normalize("NFC", char) != char
        second = parts[1] if len(parts) == 2 else 0
        decompositions.append(f"{{{code}, {parts[0]}, {second}, {int(excluded)}}}")
    # U+1715 is there since 3.2, but combines only since Unicode 14.
    classes.pop(0x1715, None)
    runs = []
    for code, value in sorted(classes.items()):
        if runs and runs[-1][1] == code - 1 and runs[-1][2] == value:
            runs[-1][1] = code
        else:
            runs.append([code, code, value])
    write("unicode_decomposition_table.cpp",
          "// clang-format off\nconstexpr Decomposition kDecompositions[] = {\n" + lines(decompositions)
          + "};\n// clang-format on\n\n}  // namespace\n\n"
          "std::span<const Decomposition> canonical_decompositions() { return kDecompositions; }\n")
    write("unicode_combining_table.cpp",
          "// clang-format off\nconstexpr CombiningRun kRuns[] = {\n"
          + lines(f"{{{first}, {last}, {value}}}" for first, last, value in runs)
          + "};\n// clang-format on\n\n}  // namespace\n\n"
          "std::span<const CombiningRun> combining_runs() { return kRuns; }\n")


write_classes()
write_nfc()
