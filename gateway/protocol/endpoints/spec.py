"""What the gateway must know of an endpoint to cache its answers, as one record.

Among it are the fields of a request, and the checks of a body against them.

Laws:
- Whatever differs from one cached endpoint to another is read from its record. No other module asks
  which endpoint a request came to, but where it makes or answers requests of one endpoint itself.
- A field is neutral only if it cannot change the answer. A field that is not listed is part of the
  key. Every field that OpenAI publishes is listed, so a new one is examined before it is cached.
- Only types, and the few values that the gateway itself reads, are checked. The upstream judges
  ranges, models and context lengths, and unknown fields pass.
- A shape that OpenAI refuses and other servers take is returned as an error, and not raised. Such a
  request is forwarded unchanged, and not looked up.
"""

import re
from collections.abc import Callable, Container, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from operator import methodcaller
from typing import Any, NamedTuple, Protocol

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import ClientError
from gateway.protocol.streaming.decode import StreamedAnswer

_JSON_NAMES = {
    dict: "an object",
    list: "an array",
    str: "a string",
    bool: "a boolean",
    int: "an integer",
    float: "a decimal",
}


class Type(NamedTuple):
    """What a field may hold besides null: ``expected`` is the word for it in an error."""

    expected: str
    types: tuple[type, ...]
    accepts: Callable[[Any], bool] = lambda _: False
    """Whether some servers read another value as one of the right type."""

    def check(self, where: str, value: Any) -> None:
        """Raise ClientError for a value of another type."""
        if type(value) not in self.types:  # not isinstance: True is no number
            raise self.error(where, value)

    def error(self, where: str, value: Any) -> ClientError:
        """Return the error of a value of another type."""
        got = "null" if value is None else _JSON_NAMES[type(value)]
        message = f"Invalid type for '{where}': expected {self.expected}, but got {got} instead."
        return ClientError(400, message, param=where, code="invalid_type")


_NUMERAL = re.compile(r"\s*[+-]?(\d+(\.\d*)?|\.\d+)([eE][+-]?\d+)?\s*", re.ASCII)
"""A number as a string, which vLLM reads as the number."""
_SWITCHES = frozenset({"true", "false", "0", "1", 0, 1})
"""What vLLM reads as true or false."""


def _is_numeral(value: Any) -> bool:
    return isinstance(value, str) and _NUMERAL.fullmatch(value) is not None


NUMBER = Type("a decimal", (int, float), _is_numeral)
INTEGER = Type("an integer", (int,), _is_numeral)
COUNT = Type(*INTEGER[:2], lambda value: isinstance(value, bool) or _is_numeral(value))
"""How many there are to be, or whether there are any."""
BOOLEAN = Type(
    "a boolean", (bool,), lambda value: isinstance(value, str | int) and value in _SWITCHES
)
STRING = Type("a string", (str,))
USER = Type(*STRING[:2], lambda value: isinstance(value, int | float))
OBJECT = Type("an object", (dict,))
BIAS = Type(*OBJECT[:2], lambda value: isinstance(value, list))  # pairs, as llama.cpp takes them
ARRAY = Type("an array", (list,))
OBJECTS = Type("an array of objects", (list,))
STRINGS = Type("one of a string or array of strings", (str, list))


Refusal = Callable[[Any], Reason | None]
"""Says why a value, which is not null, keeps a request from being looked up."""


class Field(NamedTuple):
    """One top-level field of a request. Without a type, any value passes."""

    type: Type | None
    keyed: bool
    refusal: Refusal | None = None
    absent: Reason | None = None
    """Why a request without the field, or with null in it, is not looked up."""


Fields = Mapping[str, Field]


def keyed(kind: Type | None, *names: str) -> Fields:
    """Return fields that are part of the key."""
    return dict.fromkeys(names, Field(kind, keyed=True))


def neutral(kind: Type | None, *names: str) -> Fields:
    """Return fields that are left out of the key."""
    return dict.fromkeys(names, Field(kind, keyed=False))


