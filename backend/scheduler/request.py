"""What a request asks of the engine, and what comes back: immutable values that cross processes.

Random number i of a choice is a pure function of ``choice_seed`` and i. The same seed gives the
same text in every batch; preemption and overlapped steps change nothing.
"""

from dataclasses import dataclass, field
from enum import IntEnum, StrEnum
from typing import NamedTuple


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


class GrammarKind(StrEnum):
    """How a grammar is written."""

    JSON_OBJECT = "json_object"
    JSON_SCHEMA = "json_schema"
    REGEX = "regex"
    EBNF = "ebnf"
    STRUCTURE = "structure"
    """xgrammar's structural tags: JSON between fixed texts."""
    TEXT_WITH_STRUCTURE = "text_with_structure"
    """The same with any text around."""


@dataclass(frozen=True, slots=True)
class Grammar:
    """What a text must conform to; ``source`` is empty for any JSON object.

    ``markup`` are special tokens that may spell it: they are text here, as in TextForm.
    ``before`` is a JSON array of xgrammar's formats that precede it: the reasoning. ``passing`` is
    a text that they match, to its end.
    """

    kind: GrammarKind
    source: str = ""
    markup: tuple[str, ...] = ()
    before: str = ""
    passing: str = ""


MOST_SPACES = 16
"""White space between two parts of JSON under a grammar, so that a weak model reaches an end."""


@dataclass(frozen=True, slots=True)
class ReasoningSpan:
    """Where an answer's reasoning stands in its text.

    It begins with the text if ``begun``, else with one of ``opening`` if the text begins so. It
    ends with one of each step of ``closing``, one behind the other.
    """

    opening: tuple[str, ...]
    closing: tuple[tuple[str, ...], ...]
    begun: bool


@dataclass(frozen=True, slots=True)
class TextForm:
    """How tokens become the text of an answer.

    ``markup`` are special tokens that are text here, since a parser reads them. Stop strings are
    searched behind ``reasoning``. The text ``continues`` the prompt's: a decoder that strips the
    first space of a text does not strip this one's. Where it ``reports_end``, an end token has log
    probabilities like any other, without text.
    """

    markup: tuple[str, ...] = ()
    reasoning: ReasoningSpan | None = None
    continues: bool = False
    reports_end: bool = False


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """How tokens are chosen and when generation ends.

    ``temperature`` 0 is greedy. ``top_k`` 0 means no limit. ``max_tokens`` None means up to the
    context. ``stop`` strings end the text before themselves and are not part of it; a token of
    ``stop_token_ids`` ends it like the model's end token. Presence and frequency penalties look at
    the continuation, the repetition penalty at the prompt too. ``logprobs`` None reports none, else
    those of the chosen token and of as many of the likeliest; ``prompt_logprobs`` is the same for
    the tokens of the prompt.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    seed: int | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    stop: tuple[str, ...] = ()
    stop_token_ids: frozenset[int] = frozenset()
    ignore_eos: bool = False
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: tuple[tuple[int, float], ...] = ()
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    grammar: Grammar | None = None

    @property
    def allows_drafts(self) -> bool:
        """Whether several tokens of it can be verified in one step."""
        return self.grammar is None and not self.is_penalised

    @property
    def needs_history(self) -> bool:
        """Whether a token can be chosen only once the host knows the one before."""
        return self.grammar is not None

    @property
    def is_penalised(self) -> bool:
        """Whether a penalty is set."""
        return (
            self.presence_penalty != 0.0
            or self.frequency_penalty != 0.0
            or self.repetition_penalty != 1.0
        )


@dataclass(frozen=True, slots=True)
class GenerationRequest:
    """One prompt and the ``n`` continuations wanted for it.

    KV is shared between prompts of one ``cache_salt`` alone. Without ``stream`` the text is wanted
    at the end only. ``queue_seconds`` bounds the wait before the first step, None leaves it to the
    engine. ``arrived`` is when whoever asks began to wait, on the clock of ``time.monotonic``; None
    is when the engine's client was called. It comes ``among`` so many choices, where other requests
    are sent with it, and never runs where these could never wait together. ``text`` is how its
    tokens are read. ``adapter`` is the number of the LoRA adapter that computes it, 0 is the base.
    ``prefill`` is the address of an engine that computes the prompt, empty for none.
    """

    request_id: str
    prompt_tokens: tuple[int, ...]
    sampling: SamplingParams = field(default_factory=SamplingParams)
    n: int = 1
    priority: Priority = Priority.NORMAL
    cache_salt: str = ""
    stream: bool = True
    queue_seconds: float | None = None
    arrived: float | None = None
    among: int = 0
    text: TextForm = field(default_factory=TextForm)
    adapter: int = 0
    prefill: str = ""


@dataclass(frozen=True, slots=True)
class TokenLogprobs:
    """Natural logarithms: of the chosen token, and of the likeliest ``(token, logprob)``.

    Its text begins ``text_offset`` characters into its choice's, once that is known.
    """

    token: int
    logprob: float
    top: tuple[tuple[int, float], ...] = ()
    text_offset: int = 0


class TokenDelta(NamedTuple):
    """New tokens of one choice, as the engine's loop sends them.

    ``logprobs`` is empty or as long as ``tokens``. ``cached_tokens`` of the prompt were found in
    the prefix cache. An end token is among the tokens. ``prompt_logprobs``, where they were asked
    for, come once and with the first tokens, and begin with the prompt's second token. So do
    ``times``: when the choice's first step began, and when its first token came.
    """

    index: int  # type: ignore[assignment]  # in place of a tuple's method
    tokens: tuple[int, ...]
    logprobs: tuple[TokenLogprobs, ...] = ()
    finish_reason: FinishReason | None = None
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    times: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class TextDelta:
    """New text of one choice; the last delta of a choice carries ``finish_reason``.

    ``completion_tokens`` counts the tokens generated so far for this choice. ``logprobs`` are those
    of the tokens that ``text`` came from, where they were asked for; ``prompt_logprobs`` and
    ``times`` as in TokenDelta. ``reasoning_tokens`` of the tokens came before the answer.
    """

    index: int
    text: str
    completion_tokens: int
    finish_reason: FinishReason | None = None
    logprobs: tuple[TokenLogprobs, ...] = ()
    cached_tokens: int = 0
    prompt_logprobs: tuple[TokenLogprobs, ...] = ()
    times: tuple[float, float] | None = None
    reasoning_tokens: int = 0


_MASK = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15
"""What SplitMix64 adds for each number; its finaliser's multipliers follow."""
MULTIPLIERS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)


def choice_seed(seed: int, choice: int) -> int:
    """Return the seed, below 2**64, of one of the choices that share a request's ``seed``."""
    return _mix(_mix(seed & _MASK) + (choice + 1) * GOLDEN)


def _mix(value: int) -> int:
    value &= _MASK
    value = (value ^ (value >> 30)) * MULTIPLIERS[0] & _MASK
    value = (value ^ (value >> 27)) * MULTIPLIERS[1] & _MASK
    return value ^ (value >> 31)
