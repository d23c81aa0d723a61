"""The gateway's knowledge of a cached endpoint, as one record.

Laws:
- Whatever differs from one cached endpoint to another is read from its record. No other module asks
  which endpoint a request came to, but where it makes or answers requests of one endpoint itself.
- Only types, and the few values that the gateway itself reads, are checked. The upstream judges
  ranges, models and context lengths, and unknown fields pass.
- A shape that OpenAI refuses and other servers take is returned as an error, and not raised. Such a
  request is forwarded unchanged, and not looked up.
"""

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any, NamedTuple, Protocol

from gateway.protocol.endpoints.key_fields import Fields, Refusal
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason
from gateway.protocol.streaming.decode import StreamedAnswer


def require(holder: dict[str, Any], name: str, where: str = "") -> None:
    """Raise ClientError where a field is absent or null."""
    if holder.get(name) is None:
        raise missing(f"{where}.{name}" if where else name)


def missing(param: str) -> ClientError:
    """Return the error of a field that is absent."""
    message = f"Missing required parameter: '{param}'."
    return ClientError(400, message, param=param, code="missing_required_parameter")


def empty_array(where: str) -> ClientError:
    """Return the error of an array that holds nothing."""
    message = (
        f"Invalid '{where}': empty array. "
        "Expected an array with minimum length 1, but got an empty array instead."
    )
    return ClientError(400, message, param=where, code="empty_array")


Body = dict[str, Any]
Result = dict[str, Any]


class Question(NamedTuple):
    """The part of a request that may be looked up by meaning."""

    text: str
    rest: Body
    """The body without the question, which must be equal."""
    follows: bool = False
    """Whether the conversation has turns before the question, instructions aside."""


class Follow(Protocol):
    """Starts to follow a stream; answers over ``max_bytes`` are not assembled.

    ``on_event`` takes each event that may hold more than a piece of text.
    """

    def __call__(
        self,
        *,
        assemble: bool,
        max_bytes: int,
        on_event: Callable[[dict[str, Any]], None] | None = None,
    ) -> StreamedAnswer: ...


class Render(Protocol):
    """Writes a stored result as a stream."""

    def __call__(self, result: Result, /, *, include_usage: bool) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Streaming:
    """The streaming of an endpoint."""

    render: Render
    follow: Follow
    usage_option: bool
    """Whether usage comes only where ``stream_options.include_usage`` asks for it."""
    bytes_a_token: int = 200
    """Bytes of a stream for each token, where nothing better is known."""


def _openai_end_users(body: Body) -> tuple[Any, ...]:
    """Return both names: where they differ, one of them may stand for a whole application."""
    return body.get("safety_identifier"), body.get("user")


@dataclass(frozen=True, kw_only=True)
class EndpointSpec:
    """One cached endpoint. A field of None does not apply to it."""

    fields: Fields
    """The top-level fields of a request; any other is part of the key."""
    as_given: frozenset[str] = frozenset()
    """Fields that hold data, whose objects a model reads in the order of their members."""
    check: Callable[[Body], Iterable[ClientError]]
    """Checks a body beyond the types of its fields, as ``validate`` does."""
    template_field: str | None = None
    """The field that may name a template, which may name the model."""
    recognises: Callable[[Body], bool]
    """Tells whether a body without its path belongs to this endpoint."""
    operation: str
    """The name of the operation in traces, as OpenTelemetry has it."""

    prompt_fields: tuple[str, ...]
    """Fields of the prompt in the order in which a model reads them."""
    question_field: str
    """The field of the question: a text, texts, or turns."""
    text_type: str | None = None
    """The type of a text part in a turn's content, if the question is turns."""
    instructions: str | None = None
    """The field for instructions that are no turn."""
    find_question: Callable[[Body], Question | Reason] | None = None
    """Finds the question to look up by meaning, or the reason against it. None: never."""
    is_readable: Callable[[Body], bool] | None = None
    """Tells whether the prompt is text, and no token numbers; None: it always is."""

    decline: Callable[[Body, Any, Container[str]], Reason | None]
    """Says why a complete result is not stored, given the finish reasons that are allowed."""
    usage: Callable[[Result], Any] = methodcaller("get", "usage")
    """Reads the usage of a result, in OpenAI's words."""
    without_vectors: Callable[[Result], Result] | None = None
    """Leaves out of a result all numbers, even if they are written as text."""
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
    """Whether each item of the question is a separate entry."""
    keeps_by_id: bool = False
    """Whether the upstream stores answers by id for later requests, unless a request forbids it."""
    takes_cache_control: bool = False
    """Whether turns may have marks of Anthropic's for the prefix cache."""
    is_anthropic: bool = False
    """Whether requests, replies and errors are in Anthropic's form. Such turns hold the calls of
    tools and their results, so no text in them is moved or left out."""
    has_pings: bool = False
    """Whether clients of its streams know pings, and errors after the status."""
    keyed_headers: tuple[str, ...] = ()
    """Headers that are part of the key, in lower case."""
    end_users: Callable[[Body], Iterable[Any]] = _openai_end_users
    """Yields the names that the request has for its end user."""

    @cached_property
    def turns(self) -> str | None:
        """The field of the turns, if the question is turns; some accept one text in its place."""
        return None if self.text_type is None else self.question_field

    @cached_property
    def tool_fields(self) -> tuple[str, ...]:
        return tuple(name for name in self.prompt_fields if name in ("tools", "functions"))

    @cached_property
    def neutral(self) -> frozenset[str]:
        """Fields that are left out of the canonical form."""
        return frozenset(name for name, each in self.fields.items() if not each.keyed)

    @cached_property
    def unordered(self) -> frozenset[str]:
        """Fields with objects that mean the same in any order, unless they hold objects."""
        return frozenset(self.fields) - self.as_given

    @cached_property
    def unread(self) -> frozenset[str]:
        """Fields that are no part of the prompt."""
        return self.neutral | {"model"}

    @cached_property
    def _refusals(self) -> tuple[tuple[str, Refusal, Reason | None], ...]:
        return tuple(
            (name, each.refusal, each.absent)
            for name, each in self.fields.items()
            if each.refusal is not None
        )

    def validate(self, body: Body) -> ClientError | None:
        """Return why a request is only forwarded. Raises ClientError if no server accepts it.

        A request without a model is forwarded: servers of one model take it.
        """
        odd = []
        for name, value in body.items():
            known = self.fields.get(name)
            if known is None or value is None or (kind := known.type) is None:
                continue
            if type(value) not in kind.types:
                odd.append(kind.error(name, value))
                if not kind.accepts(value):
                    raise odd[-1]
        if body.get("model") is None and body.get(self.template_field or "model") is None:
            odd.append(missing("model"))
        odd.extend(self.check(body))
        return odd[0] if odd else None

    def bypass_reason(self, body: Body) -> Reason | None:
        for name, refusal, absent in self._refusals:
            value = body.get(name)
            reason = absent if value is None else refusal(value)
            if reason is not None:
                return reason
        return None
