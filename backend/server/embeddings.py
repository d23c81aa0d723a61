"""Texts to vectors: POST /v1/embeddings."""

import base64
from collections.abc import Sequence
from typing import Annotated, Any, Literal

import orjson
from aiohttp import web
from pydantic import Field

from backend.ports import EmbeddingShape, EngineError, OverloadedError, PromptEncoder
from backend.server.body import read_request
from backend.server.metrics import Metrics
from backend.server.prompts import encode_each, off_loop
from backend.server.protocol import Closed, only
from backend.server.protocol.errors import engine_failed, invalid, overloaded
from backend.server.protocol.messages import Prompt, each_of
from backend.server.served_model import LoadedEmbedder, ServedModel

ON_LOOP_NUMBERS = 8_192
"""Writing this many as text takes about a millisecond."""

MAX_TOKENS_OF_A_REQUEST = 300_000
"""OpenAI's bound on the inputs of one embeddings request together."""


_INPUT_TYPES = {"search_query": "query", "search_document": "document", "passage": "document"}
"""Cohere's and NVIDIA's names for what sentence-transformers calls a query and a document."""


class EmbeddingRequest(Closed):
    """POST /v1/embeddings."""

    model: str
    input: Prompt
    encoding_format: Literal["float", "base64"] | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None
    prompt_name: str | None = None
    input_type: str | None = None
    add_special_tokens: Annotated[Any, only(True)] = None
    # An input that is too long is refused, not cut.
    truncate_prompt_tokens: Annotated[Any, only(-1)] = None


async def embeddings(model: ServedModel, metrics: Metrics, request: web.Request) -> web.Response:
    """Answer POST /v1/embeddings."""
    body = await read_request(request, EmbeddingRequest)
    loaded = model.require_embedder(body.model)
    shape = loaded.embedder.shape
    dimensions = _dimensions(body.dimensions, shape)
    encoder = _encoder(loaded, body)
    inputs = await input_tokens(encoder, each_of(body.input), max_tokens=shape.max_tokens)
    vectors, num_tokens = await computed(loaded, metrics, inputs)

    def write() -> bytes:
        cut = vectors if dimensions == shape.dimensions else _cut(vectors, dimensions, shape.unit)
        if body.encoding_format == "base64":
            return _reply(body.model, [base64.b64encode(each).decode() for each in cut], num_tokens)
        return _reply(body.model, _floats(cut), num_tokens)

    data = await off_loop(write, len(vectors) * dimensions > ON_LOOP_NUMBERS)
    return web.Response(body=data, content_type="application/json")


async def computed(
    loaded: LoadedEmbedder, metrics: Metrics, inputs: Sequence[tuple[int, ...]]
) -> tuple[list[bytes], int]:
    """Return the engine's vectors, and how many tokens it read. Raises ApiError (429, 500)."""
    try:
        vectors = await loaded.embedder.embed(inputs)
    except OverloadedError as error:
        raise overloaded(error) from error
    except EngineError as error:
        raise engine_failed(str(error)) from error
    num_tokens = sum(map(len, inputs))
    metrics.count_embedded(num_tokens)
    return vectors, num_tokens


async def input_tokens(
    encoder: PromptEncoder, inputs: Sequence[str | tuple[int, ...]], *, max_tokens: int
) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of each input; arrays are taken as they are. Raises ApiError (400)."""
    for position, given in enumerate(inputs):
        if not given:
            param = f"input[{position}]" if len(inputs) > 1 else "input"
            problem = f"Invalid '{param}': input cannot be an empty string."
            raise invalid(problem, param, "empty_string")

    def check(tokens: tuple[int, ...]) -> None:
        if len(tokens) > max_tokens:
            raise invalid(
                f"This model's maximum context length is {max_tokens} tokens, however you "
                f"requested {len(tokens)} tokens ({len(tokens)} in your prompt; 0 for the "
                "completion). Please reduce your prompt; or completion length.",
                "input",
                "context_length_exceeded",
            )

    encoded = await encode_each(encoder, inputs, "input", check)
    total = sum(map(len, encoded))
    if total > MAX_TOKENS_OF_A_REQUEST:
        problem = f"Requested {total} tokens, max {MAX_TOKENS_OF_A_REQUEST} tokens per request."
        raise invalid(problem, "input", "max_tokens_per_request")
    return encoded


def _encoder(loaded: LoadedEmbedder, body: EmbeddingRequest) -> PromptEncoder:
    """Return what puts the prompt before texts that the request names, else the default one."""
    param = "input_type" if body.prompt_name is None else "prompt_name"
    if (name := getattr(body, param)) is None:
        return loaded.encoder
    names = (name,) if body.prompt_name else (name, _INPUT_TYPES.get(name, name))
    for each in names:
        if each in loaded.prompts:
            return loaded.prompts[each]
    there = ", ".join(sorted(loaded.prompts)) or "none"
    raise invalid(f"This model has no prompt for '{name}'. It has: {there}.", param)


def _dimensions(wanted: int | None, shape: EmbeddingShape) -> int:
    if wanted is None or wanted == shape.dimensions:
        return shape.dimensions
    if wanted in shape.shorter:
        return wanted
    if not shape.shorter:
        message = f"This model does not support specifying dimensions; it has {shape.dimensions}."
    else:
        shortest, longest = min(shape.shorter), max(shape.shorter)
        message = (
            f"Invalid value for 'dimensions': {wanted}. This model makes vectors of "
            f"{shape.dimensions}, and shorter ones from {shortest} to {longest} that it was "
            "trained for."
        )
    raise invalid(message, "dimensions")


def _reply(model: str, embeddings: Sequence[Any], num_tokens: int) -> bytes:
    data = [
        {"object": "embedding", "index": index, "embedding": embedding}
        for index, embedding in enumerate(embeddings)
    ]
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    body = {"object": "list", "data": data, "model": model, "usage": usage}
    return orjson.dumps(body, option=orjson.OPT_SERIALIZE_NUMPY)


def _floats(vectors: Sequence[bytes]) -> list[Any]:
    # Written as float32, a number has the digits that it needs and not those of its double.
    import numpy as np  # noqa: PLC0415 - the engine has it in memory; the server alone has not

    return [np.frombuffer(vector, dtype="<f4") for vector in vectors]


def _cut(vectors: Sequence[bytes], dimensions: int, unit: bool) -> list[bytes]:
    """Return the vectors' beginnings, at length 1 again if they had it."""
    import numpy as np  # noqa: PLC0415 - as above

    rows = np.stack([np.frombuffer(vector, dtype="<f4")[:dimensions] for vector in vectors])
    if unit:
        rows = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    return [row.astype("<f4").tobytes() for row in rows]
