"""The messages between a client and the engine's loop, which may be in two processes.

Everything is a value. A request is known by its ``number``, which its client chose and uses once.
The loop answers a ``Submit`` with deltas that end in a finish reason for each choice, or with one
exception.
"""

from dataclasses import dataclass, field
from typing import Any

from backend.scheduler.cache_events import EventBatch
from backend.scheduler.request import FinishReason, GenerationRequest, TokenDelta
from backend.scheduler.stats import EngineStats


@dataclass(frozen=True, slots=True)
class EngineDescription:
    """What a client needs to know of an engine.

    ``detail`` says what does not compute as it should and was replaced, for people. ``adapters``
    are the fingerprints of LoRA adapters 1, 2 and so on.
    """

    max_model_len: int
    vocab_size: int
    fingerprint: bytes = b""
    detail: tuple[str, ...] = ()
    adapters: tuple[bytes, ...] = ()

    def fingerprint_of(self, adapter: int) -> bytes:
        """Return what identifies the KV of an adapter, 0: of the base."""
        return self.adapters[adapter - 1] if adapter else self.fingerprint


@dataclass(frozen=True, slots=True)
class Submit:
    """Generate; ``arrived`` is on the clock of ``time.monotonic``, one for all processes.

    ``block_hashes`` are those of the prompt under the engine's fingerprint, so that the loop need
    not compute them; the scheduler computes what is not given.
    """

    number: int
    request: GenerationRequest
    arrived: float
    block_hashes: tuple[bytes, ...] = ()


@dataclass(frozen=True, slots=True)
class Abort:
    """End choice ``index`` of a request, None: all of it, silently.

    ``reason`` is ABORT where the client has gone, STOP at a stop string. ``at`` is when that was,
    on the clock of ``Submit.arrived``.
    """

    number: int
    index: int | None
    reason: FinishReason
    at: float


@dataclass(frozen=True, slots=True)
class Stop:
    """End the loop; what is open fails."""


PERSIST_SECONDS = 8.0
"""So long an engine that was stopped writes to its disk tier at most."""


@dataclass(frozen=True, slots=True)
class Ping:
    """Report in this iteration of the loop, whether or not there is news."""


@dataclass(frozen=True, slots=True)
class Sleep:
    """Give memory back, answered by ``Asleep``; the client has let no request in before."""


@dataclass(frozen=True, slots=True)
class Wake:
    """Compute again, answered by ``Awake``."""


ToEngine = Submit | Abort | Stop | Ping | Sleep | Wake

Item = TokenDelta | Exception
"""An exception ends its request."""


@dataclass(slots=True)
class Report:
    """What came of a step: items by request, in order, and figures where there are new ones.

    ``cache_events`` is empty unless they were asked for.
    """

    items: list[tuple[int, Item]] = field(default_factory=list)
    stats: EngineStats | None = None
    cache_events: list[EventBatch] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.items or self.cache_events) or self.stats is not None

    def add(self, later: "Report") -> None:
        """Append what came later."""
        self.items += later.items
        self.stats = later.stats or self.stats
        self.cache_events += later.cache_events

    def __reduce__(self) -> tuple[Any, ...]:
        # Plain tuples: with a class for each it takes four times as long, once a step.
        rows = [
            (number, *item) if isinstance(item, tuple) else (number, item)
            for number, item in self.items
        ]
        return _report_of, (rows, self.stats, self.cache_events)


def _report_of(
    rows: list[tuple[Any, ...]], stats: EngineStats | None, cache_events: list[EventBatch]
) -> Report:
    items = [(row[0], row[1] if len(row) == 2 else TokenDelta(*row[1:])) for row in rows]
    return Report(items, stats, cache_events)


@dataclass(frozen=True, slots=True)
class Loading:
    """How far loading is, for people: "reading the weights"."""

    stage: str


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine is warm and takes requests."""

    description: EngineDescription


@dataclass(frozen=True, slots=True)
class LoadFailed:
    """There will be no engine, and why."""

    text: str


@dataclass(frozen=True, slots=True)
class Asleep:
    """The KV pool is dropped and the weights are on the host."""


@dataclass(frozen=True, slots=True)
class Awake:
    """The engine is warm again; its prefix cache is empty."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The last message: the engine ends, loaded or not, because one of its ranks failed."""

    reason: str


FromEngine = Loading | Loaded | LoadFailed | Asleep | Awake | Ended | Report
