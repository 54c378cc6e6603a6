#!/usr/bin/env python3
"""Writes unicode_tables.h next to itself.

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


def char_class(code):
    category = unicodedata.category(chr(code))
    if code in (0xA, 0xD):
        return 2
    if code in WHITE_SPACE:
        return 1
    return CLASSES.get(category, {"N": 3, "M": 7}.get(category[0], 0))


def digits(number):
    text = chr(ord("]") + number % 32)
    while number >= 32:
        number //= 32
        text = chr(ord("#") + number % 32) + text
    return text


def table(comment, name, values):
    text = f"// {comment}\ninline constexpr std::string_view {name} =\n"
    packed = "".join(digits(value) for value in values)
    return text + "\n".join(f'    "{packed[i:i + 114]}"' for i in range(0, len(packed), 114)) + ";\n\n"


def class_runs():
    runs = []  # [number, class]
    for code in range(0x110000):
        now = 0 if 0xD800 <= code < 0xE000 else char_class(code)
        if runs and runs[-1][1] == now:
            runs[-1][0] += 1
        else:
            runs.append([1, now])
    packed = []
    at = 0
    while at < len(runs):
        turns = 0
        while at + turns < len(runs) and runs[at + turns] == [1, 5 if turns % 2 else 4]:
            turns += 1
        if turns > 2:
            packed.append(turns << 4 | 8)
            at += turns
        else:
            packed.append(runs[at][0] << 4 | runs[at][1])
            at += 1
    return packed


def present_in_9():
    script = r'for (0 .. 0xd7ff, 0xe000 .. 0x10ffff) { print "$_\n" if chr($_) =~ /\p{Present_In: 9.0}/ }'
    ran = subprocess.run(["perl", "-e", script], check=True, capture_output=True, text=True)
    return sorted(map(int, ran.stdout.split()))


def combining_runs(known):
    runs = []
    end = 0
    for code in known:
        value = unicodedata.combining(chr(code))
        # U+1715 is there since 3.2, but combines only since Unicode 14.
        if not value or code == 0x1715:
            continue
        if runs and code == end and runs[-1][2] == value:
            runs[-1][1] += 1
        else:
            runs.append([code - end, 1, value])
        end = code + 1
    return [gap << 14 | number << 8 | value for gap, number, value in runs]


def decompositions(known):
    runs, packed = [], []
    parts_of = {}
    for code in known:
        mapping = unicodedata.decomposition(chr(code))
        if mapping and not mapping.startswith("<") and not 0xAC00 <= code < 0xD7A4:
            parts_of[code] = [int(part, 16) for part in mapping.split()]
    seconds = sorted({parts[1] if len(parts) == 2 else 0 for parts in parts_of.values()})
    end = 0
    for code, parts in parts_of.items():
        if runs and code == end:
            runs[-1] += 1
        else:
            runs.append(code - end << 12 | 1)
        end = code + 1
        excluded = unicodedata.normalize("NFC", chr(code)) != chr(code)
        second = seconds.index(parts[1] if len(parts) == 2 else 0)
        packed.append(parts[0] << 8 | excluded << 7 | second)
    return runs, packed, seconds


def main():
    known = present_in_9()
    runs, packed, seconds = decompositions(known)
    text = """// Made by unicode_tables.py; do not edit.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

namespace megalith {

// The tables are numbers in base 32, their digits from # to B, but the last of a number from ] to |.
inline std::vector<std::uint32_t> unpacked(std::string_view table) {
  std::vector<std::uint32_t> numbers;
  std::uint32_t number = 0;
  for (const char digit : table) {
    const bool is_last = digit >= ']';
    number = number << 5 | static_cast<std::uint32_t>(digit - (is_last ? ']' : '#'));
    if (!is_last) continue;
    numbers.push_back(number);
    number = 0;
  }
  return numbers;
}

"""
    text += table("Classes of the code points from 0 on, of Unicode 16.0, as in tokenizers 0.23 and tiktoken 0.14: number << 4"
                  "\n// | CharClass, or | 8 for capitals and small letters by turns.", "kCharClassRuns", class_runs())
    text += table("For NFC, of Unicode 9.0, as in tokenizers 0.23. Runs of one combining class: code points passed over since the"
                  "\n// run before << 14 | number << 8 | class.", "kCombiningRuns", combining_runs(known))
    text += table("Runs of code points that decompose, but for Hangul syllables: code points passed over << 12 | number.",
                  "kDecomposedRuns", runs)
    text += table("What each of them gives: first << 8 | 128 if that is never composed again | place of the second.",
                  "kDecompositions", packed)
    text += table("0: there is no second.", "kSecondCodePoints", seconds)
    path = os.path.join(os.path.dirname(os.path.abspath(__file__)), "unicode_tables.h")
    with open(path, "w", encoding="ascii") as file:
        file.write(text + "}  // namespace megalith\n")


main()
