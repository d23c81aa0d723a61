"""The operator's API below /admin: JSON in, JSON out, every action in the audit log.

Laws. ``access`` says who may use it. An action that cannot be written to the audit log is not done.
If an action stops early, the reply names its finished part. The audit log names the fields and the
figures of an action, never a token, a prompt or an answer.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from aiohttp import web

from gateway.cache.append_files import Journal
from gateway.cache.ports import PositionError, StoreError, UnfinishedError
from gateway.protocol.errors import error_body
from gateway.protocol.http.headers import fold_fields
from gateway.server.admin.access import AdminAccess
from gateway.server.admin.explain import Explainer
from gateway.server.admin.operations import (
    SELECTION_FIELDS,
    Fields,
    Operations,
    Selection,
    parse_selection,
    read_hash,
)
from gateway.server.admin.overview import Overview
from gateway.server.admin.policy_editor import PolicyEditor
from gateway.server.admin.recorded_request import InvalidFieldError, read_request
from gateway.server.admin.semantic_report import SemanticOperations
from gateway.server.admin.session import COOKIE
from gateway.server.http.http_server import read_body
from gateway.telemetry.savings import GROUPS, first_day

log = logging.getLogger(__name__)

Action = Callable[[Fields], Awaitable[Fields]]
"""One operation. Raises InvalidFieldError."""

Page = Callable[[], Fields | Awaitable[Fields]]
"""Figures to look at."""

Handle = Callable[[web.Request], Awaitable[Fields]]

DEFAULT_LIMIT = 50
MAX_LIMIT = 1000
_LIST_FILTERS = SELECTION_FIELDS[:-1]
_AUDITED = (*SELECTION_FIELDS, "entry", "dry_run", "purge", "sha256")
"""Fields that the audit log may hold: names and hashes, no text of a prompt."""


class Admin:
    """HTTP handlers of the operator's API; ``add_routes`` is their table."""

    def __init__(
        self,
        operations: Operations,
        semantic: SemanticOperations,
        prefix_hits: Callable[[], Fields],
        usage: Callable[[str, str, str | None], Awaitable[Fields]],
        *,
        overview: Overview,
        events: Callable[[], Awaitable[list[Fields]]],
        policy: PolicyEditor,
        keys: Callable[[], list[dict[str, str]]],
        audit_log: Path,
        access: AdminAccess,
    ) -> None:
        self._operations = operations
        self._explainer = Explainer(operations.pipeline, operations.key_of)
        self._semantic = semantic
        self._prefix_hits = prefix_hits
        self._usage = usage
        self._overview = overview
        self._events = events
        self._policy = policy
        self._keys = keys
        self._audit_log = Journal(audit_log)
        self._access = access

    def add_routes(self, app: web.Application) -> None:
        do = self._operations
        actions: dict[str, Action] = {
            "purge": do.purge,
            "wrong": do.wrong,
            "audit": do.audit,
            "forget": do.forget,
            "scope": do.scope,
            "load": do.load,
            "explain": self._explain,
            "semantic/reset": self._semantic.reset,
            "semantic/judge": self._semantic.judge,
            "policy/check": self._policy.check,
            "policy/replay": self._policy.replay,
            "policy": self._policy.save,
        }
        pages: dict[str, Page] = {
            "prefix-hits": self._show_prefix_hits,
            "keys": self._show_keys,
            "overview": self._overview.page,
            "overview/history": self._overview.history,
            "events": self._list_events,
            "policy": self._policy.page,
            "semantic": self._semantic.latest_report,
            "comparisons": self._semantic.comparisons,
        }
        shown: dict[str, Handle] = {name: partial(_show_page, page) for name, page in pages.items()}
        shown |= {"entries": self._list, "entries/{key}": self._show, "usage": self._show_usage}
        for name, handle in shown.items():
            app.router.add_get(f"/admin/{name}", partial(self._answer, handle))
        for name, action in actions.items():
            handle = partial(self._act, name, action)
            app.router.add_post(f"/admin/{name}", partial(self._answer, handle))
        app.router.add_route("*", "/admin{tail:.*}", partial(self._answer, _refuse_path))

    async def _answer(self, handle: Handle, request: web.Request) -> web.Response:
        headers = fold_fields(request.headers.items())
        cookie, peer = request.cookies.get(COOKIE), peer_of(request)
        refusal = self._access.refusal(request.method, headers, cookie, peer)
        if refusal is not None:
            status, message = refusal
            if status != HTTPStatus.TOO_MANY_REQUESTS:
                return _error(status, message, "permission_error", None)
            reply = _error(status, message, "rate_limit_error", None)
            reply.headers["Retry-After"] = str(self._access.retry_after(peer))
            return reply
        try:
            return _reply(200, await handle(request))
        except InvalidFieldError as error:
            return _error(400, str(error), "invalid_request_error", error.field)
        except PositionError:
            message = "after: expected what a list told under after."
            return _error(400, message, "invalid_request_error", "after")
        except web.HTTPNotFound as error:
            field = "key" if "key" in request.match_info else None
            return _error(404, error.text or "", "invalid_request_error", field)
        except StoreError as error:
            return _error(
                503, f"The store failed: {error}. Try again once it answers.", "store_error", None
            )
        except UnfinishedError as error:
            log.error("admin: %s (%s)", error, error.__cause__)  # noqa: TRY400 - no trace
            return _error(500, str(error), "server_error", None)
        except OSError as error:
            log.error("admin: a file cannot be used: %s", error)  # noqa: TRY400 - no trace
            what = "read" if request.method == "GET" else "written; nothing was done"
            message = f"A file in the data directory cannot be {what}."
            return _error(500, message, "server_error", None)

    async def _act(self, name: str, action: Action, request: web.Request) -> Fields:
        try:
            fields = orjson.loads(await read_body(request))
        except orjson.JSONDecodeError as error:
            raise InvalidFieldError("body", f"a JSON object ({error})") from None
        if not isinstance(fields, dict):
            raise InvalidFieldError("body", "a JSON object")
        audited = {key: value for key, value in fields.items() if key in _AUDITED}
        line = {"action": name, "peer": peer_of(request), "asked": audited}
        await self._audit_log.append({"time": time.time(), **line})
        result = await action(fields)
        told = (key for key in result if key == "sha256" or not isinstance(result[key], str | list))
        figures = {key: result[key] for key in told}
        try:
            await self._audit_log.append({"time": time.time(), **line, "result": figures})
        except OSError as error:
            message = "The action was done, but its figures are not in the audit log."
            raise UnfinishedError(message) from error
        return result

    def _show_prefix_hits(self) -> Fields:
        """Return what the prefix caches of upstreams have found, by rule and model."""
        return self._prefix_hits()

    def _show_keys(self) -> Fields:
        """Return the gateway keys without their secrets."""
        return {"keys": self._keys()}

    async def _list(self, request: web.Request) -> Fields:
        """Return a page of the entries that are selected, with figures of each."""
        query = dict(request.query)
        limit, after = query.pop("limit", str(DEFAULT_LIMIT)), query.pop("after", None)
        if not (limit.isascii() and limit.isdigit() and len(limit) <= 4 and int(limit) > 0):
            raise InvalidFieldError("limit", f"a whole number from 1 to {MAX_LIMIT}")
        for name in query:
            if name not in _LIST_FILTERS:
                allowed = ", ".join((*_LIST_FILTERS, "limit", "after"))
                raise InvalidFieldError(name, f"one of the parameters {allowed}")
        try:
            cursor = None if after is None else bytes.fromhex(after)
        except ValueError:
            raise InvalidFieldError("after", "what a list told under after") from None
        selection = parse_selection(query or {"all": True})
        most = min(int(limit), MAX_LIMIT)
        entries, more = await self._operations.entries(selection, cursor, most)
        listed = [self._operations.summary(entry) for entry in entries]
        return {"entries": listed, "after": None if more is None else more.hex()}

    async def _show(self, request: web.Request) -> Fields:
        """Return one entry; ``answer=1`` adds its question and answer, which is audited."""
        key = read_hash("key", request.match_info["key"])
        entries, _ = await self._operations.entries(Selection(key=key), None, 1)
        if not entries:
            raise web.HTTPNotFound(text="There is no entry under this key.")
        [entry] = entries
        shown = self._operations.summary(entry)
        if request.query.get("answer") == "1":
            # Reading what somebody was answered is an action, too.
            line = {"time": time.time(), "action": "show", "asked": {"key": key.hex()}}
            await self._audit_log.append({**line, "peer": peer_of(request)})
            shown |= {"question": entry.question, "answer": orjson.Fragment(entry.result)}
        return shown

    async def _list_events(self) -> Fields:
        """Return the latest events of all workers, the newest first."""
        return {"events": await self._events()}

    async def _show_usage(self, request: web.Request) -> Fields:
        """Return what was used and saved, by model or another group, since a day."""
        for name in request.query:
            if name not in ("by", "since", "team"):
                raise InvalidFieldError(name, "one of the parameters by, since, team")
        by = request.query.get("by", "model")
        if by not in GROUPS:
            raise InvalidFieldError("by", f"one of {', '.join(GROUPS)}")
        try:
            since = first_day(request.query.get("since"), time.time())
        except ValueError as error:
            raise InvalidFieldError("since", str(error)) from None
        return await self._usage(since, by, request.query.get("team"))

    async def _explain(self, fields: Fields) -> Fields:
        """Return what would become of a request, and why; forward and store nothing."""
        holder = fields.pop("holder", None) if "body" in fields else None
        if not isinstance(holder, str | None):
            raise InvalidFieldError("holder", "the name of a holder of gateway keys")
        if holder is not None:
            # Of many holders, the nearest is found in seconds.
            await asyncio.to_thread(self._operations.check_holder, holder)
        try:
            recorded = read_request(fields, strict=True)
        except InvalidFieldError as error:
            raise InvalidFieldError(error.field or "body", error.expected) from None
        sender = None if holder is None else (holder, self._operations.team_of(holder))
        return await self._explainer.explain(recorded, sender)


async def _show_page(page: Page, _request: web.Request) -> Fields:
    figures = page()
    return figures if isinstance(figures, dict) else await figures


async def _refuse_path(request: web.Request) -> Fields:
    raise web.HTTPNotFound(text=f"Unknown request URL: {request.method} {request.path}.")


def peer_of(request: web.Request) -> str | None:
    """Return the address that a connection came from."""
    transport = request.transport
    address = None if transport is None else transport.get_extra_info("peername")
    return address[0] if isinstance(address, tuple) else None


def _reply(status: int, value: Any) -> web.Response:
    body = orjson.dumps(value, option=orjson.OPT_INDENT_2)
    headers = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
    return web.Response(body=body, status=status, headers=headers, content_type="application/json")


def _error(status: int, message: str, kind: str, field: str | None) -> web.Response:
    return _reply(status, error_body(message, kind, field, None))
