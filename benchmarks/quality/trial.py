"""What is stored, what is asked, and which stored answer is right for it. Pure."""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

SEED = 20_261_121

Message = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Request:
    """A question in its conversation, and the label of its answer.

    `answer` is None where no stored answer is right. Only requests of one `realm` may share
    answers: each realm is a tenant of its own. `group` is what figures are broken down by. `row` is
    its line in the data file, from 0, where labels are corrected by it.
    """

    text: str
    answer: str | None
    group: str = ""
    realm: int = 0
    history: tuple[Message, ...] = ()
    row: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The request as a client would send it."""
        turns = [{"role": role, "content": content} for role, content in self.history]
        turns.append({"role": "user", "content": self.text})
        return {"model": "evaluated", "messages": turns, "temperature": 0}


@dataclass(frozen=True, slots=True)
class Trial:
    """A cache with `stored` in it, and then `asked`, nothing of which is stored."""

    name: str
    stored: tuple[Request, ...]
    asked: tuple[Request, ...]

    @property
    def texts(self) -> set[str]:
        return {request.text for request in (*self.stored, *self.asked)}

    @property
    def answers(self) -> set[tuple[int, str | None]]:
        """What is stored, by realm: a request has a right answer if its own is among them."""
        return {(request.realm, request.answer) for request in self.stored}

    def sampled(self, most: int | None) -> "Trial":
        """Ask at most so many, the same ones each time; leave out the realms of nobody."""
        if most is None or most >= len(self.asked):
            return self
        kept = sorted(random.Random(SEED).sample(range(len(self.asked)), most))
        asked = tuple(self.asked[place] for place in kept)
        realms = {request.realm for request in asked}
        stored = tuple(request for request in self.stored if request.realm in realms)
        return replace(self, stored=stored, asked=asked)


def pairs(name: str, rows: Iterable[tuple[str, str, bool, str]]) -> Trial:
    """Make a trial of (asked, stored, whether one answer fits both, group), each by itself."""
    stored, asked = [], []
    for realm, (question, other, same, group) in enumerate(rows):
        stored.append(Request(other, "its", group, realm))
        asked.append(Request(question, "its" if same else None, group, realm))
    return Trial(name, tuple(stored), tuple(asked))
