"""Pairs of texts to scores: POST /v1/rerank (Cohere's, Jina's, vLLM's) and /v1/score (vLLM's)."""

import struct
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, Tag

from backend.ports import Pair
from backend.server.body import json_response, read_request
from backend.server.embeddings import computed
from backend.server.metrics import Metrics
from backend.server.prompts import TOO_LONG, each_off_loop
from backend.server.protocol import Closed, Strict, one_of, only
from backend.server.protocol.errors import ApiError, invalid
from backend.server.protocol.messages import MAX_PROMPTS
from backend.server.served_model import ServedModel

MAX_CHARACTERS = 16 * 1024 * 1024
"""Of all pairs of a request: one text may be in each of them."""

MAX_CHARACTERS_OF_A_PAIR = 1024 * 1024
"""Several times what the longest context takes; to make tokens of it takes a second or two."""

_PAIRS_AT_A_TIME = 16
_CHARACTERS_AT_A_TIME = 128 * 1024
"""Others wait for the tokenizer until these have their tokens."""


class Document(Strict):
    """A document as Cohere writes it."""

    text: str


class PairRequest(Closed):
    """What both endpoints take."""

    model: str
    # A pair that is too long is refused, or cut to the context.
    truncate_prompt_tokens: Annotated[Any, only(-1)] = None


AnyDocument = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Document, Tag("<document>")],
    one_of("one of a string or an object", text=str, document=dict),
]
_MANY = Field(min_length=1, max_length=MAX_PROMPTS, fail_fast=True)
Texts = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[list[str], _MANY, Tag("<texts>")],
    one_of("one of a string or an array of strings", text=str, texts=list),
]


class RerankRequest(PairRequest):
    """POST /v1/rerank."""

    query: Annotated[str, Field(min_length=1)]
    documents: Annotated[list[AnyDocument], _MANY]
    top_n: Annotated[int, Field(ge=0)] | None = None  # 0 is all of them, as for vLLM
    return_documents: bool | None = None


class ScoreRequest(PairRequest):
    """POST /v1/score: one text with each of the others, or as many with as many."""

    text_1: Texts
    text_2: Texts


async def rerank(model: ServedModel, metrics: Metrics, request: web.Request) -> web.Response:
    """Answer POST /v1/rerank."""
    body = await read_request(request, RerankRequest)
    texts = [each if isinstance(each, str) else each.text for each in body.documents]
    pairs = [(body.query, text) for text in texts]
    scores, reply = await _scores(model, metrics, body, pairs, "documents[{}]".format)

    def result(index: int) -> dict[str, Any]:
        document = {"document": {"text": texts[index]}} if body.return_documents else {}
        return {"index": index, "relevance_score": scores[index], **document}

    best = sorted(range(len(scores)), key=scores.__getitem__, reverse=True)
    results = [result(index) for index in best[: body.top_n or None]]
    return json_response({"id": f"rerank-{uuid.uuid4().hex}", **reply, "results": results})


async def score(model: ServedModel, metrics: Metrics, request: web.Request) -> web.Response:
    """Answer POST /v1/score."""
    body = await read_request(request, ScoreRequest)
    first, second = (
        [given] if isinstance(given, str) else given for given in (body.text_1, body.text_2)
    )
    if len(first) not in (1, len(second)):
        problem = "'text_1' must have one text, or as many as 'text_2'."
        raise invalid(problem, "text_1", "invalid_parameter_combination")
    pairs = list(zip(first * (len(second) // len(first)), second, strict=True))
    param = "text_2" if isinstance(body.text_2, str) else "text_2[{}]"
    scores, reply = await _scores(model, metrics, body, pairs, param.format)
    data = [{"index": at, "object": "score", "score": value} for at, value in enumerate(scores)]
    head = {"id": f"score-{uuid.uuid4().hex}", "object": "list", "created": int(time.time())}
    return json_response({**head, **reply, "data": data})


async def _scores(
    model: ServedModel,
    metrics: Metrics,
    body: PairRequest,
    pairs: Sequence[tuple[str, str]],
    param: Callable[[int], str],
) -> tuple[list[float], dict[str, Any]]:
    """Return each pair's score, and the fields that both replies have. Raises ApiError."""
    loaded = model.require_reranker(body.model)
    most, cut = loaded.max_model_len, body.truncate_prompt_tokens is not None
    sizes = [len(first) + len(second) for first, second in pairs]
    if sum(sizes) > MAX_CHARACTERS or max(sizes) > MAX_CHARACTERS_OF_A_PAIR:
        problem = (
            f"The pairs are too large: at most {MAX_CHARACTERS} characters are read, and "
            f"{MAX_CHARACTERS_OF_A_PAIR} of one pair."
        )
        raise ApiError(413, problem, code="request_too_large")

    def encode(span: tuple[int, int]) -> list[Pair]:
        start, stop = span
        encoded = loaded.encode_pairs(pairs[start:stop], cut)
        for index, pair in enumerate(encoded, start):
            if len(pair) > most:
                problem = (
                    f"This model's maximum context length is {most} tokens, and this pair has "
                    f"{len(pair)}. Please reduce it, or set 'truncate_prompt_tokens' to -1."
                )
                raise invalid(problem, param(index), TOO_LONG)
        return encoded

    portions = list(_portions(sizes))
    encoded = [pair for part in await each_off_loop(encode, portions, True) for pair in part]
    vectors, num_tokens = await computed(loaded, metrics, encoded)
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    scores = [struct.unpack("<f", vector)[0] for vector in vectors]
    return scores, {"model": body.model, "usage": usage}


def _portions(sizes: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Cut pairs of these numbers of characters into spans; a large pair is one by itself."""
    start = total = 0
    for index, size in enumerate(sizes):
        total += size
        is_full = index - start == _PAIRS_AT_A_TIME or total > _CHARACTERS_AT_A_TIME
        if is_full and index > start:
            yield start, index
            start, total = index, size
    yield start, len(sizes)
