"""Texts to compare tokenizers on: lists of documents, the same for the same seed and machine."""
import glob
import gettext
import gzip
import os
import random
import unicodedata

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def cut(text, length):
    return [text[i : i + length] for i in range(0, len(text), length)]


def novels():
    """Jane Austen's, of configs/text."""
    documents = []
    for path in sorted(glob.glob(os.path.join(ROOT, "configs/text/*.txt"))):
        with open(path, encoding="utf-8", newline="") as file:
            documents += cut(file.read(), 5000)
    return documents


def translations(limit):
    """Messages of the installed programs in all languages there are, up to `limit` characters."""
    by_language = {}
    for path in sorted(glob.glob("/usr/share/locale/*/LC_MESSAGES/*.mo")):
        by_language.setdefault(path.split("/")[4], []).append(path)
    documents = []
    size = 0
    share = limit // max(1, len(by_language))
    for paths in by_language.values():
        text = ""
        for path in paths:
            if len(text) >= share:
                break
            try:
                with open(path, "rb") as file:
                    catalog = gettext.GNUTranslations(file)._catalog
            except (OSError, ValueError, IndexError, UnicodeError):  # not every catalog is well-formed
                continue
            text += "\n".join(value for key, value in catalog.items() if key and isinstance(value, str))
        documents += cut(text[:share], 5000)
    return documents


def manuals(limit):
    """Manual pages and documentation, English and translated, up to `limit` characters."""
    paths = sorted(glob.glob("/usr/share/man/*/man*/*.gz") + glob.glob("/usr/share/doc/*/README*")
                   + glob.glob("/usr/share/vim/vim*/doc/*.txt"))
    random.Random(1).shuffle(paths)
    documents = []
    for path in paths:
        try:
            with (gzip.open if path.endswith(".gz") else open)(path, "rt", encoding="utf-8") as file:
                text = file.read()
        except (OSError, UnicodeError, EOFError):
            continue
        if text.strip():
            documents += cut(text[:50000], 5000)
            limit -= min(len(text), 50000)
        if limit <= 0:
            break
    return documents


def sources():
    """The code of this project: C++, CMake, shell, Python."""
    documents = []
    for folder in ["core", "parallel", "apps", "tests/unit", "tests/tokenizer", "tests/style"]:
        for where, _, names in sorted(os.walk(os.path.join(ROOT, folder))):
            for name in sorted(names):
                if name.endswith((".cpp", ".h", ".cu", ".txt", ".sh", ".py")) and "_table" not in name:
                    with open(os.path.join(where, name), encoding="utf-8", newline="") as file:
                        documents += cut(file.read(), 5000)
    return documents


def random_unicode(characters, seed=7):
    """Words, numbers, contractions, marks and white space out of all of Unicode, as a test of the patterns."""
    rng = random.Random(seed)
    scripts = [range(a, b) for a, b in [
        (0x20, 0x7F), (0x20, 0x7F), (0xA0, 0x250), (0x250, 0x370), (0x370, 0x530), (0x530, 0x700), (0x700, 0x900),
        (0x900, 0xE00), (0xE00, 0x1100), (0x1100, 0x1200), (0x1200, 0x1800), (0x1800, 0x1E00), (0x1E00, 0x2000),
        (0x2000, 0x2C00), (0x2C00, 0x3100), (0x3040, 0x3100), (0x3400, 0xA000), (0xA000, 0xAC00), (0xAC00, 0xD7A4),
        (0xF900, 0x10000), (0x10000, 0x11000), (0x11000, 0x13000), (0x16000, 0x19000), (0x1D000, 0x1FB00),
        (0x1F300, 0x1FA00), (0x20000, 0x20100), (0xE0000, 0xE0200), (0x10FF00, 0x110000)]]
    spaces = list("\t\n\x0b\x0c\r \x85\xa0\u1680\u2003\u2028\u2029\u202f\u200b\u3000")
    contractions = ["'s", "'S", "'t", "'RE", "'re", "'Ve", "'m", "'LL", "'ll", "'d", "'D", "'\u017f", "'x", "''s",
                    "\u2019s"]
    marks = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c))[0] == "M"]
    digits = [chr(c) for c in range(0x110000) if unicodedata.category(chr(c))[0] == "N"]

    def word():
        script = rng.choice(scripts)
        return "".join(chr(rng.choice(script)) for _ in range(rng.randint(1, 12)))

    def piece():
        kind = rng.randrange(12)
        if kind < 4:
            return word()
        if kind == 4:
            return "".join(rng.choice("abcXYZ\u00e9\u4e2d\u0301\u02b0A\u01c5") for _ in range(rng.randint(1, 6)))
        if kind == 5:
            return rng.choice(["word", "I", "we", "\u00c9T\u00c9", "x"]) + rng.choice(contractions)
        if kind == 6:
            return "".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9)))
        if kind == 7:
            return "".join(rng.choice(digits) for _ in range(rng.randint(1, 5)))
        if kind == 8:
            return rng.choice("ae\u0438\u05d0 \n!") + "".join(rng.choice(marks) for _ in range(rng.randint(1, 5)))
        if kind == 9:
            return "".join(rng.choice("!?./-_'\"()[]{}<|>#\u20ac\u3002\r\n/") for _ in range(rng.randint(1, 6)))
        return rng.choice(["", " "]) + "".join(rng.choice(spaces) for _ in range(rng.randint(1, 4)))

    documents = []
    while characters > 0:
        text = "".join(piece() + rng.choice(["", "", " "]) for _ in range(rng.randint(1, 400)))
        text = "".join(c for c in text if not 0xD800 <= ord(c) < 0xE000)
        if text:
            documents.append(text)
        characters -= len(text)
    return documents


def every_character():
    """Code points between letters, digits and spaces: all below U+20000, of large scripts and private use each 16th."""
    large = [range(0x3400, 0xA000), range(0xAC00, 0xD7A4), range(0xE000, 0xF900), range(0x17000, 0x18D00),
             range(0x20000, 0x110000)]
    codes = [c for c in range(0x110000)
             if not 0xD800 <= c < 0xE000 and (c % 16 == 0 or not any(c in scripts for scripts in large))]
    codes = [c for c in codes if c < 0x32400 or c % 256 == 0]
    pieces = [f"a{chr(c)}b {chr(c)}1{chr(c)} '{chr(c)} " for c in codes]
    return ["".join(pieces[i : i + 200]) for i in range(0, len(pieces), 200)]


def special():
    """What looks like special tokens, and words that are long."""
    eod = "<|endoftext|>"
    return [eod, f"a{eod} b", f"{eod}{eod}\n", "<|endoftext", f" <|end{eod}|>",
            "a" * 5000, "ab" * 3000, " " * 3000, "\n" * 1000, "\u4e2d\u6587" * 2000, "1" * 3001, "!?" * 2000,
            " \n" * 999, "e" + "\u0301" * 500, "A" * 300 + "\u4e2d" + "B" * 300 + " ",
            "  \n  ", "x  ", "x\n", "\t\tx", " "]
