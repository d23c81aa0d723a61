"""Chat traffic that benchmarks replay: arrivals and lengths of a trace, questions of our own. Pure.

The trace is Azure's of 2023, conversations. It has no texts, so each new request asks a question
that nobody asked before. Before it stands the beginning of one of eight system prompts, as many
words as the trace has tokens. Some requests repeat an earlier question, in the same words or in
others. The script of the upstream's answer (``upstream.py``) follows the lengths. The answer begins
with the question's name, so a wrong answer is seen.
"""

import csv
import itertools
import random
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import orjson
from load import Arrival, Reply, post

TRACE = Path(__file__).parent.parent.parent / "shared" / "data" / "azure_conv_trace.csv"
ASSISTANTS = 8
"""System prompts: each request begins like an eighth of them."""
MOST_WORDS = 20_000
_VERBS = (
    *("change", "cancel", "find", "repair", "improve", "describe", "compare", "move"),
    *("sell", "clean", "wrap", "weigh", "measure", "insure", "replace", "label"),
)
_THINGS = (
    *("invoice", "phone", "account", "garden", "recipe", "bicycle", "printer", "contract"),
    *("camera", "guitar", "sofa", "passport", "laptop", "carpet", "mirror", "telescope"),
)
_PLACES = (
    *("kitchen", "office", "workshop", "library", "school", "garage"),
    *("cellar", "attic", "hotel", "museum", "station", "harbour"),
)
_WORDS = (
    *("order", "parcel", "invoice", "refund", "account", "password", "delivery", "customer"),
    *("address", "payment", "shipping", "return", "warranty", "product", "store", "receipt"),
    *("email", "phone", "support", "question", "answer", "reply", "please"),
)


@dataclass(frozen=True, slots=True)
class TracedRequest:
    """``at`` is seconds after the first."""

    at: float
    prompt_tokens: int
    new_tokens: int


