"""Questions with their evidence among distractors, built from the evaluation data in place. Pure.

Law: what settings are chosen on and what they are measured on are parts of their own: a page, an
intent or a row is in one of the two. Each case holds documents of which some have the evidence, and
the strings that must still be there for the question to be answered.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zlib import crc32

PARTS = ("tuned", "held-out")
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_TELLING = re.compile(r"\d[\d.,/%]*|\b[A-Z][\w'-]+")
_NUMBER = re.compile(r"\$?\d[\d,.]*\d|\$?\d%?")
_SHORTEST = 25
_TEXTS_AN_INTENT = 8
_ROWS = 150


@dataclass(frozen=True, slots=True)
class Case:
    """A question, its documents in the order of the prompt, and what of them must stay."""

    question: str
    documents: tuple[str, ...]
    evidence: tuple[str, ...]
    """The passages that answer, to the letter."""
    answers: tuple[str, ...]
    """The strings in them that an answer would have."""


Page = tuple[str, list[tuple[str, str]]]
"""A title, and questions with their answers."""


class Data:
    """One part of the evaluation data; raises FileNotFoundError where a file is absent."""

    def __init__(self, folder: Path, part: str) -> None:
        self._folder = folder
        self._part = PARTS.index(part)
        self._read: dict[str, Any] = {}

    def _once(self, name: str, build: Callable[[], Any]) -> Any:
        if name not in self._read:
            self._read[name] = build()
        return self._read[name]

    def rows(self, name: str) -> list[dict[str, Any]]:
        """Return the lines of a file."""
        with (self._folder / name).open() as lines:
            return [json.loads(line) for line in lines]

    def has(self, text: str) -> bool:
        """Tell whether what this names is in this part."""
        return crc32(text.encode()) % 2 != self._part

    def pages(self) -> list[Page]:
        """Return the conversations of Wikipedia pages of which enough is known."""

        def build() -> list[Page]:
            pages: dict[tuple[str, ...], list[tuple[str, str]]] = {}
            before: Mapping[str, Any] | None = None
            for row in self.rows("canard_multiturn.jsonl"):
                if before and before["history"] == row["history"][:-2]:
                    said = before["rewrite"], row["history"][-1].strip()
                    pages.setdefault(tuple(row["history"][:2]), []).append(said)
                before = row
            return [
                (page[0], said)
                for page, said in sorted(pages.items())
                if self.has(page[0]) and len(said) > 2 and any(map(_tells, said))
            ]

        return list(self._once("pages", build))

    def intents(self, name: str) -> dict[str, list[str]]:
        """Return some texts of each intent."""

        def build() -> dict[str, list[str]]:
            found: dict[str, list[str]] = {}
            for row in self.rows(name):
                if row["intent"] != "oos" and self.has(row["intent"]):
                    found.setdefault(row["intent"], []).append(row["text"].strip())
            return {
                intent: random.Random(intent).sample(texts, _TEXTS_AN_INTENT)
                for intent, texts in sorted(found.items())
            }

        return dict(self._once(name, build))

    def sums(self) -> dict[str, str]:
        """Return what is given in sums, and what is asked."""

        def build() -> dict[str, str]:
            given = {}
            for text in sorted({row["seed_question"] for row in self.rows("gsm_plus.jsonl")}):
                *told, asked = _SENTENCE.split(text)
                if told and asked.endswith("?") and self.has(text):
                    given[" ".join(told)] = asked
            return given

        return dict(self._once("sums", build))

    def paraphrases(self) -> list[tuple[str, str]]:
        """Return pairs of questions that people called the same."""

        def build() -> list[tuple[str, str]]:
            rows = self.rows("qqp_pairs.jsonl")[::23]
            pairs = [(r["a"], r["b"]) for r in rows if r["label"] == 1 and r["a"] != r["b"]]
            return [pair for pair in pairs if self.has(pair[0])][:_ROWS]

        return list(self._once("paraphrases", build))


def _tells(said: tuple[str, str]) -> bool:
    return len(said[1]) >= _SHORTEST and "n't know" not in said[1]


Build = Callable[[Data, random.Random], Iterator[Case]]


def pages(data: Data, chance: random.Random, *, many: int = 10, joined: int = 1) -> Iterator[Case]:
    """Documents are the answers of a page; with ``joined`` several pages are one document."""
    known = data.pages()
    for page in chance.sample(known, len(known)):
        question, answer = chance.choice([said for said in page[1] if _tells(said)])
        others = chance.sample([other for other in known if other != page], many * joined - 1)
        texts = _shuffled(chance, [" ".join(a for _, a in said) for _, said in (page, *others)])
        documents = tuple("\n\n".join(texts[at::many]) for at in range(many))
        yield _told(question, documents, answer)


def answers(data: Data, chance: random.Random, *, many: int = 20) -> Iterator[Case]:
    """Documents are single answers of as many pages."""
    known = data.pages()
    while True:
        few = [chance.choice(known) for _ in range(many)]
        said = [chance.choice(list(filter(_tells, page[1]))) for page in few]
        question, answer = said[0]
        others = [a for (title, _), (_, a) in zip(few, said, strict=True) if title != few[0][0]]
        yield _told(question, _shuffled(chance, [answer, *others]), answer)


def buried(data: Data, chance: random.Random) -> Iterator[Case]:
    """The evidence is a sentence in the middle or at the end of a page about something else."""
    known = data.pages()
    for title, said in chance.sample(known, len(known)):
        question, answer = chance.choice(list(filter(_tells, said)))
        others = chance.sample([page for page in known if page[0] != title], 10)
        texts = [[a for _, a in other] for _, other in others]
        at = len(texts[0]) if chance.random() < 0.5 else len(texts[0]) // 2
        texts[0].insert(at, answer)
        yield _told(question, _shuffled(chance, [" ".join(each) for each in texts]), answer)


def headed(data: Data, chance: random.Random) -> Iterator[Case]:
    """One document in Markdown: a heading and a list of sentences for each page."""
    for case in pages(data, chance):
        parts = [
            f"## Part {number}\n\n" + "\n".join(f"- {each}" for each in _SENTENCE.split(text))
            for number, text in enumerate(case.documents, 1)
        ]
        evidence = tuple(_SENTENCE.split(case.evidence[0]))
        yield Case(case.question, ("\n\n".join(parts),), evidence, case.answers)


def sums(data: Data, chance: random.Random, *, near: bool = False) -> Iterator[Case]:
    """What is given in sums; with ``near`` three others say the same without its numbers."""
    given = data.sums()
    for problem in chance.sample(sorted(given), len(given)):
        others = chance.sample([other for other in sorted(given) if other != problem], 9)
        if near:
            bare = _NUMBER.sub("some", problem)
            others[:3] = [bare, f"{bare} That is all.", f"It is told: {bare}"]
        numbers = tuple(re.findall(r"\d+", problem))
        yield Case(given[problem], _shuffled(chance, [*others, problem]), (problem,), numbers)


def intents(
    data: Data, chance: random.Random, name: str, *, many: int = 20, same: int = 1
) -> Iterator[Case]:
    """The evidence are texts with the intent of the question, no other document has it."""
    by_intent = data.intents(name)
    known = sorted(by_intent)
    for intent in chance.sample(known, len(known)):
        asked, *evidence = chance.sample(by_intent[intent], same + 1)
        left = [other for other in known if other != intent]
        picked = [chance.choice(left) for _ in range(many - same)]
        others = [chance.choice(by_intent[other]) for other in picked]
        documents = _shuffled(chance, [*others, *evidence])
        yield Case(asked, documents, tuple(evidence), tuple(evidence))


def paraphrases(data: Data, chance: random.Random, *, many: int = 20) -> Iterator[Case]:
    """The evidence is the other one of a pair that people called the same."""
    pairs = data.paraphrases()
    for one, other in chance.sample(pairs, len(pairs)):
        others = chance.sample([text for _, text in pairs if text != other], many - 1)
        yield Case(one, _shuffled(chance, [*others, other]), (other,), (other,))


def linked(data: Data, chance: random.Random) -> Iterator[Case]:
    """Two steps: one document says whose letters they are, another one what they say."""
    known = data.pages()
    for page in chance.sample(known, len(known)):
        chosen = [page, *chance.sample([other for other in known if other != page], 9)]
        documents = []
        for title, said in chosen:
            who = _KEEPERS[known.index((title, said)) % len(_KEEPERS)]
            answer = next(filter(_tells, said))[1]
            documents += [
                f"The archive on {title} was kept for many years by {who} near the harbour.",
                f"In the letters that {who} left behind one reads this: {answer}",
            ]
        question = f"What do the letters say that the keeper of the archive on {page[0]} left?"
        evidence = tuple(documents[:2])
        yield Case(question, _shuffled(chance, documents), evidence, evidence)


def counted(data: Data, chance: random.Random) -> Iterator[Case]:
    """How many messages are about something: all five that are must stay, if anything goes."""
    by_intent = data.intents("banking77.jsonl")
    for intent in chance.sample(sorted(by_intent), len(by_intent)):
        evidence = by_intent[intent][:5]
        others = [texts[0] for other, texts in by_intent.items() if other != intent][:15]
        topic = intent.replace("_", " ").strip("?").lower()
        question = chance.choice(_COUNTS).format(topic)
        documents = _shuffled(chance, [*others, *evidence])
        yield Case(question, documents, tuple(evidence), tuple(evidence))


_KEEPERS = [
    f"{first} {last}"
    for first in (
        "Anna",
        "Bruno",
        "Clara",
        "Dorian",
        "Edith",
        "Fabio",
        "Greta",
        "Ilse",
        "Liam",
        "Rosa",
    )
    for last in (
        "Abel",
        "Berger",
        "Costa",
        "Dunn",
        "Ekman",
        "Faber",
        "Grant",
        "Hahn",
        "Ivers",
        "Kranz",
    )
]
_COUNTS = (
    "How many customers ask about {}?",
    "How often do people write about {}?",
    "What is the number of messages on {}?",
    "What share of the messages is about {}?",
    "List all messages about {}.",
)

SETS: dict[str, Build] = {
    "canard: pages": pages,
    "canard: long pages": lambda data, chance: pages(data, chance, many=4, joined=5),
    "canard: in Markdown": headed,
    "canard: 5 answers": lambda data, chance: answers(data, chance, many=5),
    "canard: 20 answers": answers,
    "canard: 100 answers": lambda data, chance: answers(data, chance, many=100),
    "canard: buried": buried,
    "canard: two steps": linked,
    "gsm_plus": sums,
    "gsm_plus: near": lambda data, chance: sums(data, chance, near=True),
    "banking77": lambda data, chance: intents(data, chance, "banking77.jsonl"),
    "banking77: 5": lambda data, chance: intents(data, chance, "banking77.jsonl", many=5),
    "banking77: 100": lambda data, chance: intents(data, chance, "banking77.jsonl", many=100),
    "banking77: 3 of 20": lambda data, chance: intents(data, chance, "banking77.jsonl", same=3),
    "banking77: counted": counted,
    "clinc150": lambda data, chance: intents(data, chance, "clinc150.jsonl"),
    "clinc150: 3 of 20": lambda data, chance: intents(data, chance, "clinc150.jsonl", same=3),
    "qqp": paraphrases,
    "qqp: 5": lambda data, chance: paraphrases(data, chance, many=5),
}


def key_values(chance: random.Random) -> Iterator[Case]:
    """Retrieval by key, in the forms in which prompts have it, each key asked for once."""
    names = [f"{chance.getrandbits(64):016x}" for _ in range(40)]
    for index, name in enumerate(names):
        values = [str(chance.randrange(10**6, 10**7)) for _ in names]
        pairs = dict(zip(names, values, strict=True))
        forms = (
            json.dumps(pairs, indent=2),
            "\n".join(json.dumps({"key": key, "value": value}) for key, value in pairs.items()),
            "\n".join(f"{key}: {value}" for key, value in pairs.items()),
            "| key | value |\n|---|---|\n" + "\n".join(f"| {k} | {v} |" for k, v in pairs.items()),
            "key,value,kind\n" + "\n".join(f"{k},{v},x" for k, v in pairs.items()),
            "\n".join(f"The magic number of {k} is {v}." for k, v in pairs.items()),
            "\n\n".join(
                f"One of the records, {k}, holds the value {v} now." for k, v in pairs.items()
            ),
        )
        form = forms[index % len(forms)]
        yield Case(f"What is the value of {name}?", (form,), (name,), tuple(values))


def _told(question: str, documents: Sequence[str], answer: str) -> Case:
    words = tuple(word for word in _TELLING.findall(answer[1:]) if word not in question)
    return Case(question, tuple(documents), (answer,), words or (answer,))


def _shuffled(chance: random.Random, documents: Sequence[str]) -> tuple[str, ...]:
    return tuple(chance.sample(documents, len(documents)))
