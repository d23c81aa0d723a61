"""``/v1/rerank``: documents scored by how well each fits a query, as Cohere, Jina and vLLM do it.

Law: a result is stored only if it is complete: as many documents as were asked for, each of them
one that was sent, with a score that is a number.
"""

import math
from collections.abc import Container, Iterator
from typing import Any

from gateway.protocol.endpoints.key_fields import (
    BOOLEAN,
    INTEGER,
    STRING,
    USER,
    Fields,
    Type,
    keyed,
    neutral,
)
from gateway.protocol.endpoints.spec import Body, EndpointSpec, Result, empty_array, require
from gateway.protocol.errors import ClientError
from gateway.protocol.http.cache_status import Reason


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)  # texts and images, as models of both take them


_DOCUMENT = Type("one of a string or object", (str, dict))

_FIELDS: Fields = {
    **keyed(STRING, "model"),
    **keyed(Type(*STRING[:2], _is_object), "query"),
    **keyed(Type("an array of strings or objects", (list,), _is_object), "documents"),
    **keyed(INTEGER, "max_tokens_per_doc", "top_n", "truncate_prompt_tokens"),
    **keyed(BOOLEAN, "return_documents"),
    **neutral(USER, "user"),
}


def _check(body: Body) -> Iterator[ClientError]:
    for name in ("query", "documents"):
        require(body, name)
    documents = body["documents"]
    if not isinstance(documents, list):
        return
    if not documents:
        yield empty_array("documents")
    for place, document in enumerate(documents):
        _DOCUMENT.check(f"documents[{place}]", document)


def _decline(body: Body, result: Any, _finish_reasons: Container[str]) -> Reason | None:
    if not isinstance(result, dict) or not isinstance(result.get("results"), list):
        return Reason.UNKNOWN_SHAPE
    count, top = len(body["documents"]), body.get("top_n")
    found = set[int]()
    for each in result["results"]:
        place = _scored(each)
        if place is None or not 0 <= place < count or place in found:
            return Reason.UNKNOWN_SHAPE
        found.add(place)
    wanted = min(top, count) if top is not None and top > 0 else count  # 0 is all of them for vLLM
    return None if len(found) == wanted else Reason.UNCLEAN


def _scored(result: Any) -> int | None:
    """Return which document is scored, or None where there is no number for it."""
    match result:
        case {"index": place, "relevance_score": score}:
            pass
        case _:
            return None
    numbers = type(place) is int and type(score) in (int, float) and abs(score) < math.inf
    return place if numbers else None


def _usage(result: Result) -> Any:
    match result:
        case {"usage": {"prompt_tokens": int(tokens)} | {"total_tokens": int(tokens)}}:
            return {"prompt_tokens": tokens}
        case {"meta": {"tokens": {"input_tokens": int(tokens)}}}:  # Cohere's
            return {"prompt_tokens": tokens}
        case _:
            return None


SPEC = EndpointSpec(
    fields=_FIELDS,
    as_given=frozenset({"query", "documents"}),
    check=_check,
    recognises=lambda body: "query" in body and "documents" in body,
    operation="rerank",
    prompt_fields=("query", "documents"),
    question_field="query",
    decline=_decline,
    usage=_usage,
    generates=False,
)
