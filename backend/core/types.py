"""Values exchanged between the server and the engine loop.

Pure: no torch, no asyncio. Everything here is immutable, so it can cross a thread without a lock.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum


class FinishReason(StrEnum):
    """Why a sequence ended, in OpenAI's words."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


class Priority(IntEnum):
    """Which of the waiting sequences are taken first: the lesser."""

    HIGH = 0
    NORMAL = 1
    LOW = 2


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    ``temperature`` 0 is greedy. ``top_k`` 0 means no limit. ``max_tokens`` None means up to the
    context. ``stop`` strings end the text before themselves and are not part of it.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    seed: int | None = None
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and the ``n`` continuations wanted for it."""

    request_id: str
    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    priority: Priority = Priority.NORMAL


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice; the last delta of a choice carries ``finish_reason``.

    ``completion_tokens`` counts the tokens generated so far for this choice.
    """

    index: int
    text: str
    completion_tokens: int
    finish_reason: FinishReason | None = None


@dataclass(frozen=True, slots=True)
class EngineStats:
    """A snapshot for /metrics: counts, and the share of KV blocks in use (0 to 1)."""

    running: int
    waiting: int
    kv_blocks_used: int
    kv_blocks_total: int
    preemptions: int
    prompt_tokens: int
    generated_tokens: int
