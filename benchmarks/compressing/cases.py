"""Questions with their evidence among distractors, built from the evaluation data in place. Pure.

Each case holds documents of which one has the evidence, and the strings that must still be there
for the question to be answered.
"""

import json
import random
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SEED = 6
DOCUMENTS = 10
SHORT_DOCUMENTS = 20
_SENTENCE = re.compile(r"(?<=[.!?])\s+")
_TELLING = re.compile(r"\d[\d.,/%]*|\b[A-Z][\w'-]+")


@dataclass(frozen=True, slots=True)
class Case:
    """A question, its documents in the order of the prompt, and what of them must stay."""

    question: str
    documents: tuple[str, ...]
    evidence: str
    """The passage that answers, to the letter."""
    answers: tuple[str, ...]
    """The strings in it that an answer would have."""


Build = Callable[[Path, random.Random], Iterator[Case]]


def canard(data: Path, chance: random.Random, *, titles: bool = True) -> Iterator[Case]:
    """Conversations of Wikipedia pages: the documents are their answers, one has the evidence."""
    pages: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    before: Mapping[str, Any] | None = None
    for row in _rows(data, "canard_multiturn.jsonl"):
        page = tuple(row["history"][:2])
        if before and before["history"] == row["history"][:-2]:
            answer = row["history"][-1].strip()
            pages.setdefault(page, []).append((before["rewrite"], answer))
        before = row
    known = {page: said for page, said in pages.items() if len(said) > 2}
    texts = {
        page: (f"{page[0]}. {page[1]}.\n" if titles else "") + " ".join(a for _, a in said)
        for page, said in known.items()
    }
    for page in chance.sample(sorted(known), len(known)):
        question, answer = chance.choice(known[page])
        if len(answer) < 25 or "n't know" in answer:
            continue
        others = chance.sample(
            [text for other, text in texts.items() if other != page], DOCUMENTS - 1
        )
        told = tuple(word for word in _TELLING.findall(answer[1:]) if word not in question)
        yield Case(question, _shuffled(chance, *others, texts[page]), answer, told or (answer,))


def gsm_plus(data: Path, chance: random.Random) -> Iterator[Case]:
    """Sums: the documents are what is given, the question asks after one of them."""
    rows = {row["seed_question"]: row for row in _rows(data, "gsm_plus.jsonl")}
    given = {}
    for text in rows:
        *told, asked = _SENTENCE.split(text)
        if told and asked.endswith("?"):
            given[" ".join(told)] = asked
    for problem, question in given.items():
        others = chance.sample([other for other in given if other != problem], DOCUMENTS - 1)
        numbers = tuple(re.findall(r"\d+", problem))
        yield Case(question, _shuffled(chance, *others, problem), problem, numbers)


def banking77(data: Path, chance: random.Random) -> Iterator[Case]:
    """Support questions: the evidence has the intent of the question, no other document has."""
    by_intent: dict[str, list[str]] = {}
    for row in _rows(data, "banking77.jsonl"):
        by_intent.setdefault(row["intent"], []).append(row["text"].strip())
    intents = sorted(by_intent)
    for intent in intents * 4:
        asked, evidence = chance.sample(by_intent[intent], 2)
        others = [
            chance.choice(by_intent[other])
            for other in chance.sample(
                [each for each in intents if each != intent], SHORT_DOCUMENTS - 1
            )
        ]
        yield Case(asked, _shuffled(chance, *others, evidence), evidence, (evidence,))


def qqp(data: Path, chance: random.Random) -> Iterator[Case]:
    """Pairs of questions: the evidence is the other one of a pair that people called the same."""
    rows = [row for row in _rows(data, "qqp_pairs.jsonl")[::97] if row["a"] != row["b"]]
    texts = [row["b"] for row in rows]
    for row in rows:
        if row["label"] == 1:
            others = chance.sample(
                [text for text in texts if text != row["b"]], SHORT_DOCUMENTS - 1
            )
            yield Case(row["a"], _shuffled(chance, *others, row["b"]), row["b"], (row["b"],))


SETS: dict[str, Build] = {
    "canard": canard,
    "canard, no titles": lambda data, chance: canard(data, chance, titles=False),
    "gsm_plus": gsm_plus,
    "banking77": banking77,
    "qqp": qqp,
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
        yield Case(f"What is the value of {name}?", (form,), name, tuple(values))


def _shuffled(chance: random.Random, *documents: str) -> tuple[str, ...]:
    return tuple(chance.sample(documents, len(documents)))


def _rows(data: Path, name: str) -> list[dict[str, Any]]:
    with (data / name).open() as lines:
        return [json.loads(line) for line in lines]
