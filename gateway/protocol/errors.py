"""Faults, by their cause: the client (4xx), the upstream (502, 504) or the store (never shown).

Outcomes such as a miss or a bypass are values (``cache.lookup``), not exceptions.
"""

from typing import Any

from gateway.protocol.http.cache_status import Reason


class RequestError(Exception):
    """An answer in OpenAI's error form that ends the request."""

    def __init__(
        self,
        status: int,
        message: str,
        *,
        kind: str = "invalid_request_error",
        param: str | None = None,
        code: str | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.kind = kind
        self.param = param
        self.code = code

    def body(self, path: str = "", request_id: str | None = None) -> dict[str, Any]:
        """Return the error as the clients of a path read it: OpenAI's object, all four keys.

        Below ``/v1/messages`` it is Anthropic's, with the request's id if there is one.
        """
        if is_anthropic(path):
            return anthropic_error(self.status, self.message, request_id)
        return error_body(self.message, self.kind, self.param, self.code)


class ClientError(RequestError):
    """The request is at fault; nothing was forwarded."""

    reason = Reason.INVALID_REQUEST


class PromptTooLongError(ClientError):
    """The prompt is longer than the policy's rule lets it be."""

    reason = Reason.PROMPT_TOO_LONG

    def __init__(self, tokens: int, most: int, param: str | None) -> None:
        message = (
            f"This prompt is too long: about {tokens} tokens, and at most {most} are allowed here. "
            "Please shorten it."
        )
        super().__init__(400, message, param=param, code="prompt_too_long")


class UpstreamError(RequestError):
    """The upstream could not be reached, did not answer in time, or broke off.

    ``sent``: the upstream may have received the request. ``answered``: it sent something back.
    ``retry_after`` is when to come back, in seconds. ``tried``: upstreams that failed, and why.
    ``detail`` is for the log alone: it may name the upstream and its address. ``of_model``: only
    requests for this model are refused.
    """

    def __init__(
        self,
        status: int,
        message: str,
        reason: Reason,
        *,
        sent: bool = True,
        answered: bool = False,
        retry_after: float | None = None,
        tried: tuple[tuple[str, Reason], ...] = (),
        detail: str = "",
        of_model: bool = False,
    ) -> None:
        super().__init__(status, message, kind="upstream_error", code=reason.value)
        self.reason = reason
        self.sent = sent
        self.answered = answered
        self.retry_after = retry_after
        self.tried = tried
        self.detail = detail
        self.of_model = of_model

    def again(self) -> "UpstreamError":
        """Return the same for another reader: each raises its own."""
        copy = UpstreamError.__new__(UpstreamError, *self.args)
        copy.__dict__.update(self.__dict__)
        return copy


def error_body(
    message: str, kind: str, param: str | None = None, code: str | None = None
) -> dict[str, Any]:
    """Build ``{"error": {...}}`` with all four keys OpenAI sends."""
    return {"error": {"message": message, "type": kind, "param": param, "code": code}}


_ANTHROPIC_PATH = "/v1/messages"
_SERVER_ERROR = 500
_ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def is_anthropic(path: str) -> bool:
    """Tell whether requests of a path get Anthropic's errors."""
    return path.startswith(_ANTHROPIC_PATH) and path[len(_ANTHROPIC_PATH) :][:1] in ("", "/")


def anthropic_error(status: int, message: str, request_id: str | None = None) -> dict[str, Any]:
    """Build an error in Anthropic's form; its type follows from the status."""
    other = "api_error" if status >= _SERVER_ERROR else "invalid_request_error"
    kind = _ANTHROPIC_TYPES.get(status, other)
    body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    return body if request_id is None else {**body, "request_id": request_id}


class UnauthorizedError(ClientError):
    """The request bears no key that may be used here."""

    reason = Reason.UNAUTHORIZED

    def __init__(self, message: str) -> None:
        super().__init__(401, message, code="invalid_api_key")
