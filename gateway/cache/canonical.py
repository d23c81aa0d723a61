"""Request bodies: strict parsing, and the canonical form that is hashed.

Law: two bodies share a canonical form only if no upstream can tell them apart. Key order, number
lexemes (1, 1.0, 1e0) and the two forms of a message that is one text, or of one input to embed,
fold. Text never folds, arrays keep their order, and a field is part of the form unless it is known
to be neutral (``protocol.fields``). Null and absent stay apart, as some servers tell them apart
(vLLM by ``tool_choice: null``). A default and its absence too: the upstream may change a default.
"""

import json
from typing import Any

import orjson

from gateway.protocol import exact_json
from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.table import SPECS


class BodyError(ValueError):
    """The body is not one JSON object with unique keys."""


class LoneSurrogateError(BodyError):
    """A string of the body is not Unicode; ``body`` is the parsed object."""

    def __init__(self, body: dict[str, Any]) -> None:
        super().__init__("The JSON body of your request has a lone surrogate in a string.")
        self.body = body


def parse_body(raw: bytes) -> dict[str, Any]:
    """Parse a request body; floats of integral value come back as ints, of any size.

    Raises LoneSurrogateError for half of a surrogate pair, which JavaScript leaves of a cut emoji,
    and BodyError for invalid JSON, anything but an object, a nesting of over 250 levels, and
    duplicate keys at any depth (what is keyed must be what the upstream reads, and parsers differ
    on which duplicate wins).
    """
    try:
        body = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        if "surrogate" in str(error):
            raise LoneSurrogateError(_parse_surrogates(raw)) from None
        raise BodyError(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(body, dict):
        raise BodyError("The JSON body of a request must be an object.")
    try:
        printed = orjson.dumps(body)
    except TypeError:  # orjson prints fewer levels than it reads
        raise BodyError("The JSON body of your request is nested too deeply.") from None
    # Proof that no key was dropped, without a slow parse: the reprint is the same text; or, if no
    # colon is escaped, both have the same number of colons, of members and inside strings.
    proven_unique = raw == printed or (
        raw.count(b":") == printed.count(b":") and b"\\u003" not in raw
    )
    if proven_unique and not _has_integral_float(printed):
        return body
    exact: dict[str, Any] = _parse_exactly(raw)
    return exact


def _has_integral_float(printed: bytes) -> bool:
    """Look for the forms in which orjson prints a float of integral value; may err on a string.

    Such a number may have been written 1, 1.0 or 1e0, or have been an integer of more than 64
    bits that was rounded to a float on reading.
    """
    # Few texts have a plus sign, and one byte is found much faster than two.
    return (b"+" in printed and b"e+" in printed) or (
        b".0" in printed and (b".0," in printed or b".0}" in printed or b".0]" in printed)
    )


def _parse_exactly(text: str | bytes) -> Any:
    """Parse with every digit. Raises ValueError, BodyError for a duplicate key."""
    return json.loads(
        text,
        object_pairs_hook=_unique_keys,
        parse_float=_fold_number,
        parse_constant=_refuse_constant,
    )


def _parse_surrogates(raw: bytes) -> dict[str, Any]:
    """Parse a body with a lone surrogate, which orjson refuses, as strictly as any other."""
    try:
        body = _parse_exactly(raw.decode())
    except RecursionError:
        raise BodyError("The JSON body of your request is nested too deeply.") from None
    except BodyError:
        raise
    except ValueError as error:
        raise BodyError(f"We could not parse the JSON body of your request: {error}.") from None
    if not isinstance(body, dict):
        raise BodyError("The JSON body of a request must be an object.")
    return body


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is not a JSON number")


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    members = dict(pairs)
    if len(members) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BodyError(
                    f"The JSON body of your request has the key {key[:80]!r} more than once."
                )
            seen.add(key)
    return members


def _fold_number(lexeme: str) -> int | float:
    number = float(lexeme)
    return int(number) if number.is_integer() else number


def keyed(endpoint: Endpoint, body: dict[str, Any]) -> dict[str, Any]:
    """Return the keyed fields of a parsed body, texts folded.

    That is the body itself where there is nothing to leave out or to fold.
    """
    spec = SPECS[endpoint]
    neutral = spec.neutral
    kept = body
    if not neutral.isdisjoint(body):
        kept = {field: value for field, value in body.items() if field not in neutral}
    if spec.turns is not None:
        return _fold_texts(kept, spec.turns, spec.text_type)
    if spec.is_batch:
        match kept.get(spec.question_field):
            case [str() | list() as only]:  # a batch of one is that one
                return {**kept, spec.question_field: only}
    return kept


def canonical_form(endpoint: Endpoint, body: dict[str, Any]) -> bytes:
    """Return the canonical bytes of a parsed body: its keyed fields, in the order of names."""
    return exact_json.dumps(keyed(endpoint, body), sort_keys=True)


def _fold_texts(kept: dict[str, Any], field: str, kind: str | None) -> dict[str, Any]:
    """Write content that is one text part as that text, in a copy."""
    messages = kept.get(field)
    if type(messages) is not list:
        return kept
    for message in messages:
        if type(message) is dict and type(message.get("content")) is list:
            return {**kept, field: [_fold_message(each, kind) for each in messages]}
    return kept


def _fold_message(message: Any, kind: str | None) -> Any:
    if type(message) is not dict or type(message.get("content")) is not list:
        return message
    return {**message, "content": _folded(message["content"], kind)}


def _folded(content: list[Any], kind: str | None) -> Any:
    match content:
        case [{"type": str(given), "text": str(text), **rest}] if given == kind and not rest:
            return text
        case _:
            return content
