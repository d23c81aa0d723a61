"""What a request body says: the parts that policy, PII scan and semantic lookup look at."""

from typing import Any

from gateway.protocol.endpoint import Endpoint
from gateway.protocol.endpoints.table import SPECS
from gateway.protocol.text_extraction import names, query_readings, readings

_NAMES = frozenset(
    {"id", "object", "model", "system_fingerprint", "service_tier"}
    | {"user", "safety_identifier", "prompt_cache_key", "metadata"}
)
"""Fields of a result that hold names, which may look random and are no secrets."""


def _all_text(content: Any) -> str | None:
    """Return all text of a message's content, joined by line feeds, or None where it has none."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        return None
    parts = (part for part in content if isinstance(part, dict))
    texts = [part["text"] for part in parts if isinstance(part.get("text"), str)]
    return "\n".join(texts) if texts else None


def last_user_text(endpoint: Endpoint, body: dict[str, Any]) -> str | None:
    """Return all text of the last user turn, or of what is asked where there are no turns, or None.

    All of it, so that text cut into parts does not slip past a policy's rules.
    """
    spec = SPECS[endpoint]
    asked = body.get(spec.question_field)
    if spec.turns is None:
        given = asked or ()
        texts = [given] if isinstance(given, str) else [t for t in given if isinstance(t, str)]
        return "\n".join(texts) if texts else None
    if isinstance(asked, str):
        return asked
    for turn in reversed(_turns(asked)):
        if turn.get("role") == "user":
            return _all_text(turn.get("content"))
    return None


def _turns(asked: Any) -> list[dict[str, Any]]:
    return [turn for turn in asked if isinstance(turn, dict)] if isinstance(asked, list) else []


def system_text(endpoint: Endpoint, body: dict[str, Any]) -> str | None:
    """Return the instructions and the system and developer turns' texts, or None.

    They are joined by line feeds.
    """
    spec = SPECS[endpoint]
    instructions = None if spec.instructions is None else body.get(spec.instructions)
    texts = [instructions] if isinstance(instructions, str) else []
    texts += (
        text
        for turn in _turns(None if spec.turns is None else body.get(spec.turns))
        if turn.get("role") in ("system", "developer")
        and (text := _all_text(turn.get("content"))) is not None
    )
    return "\n".join(texts) if texts else None


def is_readable(endpoint: Endpoint, body: dict[str, Any]) -> bool:
    """Tell whether the prompt is text, which a scan can read.

    A batch of embeddings is taken as it is: what is stored of it are numbers in any case.
    """
    reads = SPECS[endpoint].is_readable
    return reads is None or reads(body)


def prompt_text(endpoint: Endpoint, body: dict[str, Any], query: str) -> str:
    """Return all text that makes the request's key, joined by line feeds, for the PII scan.

    Fields unknown here are among it: some servers take documents or templates that way.
    """
    unread = SPECS[endpoint].neutral | {"model"}
    read = {field: value for field, value in body.items() if field not in unread}
    return "\n".join((*readings(read), *names(body.get("model")), *query_readings(query)))


def names_text(endpoint: Endpoint, body: dict[str, Any]) -> str:
    """Return all text that is sent without being part of the key, for a PII scan of its own."""
    neutral = SPECS[endpoint].neutral
    return "\n".join(names([value for field, value in body.items() if field in neutral]))


def answer_text(endpoint: Endpoint, result: dict[str, Any]) -> str:
    """Return all text of a result, joined by line feeds, for the PII scan.

    Not that of its choices alone: all of it is stored, citations and echoed prompts included.
    """
    bare = SPECS[endpoint].without_vectors
    prose = {field: value for field, value in result.items() if field not in _NAMES}
    said = readings(prose if bare is None else bare(prose))
    return "\n".join((*said, *names([result.get(field) for field in sorted(_NAMES)])))
