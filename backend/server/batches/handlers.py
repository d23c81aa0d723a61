"""/v1/files and /v1/batches. What belongs to another tenant is not there."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Literal, TypeVar

from aiohttp import BodyPartReader, web
from aiohttp.http_exceptions import BadHttpMessage
from pydantic import Field

from backend.server.batches.batch import MAX_FILE_BYTES, Batch, StateError, window_seconds
from backend.server.batches.runner import Batches
from backend.server.batches.store import File, RefusedError, Upload
from backend.server.body import json_response, read_request
from backend.server.http_server import STALLED_SECONDS
from backend.server.pipeline import kv_salt
from backend.server.protocol import Closed
from backend.server.protocol.errors import ApiError, invalid
from backend.server.replies import WRITE_SECONDS

UPLOAD_SECONDS = 3600.0
"""The longest upload."""
_CHUNK = 256 * 1024
_MOST_PARTS = 16
_MAX_FIELD = 1024
_SHORTEST, _LONGEST = 3600, 30 * 86_400
"""Seconds in ``expires_after``, as OpenAI bounds them."""
_ANCHOR, _AFTER = "expires_after[anchor]", "expires_after[seconds]"
_PAGES = {"files": 10_000, "batches": 100}
_STATUS = {"file_in_use": 409, "too_many_batches": 429, "batch_storage_full": 413}

Described = TypeVar("Described", File, Batch)
Handler = Callable[[Batches, web.Request], Awaitable[web.StreamResponse]]


class _Expiry(Closed):
    anchor: Literal["created_at"]
    seconds: Annotated[int, Field(ge=_SHORTEST, le=_LONGEST)]


class BatchRequest(Closed):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: Literal["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/embeddings"]
    completion_window: str
    metadata: (
        Annotated[
            dict[Annotated[str, Field(max_length=64)], Annotated[str, Field(max_length=512)]],
            Field(max_length=16),
        ]
        | None
    ) = None
    output_expires_after: _Expiry | None = None


def add_routes(router: web.UrlDispatcher, batches: Batches | None) -> None:
    """Serve both; without ``batches`` each answer says how they are switched on."""
    routes: tuple[tuple[str, str, Handler], ...] = (
        ("POST", "/v1/files", _upload),
        ("GET", "/v1/files", _list_files),
        ("GET", "/v1/files/{id}", _get_file),
        ("GET", "/v1/files/{id}/content", _get_content),
        ("DELETE", "/v1/files/{id}", _delete_file),
        ("POST", "/v1/batches", _create_batch),
        ("GET", "/v1/batches", _list_batches),
        ("GET", "/v1/batches/{id}", _get_batch),
        ("POST", "/v1/batches/{id}/cancel", _cancel_batch),
    )
    for method, path, handler in routes:
        served = _off if batches is None else partial(_served, handler, batches)
        router.add_route(method, path, served)


async def _off(_: web.Request) -> web.Response:
    problem = "This server keeps no files and no batches: start it with --batch-dir DIR."
    raise ApiError(404, problem, code="batches_off")


async def _served(handler: Handler, batches: Batches, request: web.Request) -> web.StreamResponse:
    try:
        return await handler(batches, request)
    except RefusedError as error:
        raise ApiError(_STATUS.get(error.code, 400), error.message, code=error.code) from None


def _owner(request: web.Request) -> str:
    return kv_salt(request.headers, None)


@dataclass(slots=True)
class _Form:
    """What came of an upload besides its file."""

    fields: dict[str, str] = field(default_factory=dict)
    filename: str | None = None

    def check(self, keep_seconds: int) -> int:
        """Return for how many seconds the file is kept. Raises ApiError."""
        purpose = self.fields.pop("purpose", None)
        if purpose is None or self.filename is None:
            param = "file" if purpose else "purpose"
            problem = f"Missing required parameter: '{param}'."
            raise invalid(problem, param, "missing_required_parameter")
        if purpose != "batch":
            problem = f"Invalid value: '{purpose}'. Supported values are: 'batch'."
            raise invalid(problem, "purpose")
        anchor, seconds = self.fields.pop(_ANCHOR, None), self.fields.pop(_AFTER, None)
        for name in self.fields:
            raise invalid(f"Unknown parameter: '{name[:100]}'.", name[:100], "unknown_parameter")
        if anchor is seconds is None:
            return keep_seconds
        is_number = seconds is not None and seconds.isascii() and seconds.isdigit()
        wanted = int(seconds) if is_number and seconds and len(seconds) < 10 else 0
        if anchor != "created_at" or not _SHORTEST <= wanted <= _LONGEST:
            problem = (
                "Invalid 'expires_after': expected the anchor 'created_at' and "
                f"{_SHORTEST} to {_LONGEST} seconds."
            )
            raise invalid(problem, "expires_after")
        return min(wanted, keep_seconds)


async def _upload(batches: Batches, request: web.Request) -> web.Response:
    store = batches.store
    if request.content_type != "multipart/form-data" or "Content-Encoding" in request.headers:
        problem = "Send the file as multipart/form-data, without a Content-Encoding."
        raise ApiError(415, problem, code="unsupported_media_type")
    upload = await store.run(store.upload)
    close = {"Connection": "close"}
    try:
        async with asyncio.timeout(UPLOAD_SECONDS):
            form = await _read_form(batches, request, upload)
        seconds, now = form.check(store.keep_seconds), int(store.clock())
        described = File(
            id=upload.id,
            owner=_owner(request),
            filename=form.filename or "",
            purpose="batch",
            bytes=upload.size,
            created_at=now,
            expires_at=now + seconds,
        )
        await store.run(upload.save, described)
    except TimeoutError:
        problem = "The body of your request did not come in time."
        raise ApiError(408, problem, code="timeout", headers=close) from None
    except (ValueError, BadHttpMessage, web.RequestPayloadError) as error:
        raise ApiError(400, "The form could not be read.", headers=close) from error
    finally:
        store.later(upload.discard)
    return json_response(described.body())


async def _read_form(batches: Batches, request: web.Request, upload: Upload) -> _Form:
    form = _Form()
    reader = await request.multipart()
    for _ in range(_MOST_PARTS):
        async with asyncio.timeout(STALLED_SECONDS):
            part = await reader.next()
        if part is None:
            return form
        if not isinstance(part, BodyPartReader) or part.name is None:
            raise ValueError("a part has no name")
        if part.name != "file":
            written = b"".join([piece async for piece in _pieces(part, _MAX_FIELD)])
            form.fields[_utf8(part.name)] = written.decode()
        elif form.filename is not None:
            raise invalid("Send one file at a time.", "file")
        else:
            form.filename = _utf8(part.filename or "file")[:_MAX_FIELD]
            async for piece in _pieces(part, MAX_FILE_BYTES):
                await batches.store.run(upload.write, piece)
    raise ValueError("there are too many parts")


def _utf8(name: str) -> str:
    """Return ``name`` without the surrogates that stand for bytes of another encoding."""
    return name.encode(errors="replace").decode()


async def _pieces(part: BodyPartReader, most: int) -> AsyncIterator[bytes]:
    """Yield a part. Raises ApiError (413), TimeoutError."""
    size = 0
    while True:
        async with asyncio.timeout(STALLED_SECONDS):
            piece = await part.read_chunk(_CHUNK)
        if not piece:
            return
        size += len(piece)
        if size > most:
            problem = f"'{part.name}' is too large: at most {most} bytes are taken."
            raise ApiError(413, problem, param=part.name, code="request_too_large")
        yield bytes(piece)


def _find_file(batches: Batches, request: web.Request, file_id: str) -> File | None:
    file = batches.store.files.get(file_id)
    is_there = file is not None and file.expires_at > batches.store.clock()
    return file if file and is_there and file.owner == _owner(request) else None


def _require_file(batches: Batches, request: web.Request) -> File:
    file = _find_file(batches, request, request.match_info["id"])
    if file is None:
        raise ApiError(404, "No such File object.", param="id", code="not_found")
    return file


def _require_batch(batches: Batches, request: web.Request) -> Batch:
    batch = batches.store.batches.get(request.match_info["id"])
    if batch is None or batch.owner != _owner(request):
        raise ApiError(404, "No such Batch object.", param="id", code="not_found")
    return batch


async def _list_files(batches: Batches, request: web.Request) -> web.Response:
    purpose, now = request.query.get("purpose"), batches.store.clock()
    owner = _owner(request)
    files = [
        file
        for file in list(batches.store.files.values())
        if file.owner == owner and file.expires_at > now and purpose in (None, file.purpose)
    ]
    return _page(request, "files", files, usual=10_000)


async def _get_file(batches: Batches, request: web.Request) -> web.Response:
    return json_response(_require_file(batches, request).body())


async def _get_content(batches: Batches, request: web.Request) -> web.StreamResponse:
    described = _require_file(batches, request)
    try:
        file = await batches.store.run(batches.store.reader, described.id)
    except FileNotFoundError:  # it was deleted at this moment
        raise ApiError(404, "No such File object.", param="id", code="not_found") from None
    response = web.StreamResponse(headers={"Content-Type": "application/octet-stream"})
    response.content_length = described.bytes
    try:
        await response.prepare(request)
        while chunk := await batches.store.run(file.read, _CHUNK):
            async with asyncio.timeout(WRITE_SECONDS):
                await response.write(chunk)
        await response.write_eof()
    except TimeoutError as error:
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the client does not read") from error
    finally:
        batches.store.later(file.close)
    return response


async def _delete_file(batches: Batches, request: web.Request) -> web.Response:
    file = _require_file(batches, request)
    await batches.store.run(batches.store.delete, file.id)
    return json_response({"id": file.id, "object": "file", "deleted": True})


async def _create_batch(batches: Batches, request: web.Request) -> web.Response:
    body = await read_request(request, BatchRequest)
    store, now = batches.store, int(batches.store.clock())
    seconds = window_seconds(body.completion_window)
    if seconds is None:
        problem = "Invalid 'completion_window': expected a time such as 24h, 90m or 7d."
        raise invalid(problem, "completion_window")
    file = _find_file(batches, request, body.input_file_id)
    if file is None or file.purpose != "batch":
        problem = "Invalid 'input_file_id': there is no such file with the purpose 'batch'."
        raise invalid(problem, "input_file_id")
    expiry = body.output_expires_after
    batch = Batch(
        id=f"batch_{store.new_digits()}",
        owner=file.owner,
        endpoint=body.endpoint,
        input_file_id=file.id,
        completion_window=body.completion_window,
        created_at=now,
        expires_at=now + seconds,
        metadata=body.metadata,
        result_seconds=min(expiry.seconds if expiry else store.keep_seconds, store.keep_seconds),
    )
    await asyncio.shield(batches.create(batch))
    return json_response(batch.body())


async def _list_batches(batches: Batches, request: web.Request) -> web.Response:
    owner = _owner(request)
    every = [each for each in list(batches.store.batches.values()) if each.owner == owner]
    return _page(request, "batches", every, usual=20)


async def _get_batch(batches: Batches, request: web.Request) -> web.Response:
    return json_response(_require_batch(batches, request).body())


async def _cancel_batch(batches: Batches, request: web.Request) -> web.Response:
    batch = _require_batch(batches, request)
    try:
        # A client that leaves has cancelled nevertheless.
        batch = await asyncio.shield(batches.cancel(batch.id))
    except StateError:
        problem = f"Cannot cancel a batch with status '{batches.store.batches[batch.id].status}'."
        raise ApiError(409, problem, code="invalid_state") from None
    return json_response(batch.body())


def _page(
    request: web.Request, kind: str, every: Sequence[Described], *, usual: int
) -> web.Response:
    """Return a page of a list, the newest first. Raises ApiError."""
    query, most = request.query, _PAGES[kind]
    limit = query.get("limit", str(usual))
    if not (limit.isascii() and limit.isdigit() and len(limit) < 7 and 1 <= int(limit) <= most):
        raise invalid(f"Invalid 'limit': expected a whole number from 1 to {most}.", "limit")
    if (order := query.get("order", "desc")) not in ("asc", "desc"):
        raise invalid("Invalid 'order': expected 'asc' or 'desc'.", "order")
    ordered = sorted(every, key=lambda each: (each.created_at, each.id), reverse=order == "desc")
    start = 0
    if (after := query.get("after")) is not None:
        start = next((at for at, each in enumerate(ordered, 1) if each.id == after), -1)
        if start < 0:
            raise invalid(f"Invalid 'after': no such id in the list of {kind}.", "after")
    page = ordered[start : start + int(limit)]
    return json_response(
        {
            "object": "list",
            "data": [each.body() for each in page],
            "first_id": page[0].id if page else None,
            "last_id": page[-1].id if page else None,
            "has_more": start + len(page) < len(ordered),
        }
    )
