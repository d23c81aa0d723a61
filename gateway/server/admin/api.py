"""The operator's API below /admin: JSON in, JSON out, every action in the audit log.

Law: an action that cannot be written down is not done, and what was done of one that stopped
half-way is said. The audit log names what was asked and what came of it, never a token, a prompt or
an answer.
"""

import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import asdict
from typing import Any

import orjson
from aiohttp import web

from gateway.cache.append_files import Journal
from gateway.cache.entry import Entry
from gateway.cache.key import identify, scope_ids
from gateway.cache.ports import PositionError, StoreError, UnfinishedError
from gateway.protocol.errors import error_body
from gateway.protocol.headers import folded
from gateway.server.admin.access import admin_refusal
from gateway.server.admin.operations import Operations
from gateway.server.admin.selection import (
    SelectionError,
    parse_selection,
    read_hash,
    read_headers,
    read_holder,
)
from gateway.server.http.compressed_body import read_body

log = logging.getLogger(__name__)

Action = Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]
"""One operation: the request's JSON to the reply's. Raises SelectionError."""

Page = Callable[[], dict[str, Any]]
"""Something to look at."""

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
_LISTED = ("key", "scope", "model", "tag", "rule")


class Admin:
    """HTTP handlers of the operator's API."""

    def __init__(
        self,
        operations: Operations,
        audit_log: Journal,
        *,
        secret: bytes,
        token: str | None,
        holder_of: Callable[[Mapping[str, str]], str | None],
    ) -> None:
        """Serve the operations; ``holder_of`` tells from headers whose gateway key they bear."""
        self._operations = operations
        self._holder_of = holder_of
        self._secret = secret
        self._audit_log = audit_log
        self._token = token

    def add_routes(
        self, app: web.Application, more: Mapping[str, Action], pages: Mapping[str, Page]
    ) -> None:
        """Register the API; ``more`` actions and ``pages`` are by the last part of their path."""
        actions: dict[str, Action] = {
            "purge": self._purge,
            "wrong": self._wrong,
            "audit": self._audit,
            "forget": self._forget,
            "scope": self._scope,
            **more,
        }
        for name, page in pages.items():
            app.router.add_get(f"/admin/{name}", self._guarded(_shown(page)))
        app.router.add_get("/admin/entries", self._guarded(self._list))
        app.router.add_get("/admin/entries/{key}", self._guarded(self._show))
        for name, action in actions.items():
            app.router.add_post(f"/admin/{name}", self._guarded(self._posted(name, action)))
        app.router.add_route("*", "/admin{tail:.*}", self._guarded(_unknown))

    def _guarded(
        self, handle: Callable[[web.Request], Awaitable[web.Response]]
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            headers = folded(request.headers.items())
            refusal = admin_refusal(self._token, headers, _peer(request))
            if refusal is not None:
                status, message = refusal
                return _error(status, message, "permission_error", None)
            try:
                return await handle(request)
            except SelectionError as error:
                return _error(400, str(error), "invalid_request_error", error.field)
            except PositionError:
                told = "after: expected what a list told under after."
                return _error(400, told, "invalid_request_error", "after")
            except StoreError as error:
                return _error(503, f"The store failed: {error}.", "store_error", None)
            except UnfinishedError as error:
                log.error("admin: %s (%s)", error, error.__cause__)  # noqa: TRY400 - no trace
                return _error(500, str(error), "server_error", None)
            except OSError as error:
                log.error("admin: a file cannot be written: %s", error)  # noqa: TRY400 - no trace
                told = "A file in the data directory cannot be written; nothing was done."
                return _error(500, told, "server_error", None)

        return handler

    def _posted(
        self, name: str, action: Action
    ) -> Callable[[web.Request], Awaitable[web.Response]]:
        async def handler(request: web.Request) -> web.Response:
            asked = await _object(request)
            line = {"action": name, "peer": _peer(request), "asked": _named(asked)}
            await self._audit_log.append({"time": time.time(), **line})
            result = await action(asked)
            figures = {"time": time.time(), **line, "result": _figures(result)}
            try:
                await self._audit_log.append(figures)
            except OSError as error:
                told = "The action was done, but its figures are not in the audit log."
                raise UnfinishedError(told) from error
            return _reply(200, result)

        return handler

    async def _list(self, request: web.Request) -> web.Response:
        query = dict(request.query)
        limit = _whole("limit", query.pop("limit", str(DEFAULT_LIMIT)))
        after = query.pop("after", None)
        for field in query:
            if field not in _LISTED:
                allowed = ", ".join((*_LISTED, "limit", "after"))
                raise SelectionError(field, f"one of the parameters {allowed}")
        selection = parse_selection(query or {"all": True})
        cursor = None if after is None else _cursor(after)
        listed = await self._operations.entries(selection, cursor, limit)
        return _reply(
            200,
            {
                "entries": [self._summary(entry) for entry in listed.entries],
                "after": None if listed.after is None else listed.after.hex(),
            },
        )

    async def _show(self, request: web.Request) -> web.Response:
        key = read_hash("key", request.match_info["key"])
        listed = await self._operations.entries(parse_selection({"key": key.hex()}), None, 1)
        if not listed.entries:
            return _error(404, "There is no entry under this key.", "invalid_request_error", "key")
        entry = listed.entries[0]
        shown = self._summary(entry)
        if request.query.get("answer") == "1":
            # Reading what somebody was answered is an action, too.
            line = {"time": time.time(), "action": "show", "asked": {"key": key.hex()}}
            await self._audit_log.append({**line, "peer": _peer(request)})
            shown |= {"question": entry.question, "answer": orjson.Fragment(entry.result)}
        return _reply(200, shown)

    def _summary(self, entry: Entry) -> dict[str, Any]:
        now = self._operations.now()
        return {
            "key": entry.key.hex(),
            "scope": entry.scope.hex(),
            "endpoint": entry.endpoint,
            "model": entry.model,
            "upstream": entry.upstream,
            "rule": entry.rule,
            "tags": entry.tags,
            "generation": entry.generation,
            "stored_at": entry.stored_at,
            "expires_at": entry.expires_at,
            "age": max(0, int(now - entry.stored_at)),
            "ttl": int(entry.expires_at - now),
            "bytes": self._operations.size(entry),
            "tokens": entry.tokens,
            "semantic": entry.question is not None
            and not self._operations.quarantine.holds(entry.key),
        }

    async def _purge(self, asked: dict[str, Any]) -> dict[str, Any]:
        dry_run = _switch(asked, "dry_run", default=True)
        purged = await self._operations.purge(parse_selection(asked), dry_run=dry_run)
        return {"dry_run": dry_run, **asdict(purged)}

    async def _wrong(self, asked: dict[str, Any]) -> dict[str, Any]:
        question = asked.pop("question", None)
        if question is not None and not isinstance(question, str):
            raise SelectionError("question", "the text that was asked")
        key = read_hash("entry", asked.pop("entry", None))
        _nothing_else(asked, "entry, question")
        entry = await self._operations.wrong(key, question)
        return {"entry": key.hex(), "evicted": entry is not None, "semantic": False}

    async def _audit(self, asked: dict[str, Any]) -> dict[str, Any]:
        purge = _switch(asked, "purge", default=False)
        _nothing_else(asked, "purge")
        return asdict(await self._operations.rescan(purge=purge))

    async def _forget(self, asked: dict[str, Any]) -> dict[str, Any]:
        dry_run = _switch(asked, "dry_run", default=True)
        scope = read_hash("scope", asked.pop("scope", None))
        _nothing_else(asked, "scope, dry_run")
        forgotten = await self._operations.forget(scope, dry_run=dry_run)
        return {"dry_run": dry_run, **asdict(forgotten)}

    async def _scope(self, asked: dict[str, Any]) -> dict[str, Any]:
        """Tell the scope ids of whoever sends these headers and names this user."""
        headers, user = asked.pop("headers", {}), asked.pop("user", None)
        given = asked.pop("holder", None)
        _nothing_else(asked, "headers, holder, user")
        lowered = read_headers(headers)
        if not isinstance(user, str | None):
            raise SelectionError("user", "text")
        tenant = identify(lowered, read_holder(given, lowered, self._holder_of))
        ids = scope_ids(self._secret, tenant, () if user is None else (user,))
        return {scope.value: digest.hex() for scope, digest in ids.items()}


def _shown(page: Page) -> Callable[[web.Request], Awaitable[web.Response]]:
    async def handle(_request: web.Request) -> web.Response:
        return _reply(200, page())

    return handle


async def _unknown(request: web.Request) -> web.Response:
    message = f"Unknown request URL: {request.method} {request.path}."
    return _error(404, message, "invalid_request_error", None)


async def _object(request: web.Request) -> dict[str, Any]:
    try:
        body = orjson.loads(await read_body(request))
    except orjson.JSONDecodeError as error:
        raise SelectionError("body", f"a JSON object ({error})") from None
    if not isinstance(body, dict):
        raise SelectionError("body", "a JSON object")
    return body


def _switch(asked: dict[str, Any], field: str, *, default: bool) -> bool:
    value = asked.pop(field, default)
    if not isinstance(value, bool):
        raise SelectionError(field, "true or false")
    return value


def _nothing_else(asked: Mapping[str, Any], fields: str) -> None:
    for field in asked:
        raise SelectionError(field, f"one of the fields {fields}")


def _whole(field: str, text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < len(text) <= 4 and int(text) > 0):
        raise SelectionError(field, f"a whole number from 1 to {MAX_LIMIT}")
    return min(int(text), MAX_LIMIT)


def _cursor(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        raise SelectionError("after", "what a list told under after") from None


_TELLABLE = ("key", "scope", "model", "tag", "rule", "all", "entry", "dry_run", "purge")


def _named(asked: Mapping[str, Any]) -> dict[str, Any]:
    """Keep what an audit log may hold of a request: names and hashes, no text of a prompt."""
    return {name: value for name, value in asked.items() if name in _TELLABLE}


def _figures(result: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in result.items() if not isinstance(value, str | list)}


def _peer(request: web.Request) -> str | None:
    transport = request.transport
    address = None if transport is None else transport.get_extra_info("peername")
    return address[0] if isinstance(address, tuple) else None


def _reply(status: int, value: Any) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    headers = {"Cache-Control": "no-store"}
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _error(status: int, message: str, kind: str, field: str | None) -> web.Response:
    return _reply(status, error_body(message, kind, field, None))
