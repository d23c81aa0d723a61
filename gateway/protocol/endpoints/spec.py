"""What the gateway must know of an endpoint to cache its answers, as one record.

Law: whatever differs from one cached endpoint to another is read from here. No other module asks
which endpoint a request came to, but where it makes or answers requests of one endpoint itself.
"""

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import ClientError
from gateway.protocol.key_fields import Fields, Refusal
from gateway.protocol.stream import StreamedAnswer

Body = dict[str, Any]
Result = dict[str, Any]


class Question(NamedTuple):
    """What of a request may be looked up by meaning."""

    text: str
    rest: Body
    """The body without the question, which must be equal."""
    follows: bool = False
    """Whether anything was said before the question, instructions aside."""


class Follow(Protocol):
    """Starts to follow a stream; what is larger than ``max_bytes`` is not assembled."""

    def __call__(self, *, assemble: bool, max_bytes: int) -> StreamedAnswer:
        """Return what follows the stream."""
        ...


class Render(Protocol):
    """Writes a stored result as a stream."""

    def __call__(self, result: Result, *, include_usage: bool) -> bytes:
        """Return the whole event stream."""
        ...


@dataclass(frozen=True, slots=True)
class Streaming:
    """How an endpoint streams."""

    render: Render
    follow: Follow
    usage_option: bool
    """Whether usage comes only where ``stream_options.include_usage`` asks for it."""


def _said_usage(result: Result) -> Any:
    return result.get("usage")


@dataclass(frozen=True, slots=True, kw_only=True)
class EndpointSpec:
    """One cached endpoint. What is None does not concern it."""

    fields: Fields
    """The top-level fields of a request; any other is part of the key."""
    validate: Callable[[Body], ClientError | None]
    """Returns why a request is forwarded only, or None. Raises ClientError."""
    recognises: Callable[[Body], bool]
    """Tells whether a body that came without its path is one of these."""
    operation: str
    """The name of the operation in traces, as OpenTelemetry has it."""

    prompt_fields: tuple[str, ...]
    """Fields of the prompt in the order in which a model reads them."""
    question_field: str
    """The one of them that holds what is asked: a text, texts, or turns."""
    text_type: str | None = None
    """The type of a text part in the content of a turn, where what is asked is turns."""
    instructions: str | None = None
    """The field for instructions that are no turn."""
    find_question: Callable[[Body], Question | Reason] | None = None
    """Finds what is looked up by meaning, or says why nothing is; None: no request ever."""
    is_readable: Callable[[Body], bool] | None = None
    """Tells whether the prompt is text, and no token numbers; None: it always is."""

    declined: Callable[[Body, Any, Container[str]], Reason | None]
    """Says why a complete result is not stored, given the finish reasons that are allowed."""
    usage: Callable[[Result], Any] = _said_usage
    """Reads the usage of a result, in OpenAI's words."""
    without_vectors: Callable[[Result], Result] | None = None
    """Leaves out of a result what is numbers, even if it is written as text."""
    anonymous: Callable[[Result], Result | None] | None = None
    """Takes the caller's names out of a result that repeats them; None where it has none."""
    caller_key: Callable[[bytes, Body], bytes] | None = None
    """Makes a key that only requests share which get the same result, names included."""
    render: Callable[[Body, bytes, bytes], bytes] | None = None
    """Makes the plain reply to a request, of the key and the stored result; None: the latter."""
    streaming: Streaming | None = None

    generates: bool = True
    """Whether it is answered by generated text. Then servers have a prefix cache for the prompt,
    and another model may answer instead."""
    is_batch: bool = False
    """Whether each item of what is asked is an entry of its own."""
    keeps_by_id: bool = False
    """Whether the upstream keeps answers that later requests name by id, unless told not to."""
    takes_cache_control: bool = False
    """Whether turns may have marks of Anthropic's for the prefix cache."""

    turns: str | None = field(init=False)
    """The field of the turns, where what is asked is turns; some take one text in its place."""
    tool_fields: tuple[str, ...] = field(init=False)
    """Fields of the prompt that hold definitions of tools."""
    neutral: frozenset[str] = field(init=False)
    """Fields that are left out of the canonical form."""
    _refusals: tuple[tuple[str, Refusal, Reason | None], ...] = field(init=False)

    def __post_init__(self) -> None:
        tools = tuple(name for name in self.prompt_fields if name in ("tools", "functions"))
        refusals = tuple(
            (name, each.refusal, each.absent)
            for name, each in self.fields.items()
            if each.refusal is not None
        )
        made: Mapping[str, Any] = {
            "turns": None if self.text_type is None else self.question_field,
            "tool_fields": tools,
            "neutral": frozenset(name for name, each in self.fields.items() if not each.keyed),
            "_refusals": refusals,
        }
        for name, value in made.items():
            object.__setattr__(self, name, value)

    def bypass_reason(self, body: Body) -> Reason | None:
        """Return why a request's fields keep it from being looked up, or None."""
        for name, refusal, absent in self._refusals:
            value = body.get(name)
            reason = absent if value is None else refusal(value)
            if reason is not None:
                return reason
        return None
