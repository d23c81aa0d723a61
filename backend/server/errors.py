"""What a client is told when a request cannot be answered: OpenAI's error object, all four keys."""

import math
from collections.abc import Mapping
from typing import Any

from backend.ports import OverloadedError, QueueFullError, QueueTimeoutError

INVALID_REQUEST = "invalid_request_error"
RATE_LIMIT = "rate_limit_error"
SERVER_ERROR = "server_error"

_RETRY_SECONDS = "2"


class ApiError(Exception):
    """Ends a request with ``status`` and an error object."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = INVALID_REQUEST,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        """``kind`` is OpenAI's ``type``; ``param`` the path of the field at fault."""
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code
        self.headers = dict(headers or {})

    def body(self) -> dict[str, Any]:
        """Return the reply's JSON."""
        return {
            "error": {
                "message": self.message,
                "type": self.kind,
                "param": self.param,
                "code": self.code,
            }
        }


def unavailable(reason: str) -> ApiError:
    """Return the error of a server that cannot generate now but may soon."""
    return ApiError(
        503,
        f"The server cannot answer yet: {reason}.",
        kind=SERVER_ERROR,
        code="model_not_ready",
        headers={"Retry-After": _RETRY_SECONDS},
    )


def unknown_model(name: str) -> ApiError:
    """Return the error for a model that is not served here."""
    return ApiError(
        404,
        f"The model '{name}' does not exist or you do not have access to it.",
        param="model",
        code="model_not_found",
    )


def cannot_generate(name: str) -> ApiError:
    """Return the error for text wanted of a model that makes embeddings."""
    return ApiError(
        404,
        f"The model '{name}' makes embeddings. This is not a chat model and thus not supported in "
        "the v1/chat/completions, v1/completions and v1/responses endpoints. Did you mean to use "
        "v1/embeddings?",
        param="model",
    )


def cannot_embed(name: str) -> ApiError:
    """Return the error for embeddings wanted of a model that generates text."""
    return ApiError(
        404,
        f"You are not allowed to generate embeddings from this model: '{name}' is not an embedding "
        "model and thus not supported in the v1/embeddings endpoint. Did you mean to use "
        "v1/chat/completions?",
        param="model",
    )


def overloaded(error: OverloadedError) -> ApiError:
    """Return the error of a request that found too many others: 429 at once, 503 after a wait."""
    at_once = isinstance(error, QueueFullError)
    code = "queue_timeout" if isinstance(error, QueueTimeoutError) else "overloaded"
    return ApiError(
        429 if at_once else 503,
        f"The server is overloaded: {error}. Please try again later.",
        kind=RATE_LIMIT if at_once else SERVER_ERROR,
        code="queue_full" if at_once else code,
        headers={"Retry-After": str(max(1, math.ceil(error.retry_after)))},
    )


def engine_failed(reason: str) -> ApiError:
    """Return the error of a generation that broke off through no fault of the client."""
    return ApiError(500, f"The engine failed: {reason}", kind=SERVER_ERROR, code="engine_error")


def internal_error() -> ApiError:
    """Return the error of a defect of ours, which is in the log alone."""
    return ApiError(
        500,
        "The server had an error while processing your request.",
        kind=SERVER_ERROR,
        code="internal_error",
    )
