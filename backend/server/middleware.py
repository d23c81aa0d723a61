"""Around every handler: failures become error objects, requests are counted and ended."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from http import HTTPStatus

from aiohttp import web
from aiohttp.typedefs import Handler, Middleware

from backend import request_id
from backend.server.event_stream import EventStream
from backend.server.json_reply import json_response
from backend.server.metrics import Metrics
from backend.server.protocol.errors import SERVER_ERROR, ApiError, internal_error

_GIVEN_UP_SECONDS = 0.5
"""From the engine's end to the last byte of an error."""

log = logging.getLogger(__name__)


class InFlight:
    """The requests that are being answered, so that a stopping server can end them."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[object]] = set()

    async def run(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Answer ``request``, known to ``give_up`` while that lasts."""
        task = asyncio.current_task()
        if task is None:
            raise RuntimeError("a handler runs in a task")
        self._tasks.add(task)
        try:
            return await handler(request)
        finally:
            self._tasks.discard(task)

    async def give_up(self, end_engine: Callable[[], Awaitable[None]]) -> None:
        """End the engine, so that open requests fail and their clients are told.

        What does not end even then is cancelled.
        """
        late = set(self._tasks)
        if not late:
            return
        log.warning("%d requests did not end in time and were given up", len(late))
        await end_engine()
        _, stuck = await asyncio.wait(late, timeout=_GIVEN_UP_SECONDS)
        for task in stuck:
            task.cancel()
        if stuck:
            await asyncio.wait(stuck, timeout=_GIVEN_UP_SECONDS)


class RequestObserver:
    """The middleware."""

    def __init__(self, metrics: Metrics, in_flight: InFlight) -> None:
        self._metrics = metrics
        self._in_flight = in_flight

    def middleware(self) -> Middleware:
        """Return what aiohttp wants in ``middlewares``."""

        @web.middleware
        async def observe(request: web.Request, handler: Handler) -> web.StreamResponse:
            return await self._observe(request, handler)

        return observe

    async def _observe(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        resource = request.match_info.route.resource
        endpoint = "other" if resource is None else resource.canonical
        began = time.perf_counter()
        try:
            response = await self._in_flight.run(request, _answering_errors(handler))
        except asyncio.CancelledError:
            self._metrics.count_request(endpoint, "cancelled")
            raise
        except ConnectionResetError as error:
            # A write found out before the cancellation came that the client has left; aiohttp would
            # log it as a failure of ours.
            self._metrics.count_request(endpoint, "cancelled")
            raise asyncio.CancelledError from error
        outcome = _outcome(response)
        self._metrics.count_request(endpoint, outcome)
        if outcome == "ok" and request.method == "POST":
            self._metrics.observe_request(endpoint, time.perf_counter() - began)
        return response


def refuse(status: int, message: str, code: str) -> web.Response:
    """Return the reply to a request that no handler sees, see ``http_server``."""
    error = ApiError(status, message, code=code)
    if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
        error = ApiError(status, message, kind=SERVER_ERROR, code=code)
    headers = {request_id.HEADER: request_id.current()}
    return json_response(error.body(), error.status, headers)


def _outcome(response: web.StreamResponse) -> str:
    if response.status == 503:
        return "unavailable"
    if response.status >= 500 or (isinstance(response, EventStream) and response.failed):
        return "server_error"
    return "client_error" if response.status >= 400 else "ok"


def _answering_errors(handler: Handler) -> Handler:
    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            failure = error
        except web.HTTPException as error:
            failure = _from_http(request, error)
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("%s %s failed", request.method, request.path)
            failure = internal_error()
        return json_response(failure.body(), failure.status, failure.headers)

    return answer


def _from_http(request: web.Request, error: web.HTTPException) -> ApiError:
    where = f"{request.method} {request.path}"
    if isinstance(error, web.HTTPNotFound):
        return ApiError(404, f"Invalid URL ({where})", code="unknown_url")
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return ApiError(
            405,
            f"Not allowed to {request.method} on {request.path} (accepted: {allowed}).",
            code="method_not_supported",
            headers={"Allow": allowed},
        )
    if isinstance(error, web.HTTPRequestEntityTooLarge):
        return ApiError(
            413, f"The request body is too large. {error.text}", code="request_too_large"
        )
    return ApiError(error.status, error.reason)
