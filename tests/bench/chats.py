#!/usr/bin/env python3
"""Conversations for measuring prepare --sft: JSON lines, equal for equal arguments and sources.

    python3 tests/bench/chats.py MEGABYTES [SEED] > chats.jsonl

Four of five conversations are prose in English of the novels of configs/text, with numbers, names and words that no
vocabulary has (2 % of the words). The others are code of this project in fences, JSON of tools, and text of other
scripts. A conversation has one to six answers; lengths are log-normal, so that the mean is about 700 tokens.
"""
import glob
import json
import os
import random
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
SYLLABLES = "ba ce di fo gu ha ji ka le mi no pu ra se ti vo wa xe yo zu an er in ol us tra sta pre con ble".split()
SCRIPTS = ["Die Größe des Straßennetzes überrascht viele Gäste, die zum ersten Mal kommen.",
           "El niño preguntó por qué la montaña cambió de color después del otoño.",
           "Les élèves étaient déjà arrivés lorsque la leçon a commencé à huit heures.",
           "Сегодня мы рассмотрим несколько способов решения этой задачи.",
           "今天我们来讨论如何解决这个问题，并比较几种不同的方法。",
           "このモデルは長い文章を要約することができます。",
           "어제 회의에서 논의한 내용을 정리해 드리겠습니다.",
           "يمكنك استخدام هذه الطريقة لحساب المتوسط بسرعة."]


def read(paths):
    texts = []
    for path in paths:
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            texts.append(file.read())
    return texts


class Chats:
    def __init__(self, seed):
        self.random = random.Random(seed)
        novels = "\n".join(read(sorted(glob.glob("configs/text/*.txt", root_dir=ROOT))))
        self.sentences = [" ".join(s.split()) + "." for s in novels.replace("\n\n", ". ").split(". ") if s.strip()]
        code = "\n".join(read(sorted(glob.glob("core/*/*.cpp", root_dir=ROOT)))).split("\n")
        self.code = ["\n".join(code[at:at + 12]) for at in range(0, len(code), 12)]

    def word(self):
        kind = self.random.random()
        if kind < 0.3:
            return str(self.random.randrange(100000))
        name = "".join(self.random.choices(SYLLABLES, k=self.random.randrange(2, 5)))
        return name.capitalize() if kind < 0.6 else name

    def prose(self, size):
        parts = []
        while size > 0:
            words = self.random.choice(self.sentences).split(" ")
            for at in range(len(words)):
                if self.random.random() < 0.02:
                    words[at] = self.word()
            parts.append(" ".join(words))
            size -= len(parts[-1])
            parts.append(self.random.choices([" ", "\n\n", "\n- "], [8, 2, 1])[0])
        return "".join(parts).strip()

    def other(self, size):
        kind, parts = self.random.randrange(3), []
        while size > 0:
            if kind == 0:
                parts.append("```cpp\n" + self.random.choice(self.code) + "\n```\n")
            elif kind == 1:
                parts.append(json.dumps({self.word(): self.random.randrange(10**6), "items": [self.word()] * 3}, indent=2))
            else:
                parts.append(self.random.choice(SCRIPTS) + " ")
            size -= len(parts[-1])
        return "".join(parts)

    def conversation(self):
        text = self.prose if self.random.random() < 0.8 else self.other
        messages = []
        if self.random.random() < 0.3:
            messages.append({"role": "system", "content": "You are a helpful assistant. " + self.prose(80)})
        for _ in range(self.random.choices([1, 2, 3, 6], [5, 3, 2, 1])[0]):
            messages.append({"role": "user", "content": self.prose(self.random.lognormvariate(5, 0.8))})
            messages.append({"role": "assistant", "content": text(self.random.lognormvariate(6.6, 0.8))})
        return {"messages": messages}


def main():
    size = float(sys.argv[1]) * 1e6
    chats = Chats(int(sys.argv[2]) if len(sys.argv) > 2 else 1)
    while size > 0:
        line = json.dumps(chats.conversation(), ensure_ascii=chats.random.random() < 0.1) + "\n"
        size -= len(line.encode())
        sys.stdout.write(line)


if __name__ == "__main__":
    main()