def read_trace(path: Path, count: int, *, scale: float = 1.0) -> list[TracedRequest]:
    """Return the first ``count`` requests, lengths times ``scale``.

    Raises FileNotFoundError if there is no trace.
    """
    requests: list[TracedRequest] = []
    first: datetime | None = None
    with path.open(newline="", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            # Seven decimals are one more than Python reads.
            at = datetime.fromisoformat(row["TIMESTAMP"][:26])
            first = first or at
            requests.append(
                TracedRequest(
                    (at - first).total_seconds(),
                    max(round(int(row["ContextTokens"]) * scale), 1),
                    max(round(int(row["GeneratedTokens"]) * scale), 1),
                )
            )
            if len(requests) == count:
                break
    return requests


def at_rate(trace: Sequence[TracedRequest], rate: float) -> Iterator[TracedRequest]:
    """Yield the trace again and again, stretched so that it has ``rate`` requests a second."""
    length = len(trace) / rate
    stretch = length / (trace[-1].at + trace[-1].at / len(trace))
    for lap in itertools.count():
        for each in trace:
            at = lap * length + each.at * stretch
            yield TracedRequest(at, each.prompt_tokens, each.new_tokens)


def questions(seed: int = 1) -> Iterator[tuple[str, str]]:
    """Yield pairs of a question and the same in other words, no two questions alike."""
    made = list(itertools.product(_VERBS, _THINGS, _PLACES, _THINGS))
    random.Random(seed).shuffle(made)
    for verb, thing, place, other in made:
        if thing != other:
            rest = f"{verb} the {thing} that I keep in the {place} near my {other}?"
            yield f"How do I {rest}", f"How can I {rest}"


@dataclass(frozen=True, slots=True)
class Pace:
    """What the scripted upstream takes: seconds a prompt token, and between tokens."""

    prefill: float = 1e-4
    gap: float = 0.02


@dataclass(frozen=True, slots=True)
class Shares:
    """Of all requests: repeated in the same words, in others; of all: streamed."""

    exact: float = 0.3
    reworded: float = 0.1
    streamed: float = 0.7


@dataclass(frozen=True, slots=True)
class Asked:
    """A request: its question's name, and how long the upstream takes, in seconds."""

    name: str
    stream: bool
    first_token: float
    gap: float
    text: str
    reworded: str
    system: str
    tokens: int

    @property
    def whole(self) -> float:
        return self.first_token + self.tokens * self.gap

    def body(self, *, reworded: bool) -> dict[str, Any]:
        """Return the body of the chat request, but for what the upstream needs."""
        text = self.reworded if reworded else self.text
        messages = [{"role": "system", "content": self.system}, {"role": "user", "content": text}]
        return {"model": "bench", "messages": messages, "stream": self.stream}

    def beyond(self, reply: Reply, due: float) -> float:
        """Return the seconds of a miss beyond the upstream's: to the first byte, if streamed."""
        return (
            reply.first - due - self.first_token if self.stream else reply.last - due - self.whole
        )


def script(asked: Asked) -> dict[str, Any]:
    """Return the fields for the scripted upstream."""
    script = {"id": asked.name, "tokens": str(asked.tokens), "gap": f"{asked.gap:g}"}
    return {"metadata": script | {"seconds": f"{asked.first_token:.4f}"}}


def for_engine(asked: Asked) -> dict[str, Any]:
    """Return the fields for an answer of the bundled engine, as long as the trace says."""
    fields: dict[str, Any] = {"max_tokens": asked.tokens, "ignore_eos": True, "temperature": 0}
    return fields | ({"stream_options": {"include_usage": True}} if asked.stream else {})


class Traffic:
    """Makes the requests of a trace, and knows what each asked."""

    def __init__(
        self,
        shares: Shares,
        pace: Pace,
        fields: Callable[[Asked], dict[str, Any]] = script,
        *,
        wait: float = 20.0,
        seed: int = 1,
    ) -> None:
        """``fields`` are those that the upstream needs.

        ``wait``: seconds after which a question may be repeated, for its answer is stored.
        """
        self._shares, self._pace, self._fields, self._wait = shares, pace, fields, wait
        self._random = random.Random(seed)
        self._questions = questions(seed)
        self._numbers = itertools.count()
        self._assistants = [
            random.Random(number).choices(_WORDS, k=MOST_WORDS) for number in range(ASSISTANTS)
        ]
        self._asked: deque[tuple[float, Asked]] = deque(maxlen=500)
        self.by_label: dict[str, Asked] = {}
        """What was asked by the label of an arrival; the caller removes what is done."""

    def arrivals(self, trace: Iterator[TracedRequest], seconds: float) -> Iterator[Arrival]:
        """Yield requests until ``seconds``; the label is ``kind name number``."""
        for traced in trace:
            if traced.at >= seconds:
                return
            kind, asked = self._choose(traced)
            body = asked.body(reworded=kind == "reworded") | self._fields(asked)
            label = f"{kind} {asked.name} {next(self._numbers)}"
            self.by_label[label] = asked
            yield Arrival(traced.at, post(orjson.dumps(body)), label)

    def _choose(self, traced: TracedRequest) -> tuple[str, Asked]:
        known = sum(1 for at, _ in self._asked if at < traced.at - self._wait)
        chance = self._random.random()
        if known and chance < self._shares.exact + self._shares.reworded:
            asked = self._asked[self._random.randrange(known)][1]
            return ("exact" if chance < self._shares.exact else "reworded"), asked
        asked = self.new(traced)
        self._asked.append((traced.at, asked))
        return "new", asked

    def new(self, traced: TracedRequest) -> Asked:
        """Return a question that was not asked before, with the lengths of a traced request."""
        text, reworded = next(self._questions)
        number = next(self._numbers)
        return Asked(
            name=f"q{number}-",
            stream=self._random.random() < self._shares.streamed,
            first_token=traced.prompt_tokens * self._pace.prefill,
            gap=self._pace.gap,
            text=text,
            reworded=reworded,
            system=" ".join(self._assistants[number % ASSISTANTS][: traced.prompt_tokens]),
            tokens=traced.new_tokens,
        )


def kind_of(reply: Reply) -> str:
    """Return what the gateway says of a reply: exact, semantic, miss or other."""
    status = reply.cache_status
    if "; hit" in status:
        return "semantic" if "semantic" in status else "exact"
    return "miss" if "fwd=miss" in status or "fwd=stale" in status else "other"
