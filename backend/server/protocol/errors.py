"""Why a request cannot be answered: OpenAI's error object, all four keys."""

import math
from collections.abc import Mapping
from typing import Any

from backend.ports import OverloadedError, QueueFullError, QueueTimeoutError

RATE_LIMIT = "rate_limit_error"

_RETRY_SECONDS = "2"


class ApiError(Exception):
    """Ends a request with ``status`` and an error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``param`` is the path of the field at fault."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = RATE_LIMIT if status == 429 else "invalid_request_error"
        if status >= 500:
            self.kind = "server_error"
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        error = {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}
        return {"error": error}


def invalid(message: str, param: str, code: str = "invalid_value") -> ApiError:
    """Return the error of a request whose ``param`` is at fault."""
    return ApiError(400, message, param=param, code=code)


def unavailable(reason: str) -> ApiError:
    """Return the error of a server that cannot generate now but may soon."""
    return ApiError(
        503,
        f"The server cannot answer yet: {reason}.",
        code="model_not_ready",
        headers={"Retry-After": _RETRY_SECONDS},
    )


def overloaded(error: OverloadedError) -> ApiError:
    """Return the error of a request that found too many others: 429 at once, 503 after a wait."""
    at_once = isinstance(error, QueueFullError)
    code = "queue_timeout" if isinstance(error, QueueTimeoutError) else "overloaded"
    return ApiError(
        429 if at_once else 503,
        f"The server is overloaded: {error}. Please try again later.",
        code="queue_full" if at_once else code,
        headers={"Retry-After": str(max(1, math.ceil(error.retry_after)))},
    )


def engine_failed(reason: str) -> ApiError:
    """Return the error of a generation that broke off through no fault of the client."""
    return ApiError(500, f"The engine failed: {reason}", code="engine_error")


def internal_error() -> ApiError:
    """Return the error of a defect of ours, which is in the log alone."""
    message = "The server had an error while processing your request."
    return ApiError(500, message, code="internal_error")