def when_given(reason: Reason) -> Refusal:
    """Refuse any value."""
    return lambda _: reason


def when_true(reason: Reason) -> Refusal:
    """Refuse ``true``."""
    return lambda value: reason if value is True else None


def _searching_model(model: Any) -> Reason | None:
    """Know models that search the web without being asked to by what is part of their names."""
    if (
        isinstance(model, str)
        and "search" in model
        and ("-search-preview" in model or "-search-api" in model or "-deep-research" in model)
    ):
        return Reason.WEB_SEARCH
    return None


_PLAIN_TOOLS = frozenset({"function", "custom"})
"""Tools that the client runs; what any other does, or reads, is known upstream only."""


def hosted_tools(tools: Any) -> Reason | None:
    """Refuse tools that the upstream runs."""
    for tool in tools if isinstance(tools, list) else ():
        kind = tool.get("type") if isinstance(tool, dict) else None
        if not isinstance(kind, str) or kind not in _PLAIN_TOOLS:
            searches = isinstance(kind, str) and kind.startswith("web_search")
            return Reason.WEB_SEARCH if searches else Reason.HOSTED_TOOLS
    return None


TOOLS = Field(OBJECTS, keyed=True, refusal=hosted_tools)

GENERATION: Fields = {
    "model": Field(STRING, keyed=True, refusal=_searching_model),
    "store": Field(BOOLEAN, keyed=False, refusal=when_true(Reason.STORE_TRUE)),
    **keyed(NUMBER, "temperature", "top_p"),
    **neutral(BOOLEAN, "stream"),
    **neutral(OBJECT, "stream_options", "metadata"),
    **neutral(USER, "user", "safety_identifier"),
    **neutral(None, "service_tier", "prompt_cache_key", "prompt_cache_retention"),
    **neutral(None, "prompt_cache_options"),
}
"""Fields that all generating endpoints share; servers take them where OpenAI does not, too."""

SAMPLING: Fields = {
    **GENERATION,
    **keyed(NUMBER, "frequency_penalty", "presence_penalty"),
    **keyed(INTEGER, "max_tokens", "n", "seed"),
    **keyed(BIAS, "logit_bias"),
    **keyed(STRINGS, "stop"),
}


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


@dataclass(frozen=True, kw_only=True)
class EndpointSpec:
    """One cached endpoint. What is None does not concern it."""

    fields: Fields
    """The top-level fields of a request; any other is part of the key."""
    check: Callable[[Body], Iterable[ClientError]]
    """Checks a body beyond the types of its fields, as ``validate`` does."""
    template_field: str | None = None
    """The field that may name a template, which may name the model."""
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

    decline: Callable[[Body, Any, Container[str]], Reason | None]
    """Says why a complete result is not stored, given the finish reasons that are allowed."""
    usage: Callable[[Result], Any] = methodcaller("get", "usage")
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

    @cached_property
    def turns(self) -> str | None:
        """The field of the turns, where what is asked is turns; some take one text in its place."""
        return None if self.text_type is None else self.question_field

    @cached_property
    def tool_fields(self) -> tuple[str, ...]:
        """Fields of the prompt that hold definitions of tools."""
        return tuple(name for name in self.prompt_fields if name in ("tools", "functions"))

    @cached_property
    def neutral(self) -> frozenset[str]:
        """Fields that are left out of the canonical form."""
        return frozenset(name for name, each in self.fields.items() if not each.keyed)

    @cached_property
    def _refusals(self) -> tuple[tuple[str, Refusal, Reason | None], ...]:
        return tuple(
            (name, each.refusal, each.absent)
            for name, each in self.fields.items()
            if each.refusal is not None
        )

    def validate(self, body: Body) -> ClientError | None:
        """Return why a request is forwarded only. Raises ClientError for what no server takes.

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
        """Return why a request's fields keep it from being looked up, or None."""
        for name, refusal, absent in self._refusals:
            value = body.get(name)
            reason = absent if value is None else refusal(value)
            if reason is not None:
                return reason
        return None
