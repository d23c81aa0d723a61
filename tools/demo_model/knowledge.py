"""What the demo model knows, as values: topics of the FAQ, small talk, off-topic questions.

The texts live beside this file, in faq/*.toml (one file per theme) and talk/*.toml. A FAQ topic has

    id      unique name
    ask     the question as the FAQ phrases it; "How do I {do[0]}?" where it is left out
    answer  the one right answer
    do      what the user wants to do, as it would follow "How do I ..."; or
    know    what the user wants to know, as it would follow "Can you tell me ..."
    say     further phrasings, written by hand
    held    one phrasing that training never sees; evaluation asks it
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent
PATTERNS_PER_THING = 3


@dataclass(frozen=True, slots=True)
class Topic:
    """One question with one right answer, and the material for asking it differently."""

    id: str
    ask: str
    answer: str
    do: tuple[str, ...] = ()
    know: tuple[str, ...] = ()
    say: tuple[str, ...] = ()
    held: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FollowUp:
    """Second questions whose answer depends on the topic that came ``before``."""

    before: str
    after: str
    ask: tuple[str, ...]
    held: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Knowledge:
    """Everything the corpus is made of."""

    faq: tuple[Topic, ...]
    smalltalk: tuple[Topic, ...]
    offtopic: Topic
    follow_ups: tuple[FollowUp, ...]
    system_prompts: tuple[str, ...]

    def topic(self, topic_id: str) -> Topic:
        """Return the FAQ topic of that id; raises KeyError."""
        for topic in self.faq:
            if topic.id == topic_id:
                return topic
        raise KeyError(topic_id)


def load_knowledge(root: Path = ROOT) -> Knowledge:
    """Read all texts below ``root``; raises KeyError or ValueError where a topic is incomplete."""
    faq: list[Topic] = []
    for path in sorted((root / "faq").glob("*.toml")):
        faq += [_topic(row) for row in _read(path)["topic"]]
    talk = root / "talk"
    offtopic = _expand(_read(talk / "offtopic.toml"))
    follow_ups = [
        FollowUp(before, after, tuple(group["ask"]), tuple(group["held"]))
        for group in _read(talk / "followups.toml")["group"]
        for before, after in group["pairs"]
    ]
    return Knowledge(
        faq=tuple(faq),
        smalltalk=tuple(_topic(row) for row in _read(talk / "smalltalk.toml")["topic"]),
        offtopic=_topic({"id": "offtopic", **offtopic}),
        follow_ups=tuple(follow_ups),
        system_prompts=tuple(_read(talk / "system.toml")["prompts"]),
    )


def _read(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return tomllib.load(file)


def _expand(row: dict[str, Any]) -> dict[str, Any]:
    """Fill a few of the patterns with each thing, other ones for the next thing."""
    expanded = {"do": list(row["do"]), "say": list(row["say"])}
    for key, texts in expanded.items():
        patterns: list[str] = row[f"{key}_patterns"]
        for place, thing in enumerate(row["things"]):
            texts += [
                patterns[(place * PATTERNS_PER_THING + step) % len(patterns)].format(thing)
                for step in range(PATTERNS_PER_THING)
            ]
    return {**row, **expanded}


def _topic(row: dict[str, Any]) -> Topic:
    do: list[str] = row.get("do", [])
    say: list[str] = row.get("say", [])
    ask = row.get("ask") or (f"How do I {do[0]}?" if do else next(iter(say), None))
    if ask is None:
        raise ValueError(f"topic {row['id']} has neither ask, do nor say")
    held = row.get("held", ())
    return Topic(
        id=row["id"],
        ask=ask,
        answer=row["answer"],
        do=tuple(do),
        know=tuple(row.get("know", ())),
        say=tuple(say),
        held=(held,) if isinstance(held, str) else tuple(held),
    )
