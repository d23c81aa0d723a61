"""State in bodies that only the upstream that made it can read: ciphertext, signatures, ids.

An answer brings such values and the next request sends them back, so both are searched alike.
The search goes through all objects at any depth: clients and servers nest these fields differently.
It leaves out arguments of tools, schemas and metadata. A field with such a name means something
else there.

A search visits each object once and no text. That takes a fraction of the time of a search for
names in the bytes: most bytes of a request are texts.
"""

from collections.abc import Mapping
from itertools import islice
from typing import Any

from gateway.protocol.anthropic.calls import split_id

MOST_VALUES = 64
"""Of one body. The newest ones decide, and all before them were made by the same upstream."""

MOST_VISITED = 250_000
"""Members of objects and lists of one body: some milliseconds. No conversation has as many."""

_NAMES = frozenset(
    {
        *("encrypted_content", "encrypted_index", "encrypted_stdout"),
        *("signature", "thought_signature", "thought_signatures", "thoughtSignature"),
        *("reasoning_signature", "thinking_signature", "reasoning_opaque"),
        *("data", "container", "container_id", "vector_store_id", "vector_store_ids"),
        *("file_id", "file_ids", "input_file_id", "output_file_id", "error_file_id"),
        *("training_file", "validation_file", "result_files", "id"),
    }
)
"""Fields that hold one value, or a list of them. An id is one if it carries extra content."""

_ENCRYPTED_DATA = ("redacted_thinking", "reasoning.encrypted")
"""Types of objects whose ``data`` is ciphertext; in others ``data`` is an image or a sound."""

_PASSED_OVER = frozenset(
    {"input_schema", "parameters", "schema", "json_schema", "metadata", "logprobs", "embedding"}
    | {"prompt"}
)
_ARGUMENTS = "input"
"""The arguments of a tool call where it is an object, else the turns of a request."""

_NAMED_ITEMS = ("item_reference", "reasoning")
"""Input items that a server looks up by their ids."""


def named_state(body: Mapping[str, Any]) -> list[str]:
    """Return the values in a request, the newest first."""
    found = _search(body)
    items = body.get("input")
    for item in reversed(items) if isinstance(items, list) else ():
        if isinstance(item, dict) and _has_id(item) and _is_looked_up(item):
            found.append(item["id"])
    return list(islice(filter(None, found), MOST_VALUES))


def made_state(answer: Mapping[str, Any], *, keeps: bool = False) -> list[str]:
    """Return the values in an answer or in an event of one.

    If the server ``keeps`` the answer, its id is among them. So are the ids of its reasoning and of
    its last item: a client that refers to its items names one of these.
    """
    found = _search(answer)
    if keeps:
        whole = answer.get("response", answer)
        named = [whole, answer.get("file")]
        if isinstance(whole, dict):
            output, data = whole.get("output"), whole.get("data")
            items = output if isinstance(output, list) else []
            named += [each for each in items[:-1] if _is_reasoning(each)] + items[-1:]
            named += data if isinstance(data, list) else ()
        found += [each["id"] for each in named if isinstance(each, dict) and _has_id(each)]
    return [value for value in found[:MOST_VALUES] if value]


def _is_looked_up(item: Mapping[str, Any]) -> bool:
    kind = item.get("type")
    # A reference may come without its type.
    return kind in _NAMED_ITEMS if kind is not None else "role" not in item


def _is_reasoning(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "reasoning"


def _has_id(each: Mapping[str, Any]) -> bool:
    return isinstance(each.get("id"), str)


def _search(body: Any) -> list[str]:
    """Return the values below ``body``, from its end on."""
    found: list[str] = []
    left, visited = [body], 0
    while left and len(found) < MOST_VALUES:
        here = left.pop()
        visited += len(here)
        if visited > MOST_VISITED:
            break
        if type(here) is dict:
            if not _NAMES.isdisjoint(here):
                _take(here, found)
            for name, value in here.items():
                is_nested = type(value) is list or (type(value) is dict and name != _ARGUMENTS)
                if is_nested and name not in _PASSED_OVER:
                    left.append(value)
        else:
            left += [each for each in here if type(each) is dict or type(each) is list]
    return found


def _take(here: dict[str, Any], found: list[str]) -> None:
    for name, value in here.items():
        if name not in _NAMES or (name == "data" and here.get("type") not in _ENCRYPTED_DATA):
            continue
        if name == "id" and split_id(value)[1] is None:
            continue
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, list):
            found += [each for each in reversed(value) if isinstance(each, str)]
        elif name == "container" and isinstance(value, dict) and _has_id(value):
            found.append(value["id"])
