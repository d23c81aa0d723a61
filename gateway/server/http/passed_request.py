"""What a request that passes through names: its models are read in its body, its path, its query.

Law: where a client's key is restricted, all of the body is read, and what cannot be read is
refused. Other bodies go on unread where they cannot be read, or are too large to be held.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from aiohttp import web

from gateway.prompts.json_splice import Places, with_field
from gateway.protocol.endpoints.maker_state import named_state
from gateway.protocol.errors import ClientError
from gateway.protocol.exact_json import BodyError, parse_body
from gateway.protocol.http.form import MOST_PARTS, Form, Part, boundary_of, is_form
from gateway.protocol.http.paths import ApiPath
from gateway.protocol.named_models import (
    models_in,
    models_in_batch,
    models_in_file,
    models_in_head,
    names_model,
)
from gateway.protocol.tokens import ATTACHMENT_TOKENS, text_tokens, tokens_in
from gateway.upstream.wire.passed_body import PassedBody

_ON_LOOP_BYTES = 2**16
"""More is parsed in a thread."""

_UNREAD = re.compile("/v1/(?:files|uploads)(?:/.*)?")
"""Paths whose requests name no model, unless they are JSON: large files need not be held."""

_FILES, _UPLOADS = "/v1/files", "/v1/uploads"


@dataclass(frozen=True, slots=True)
class Passed:
    """A request that passes through; ``models`` and ``state`` are all that it names.

    ``tokens`` estimates its prompt, where its body was read whole.
    """

    body: PassedBody | None
    models: tuple[str, ...] = ()
    tokens: int = 0
    state: Sequence[str] = ()

    @property
    def model(self) -> str:
        """The model that the request is for, empty if it names none."""
        return self.models[0] if self.models else ""


async def read_passed(
    request: web.Request,
    path: ApiPath,
    pieces: AsyncIterator[bytes],
    *,
    whole: bool,
) -> Passed:
    """Return what a request names; its body comes in ``pieces``. Raises ClientError.

    ``whole`` says that its key is restricted.
    """
    in_head = models_in_head(request.query_string, request.headers if whole else {})
    if not path.deployment:
        in_head.insert(0, path.model)
    if not request.can_read_body:
        return Passed(None, _named([path.model, *in_head]))
    length = request.content_length if "Content-Encoding" not in request.headers else None
    kind = request.headers.get("Content-Type", "")
    is_unread = _UNREAD.fullmatch(path.path) is not None and "json" not in kind.lower()
    if is_unread and not whole:
        return Passed(PassedBody(rest=pieces, length=length), _named([path.model, *in_head]))
    reader = _Reader(request, pieces, length, path, whole=whole)
    if is_form(kind):
        passed = await reader.read_form(kind)
    elif whole or not kind or "json" in kind.lower():
        passed = await reader.read_json()
    else:
        passed = Passed(PassedBody(rest=pieces, length=length))
    # If the body names a model, the deployment does not count, as on the cached endpoints.
    models = _named([*(passed.models or [path.deployment]), *in_head])
    return replace(passed, models=models)


def _named(models: list[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, models)))


def _unreadable(why: str) -> ClientError:
    return ClientError(
        400, f"The body of your request cannot be read, which this API key requires: {why}."
    )


@dataclass(frozen=True, slots=True)
class _Reader:
    request: web.Request
    pieces: AsyncIterator[bytes]
    length: int | None
    path: ApiPath
    whole: bool

    async def read_json(self) -> Passed:
        raw = b"".join([piece async for piece in self._bounded()])
        try:
            body = await _in_thread(parse_body, raw)
        except BodyError as error:
            if self.whole:
                raise _unreadable(str(error)) from None
            return Passed(PassedBody(raw, length=len(raw)))
        if (
            self.whole
            and self.path.path == _UPLOADS
            and _is_for_batch("purpose", body.get("purpose"))
        ):
            raise _unreadable("upload the file of a batch to /v1/files in one piece")
        model = body.get("model")
        if model is None and self.path.deployment:
            model = self.path.deployment
            body, raw = with_field(body, raw, "model", model)
        places = []
        if isinstance(model, str):
            places = [await _in_thread(lambda raw: Places(raw, body).span(("model",)), raw)]
        named = model if isinstance(model, str) else ""
        passed = PassedBody(raw, None, len(raw), named, places, is_json=True)
        tokens = 0
        if self.whole:
            tokens = await _in_thread(lambda _: text_tokens(body.values(), data_urls=True), raw)
        continued = [body.get("previous_response_id"), body.get("conversation")]
        state = [*(each for each in continued if isinstance(each, str)), *named_state(body)]
        return Passed(passed, tuple(models_in(body)), tokens, state)

    async def read_form(self, kind: str) -> Passed:
        """Read a form, to its model or to its end. Raises ClientError."""
        boundary = boundary_of(kind)
        form = Form(boundary or b"")
        form.is_broken = boundary is None
        model: Part | None = None
        async for piece in self._bounded() if self.whole else self.pieces:
            form.feed(piece)
            model = next((one for one in form.parts if one.name == "model" and one.end >= 0), None)
            is_enough = form.is_broken or len(form.data) > self.request.client_max_size
            if not self.whole and (is_enough or model is not None):
                break
        if self.whole and (form.is_broken or not form.is_over):
            expected = f"at most {MOST_PARTS:,} fields, each with a plain name"
            raise _unreadable(f"expected JSON, or multipart/form-data of {expected}")
        first, length = bytes(form.data), len(form.data) if self.whole else self.length
        rest = None if self.whole else self.pieces
        body = PassedBody(first, rest, length)
        name = self.path.deployment
        if model is not None:
            name = form.value(model)
            body = PassedBody(first, rest, length, name, [(model.start, model.end)])
        elif name and boundary is not None and not form.is_broken:
            head = b'--%b\r\nContent-Disposition: form-data; name="model"\r\n\r\n' % boundary
            value = name.encode()
            added = b"%b%b\r\n" % (head, value)
            length = None if length is None else length + len(added)
            span = (len(head), len(head) + len(value))
            body = PassedBody(added + first, rest, length, name, [span])
        return await self._read_fields(form, body) if self.whole else Passed(body, (body.model,))

    async def _read_fields(self, form: Form, body: PassedBody) -> Passed:
        """Return what all the fields say of a form that was read whole. Raises ClientError."""
        texts = [(part.name, form.value(part)) for part in form.parts if not part.is_file]
        models = [body.model, *(text for name, text in texts if names_model(name))]
        files = [part for part in form.parts if part.is_file]
        tokens = text_tokens(text for _, text in texts) + ATTACHMENT_TOKENS * len(files)
        if self.path.path == _FILES:
            is_batch = any(_is_for_batch(*each) for each in texts)
            read = models_in_batch if is_batch else models_in_file
            if is_batch:
                tokens = sum(tokens_in(each.end - each.start) for each in files)
            try:
                for file in files:
                    models += await _in_thread(read, bytes(form.data[file.start : file.end]))
            except BodyError as error:
                raise _unreadable(str(error)) from None
        return Passed(body, tuple(models), tokens)

    async def _bounded(self) -> AsyncIterator[bytes]:
        size, most = 0, self.request.client_max_size
        async for piece in self.pieces:
            size += len(piece)
            if size > most:
                raise web.HTTPRequestEntityTooLarge(most)
            yield piece


def _is_for_batch(field: str, value: Any) -> bool:
    return field == "purpose" and isinstance(value, str) and value.strip().lower() == "batch"


async def _in_thread(read: Any, raw: bytes) -> Any:
    return await asyncio.to_thread(read, raw) if len(raw) > _ON_LOOP_BYTES else read(raw)
