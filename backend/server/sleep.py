"""``/sleep``, ``/wake_up`` and ``/is_sleeping``, as vLLM names them, behind the admin key."""

import hmac
from collections.abc import Awaitable, Callable

from aiohttp import web

from backend.ports import BusyError, Sleeper, UnavailableError
from backend.server.body import json_response
from backend.server.protocol.errors import ApiError, unavailable
from backend.server.served_model import ServedModel

_LEVELS = {"1": 1, "2": 2}
_PATIENCE = 30.0
_MOST_PATIENCE = 3_600.0

_Handler = Callable[[web.Request], Awaitable[web.Response]]


def add_routes(router: web.UrlDispatcher, model: ServedModel, key: str | None) -> None:
    """Add the three endpoints, which answer to the bearer token ``key`` alone; None adds none."""
    if key is None:
        return

    def guarded(act: Callable[[Sleeper, web.Request], Awaitable[web.Response]]) -> _Handler:
        async def handle(request: web.Request) -> web.Response:
            _authorize(request, key)
            if model.sleeper is None:
                raise unavailable(model.unready_reason or "this model cannot sleep")
            try:
                return await act(model.sleeper, request)
            except UnavailableError as error:
                raise unavailable(str(error)) from error

        return handle

    router.add_post("/sleep", guarded(_sleep))
    router.add_post("/wake_up", guarded(_wake_up))
    router.add_get("/is_sleeping", guarded(_is_sleeping))


async def _sleep(sleeper: Sleeper, request: web.Request) -> web.Response:
    level = _LEVELS.get(request.query.get("level", "1"))
    if level is None:
        raise ApiError(400, "level must be 1 or 2", param="level")
    try:
        patience = float(request.query.get("timeout", _PATIENCE))
    except ValueError:
        patience = -1.0
    if not 0 <= patience <= _MOST_PATIENCE:
        message = f"timeout must be seconds from 0 to {_MOST_PATIENCE:g}"
        raise ApiError(400, message, param="timeout")
    try:
        await sleeper.sleep(level, patience)
    except BusyError as error:
        message = f"The engine cannot sleep: {error} after {patience:g} s."
        raise ApiError(409, message, code="engine_busy") from error
    return await _is_sleeping(sleeper, request)


async def _wake_up(sleeper: Sleeper, request: web.Request) -> web.Response:
    await sleeper.wake()
    return await _is_sleeping(sleeper, request)


async def _is_sleeping(sleeper: Sleeper, _: web.Request) -> web.Response:
    level = sleeper.sleep_level
    return json_response({"is_sleeping": level > 0, "level": level})


def _authorize(request: web.Request, key: str) -> None:
    scheme, _, given = request.headers.get("Authorization", "").partition(" ")
    if scheme.lower() != "bearer" or not hmac.compare_digest(given.strip().encode(), key.encode()):
        raise ApiError(401, "This endpoint needs the admin key.", code="invalid_api_key")
