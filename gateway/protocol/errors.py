"""Faults, by their cause: the client (4xx), the upstream (502, 504) or the store (never shown).

Outcomes such as a miss or a bypass are values (``cache.lookup``), not exceptions.
"""

from typing import Any

from gateway.protocol.cache_status import Reason


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

    def body(self) -> dict[str, Any]:
        """Return OpenAI's error object, all four keys."""
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
    ``retry_after`` is when to come back, in seconds. ``tried`` are those that failed and why.
    ``detail`` is for the log alone: it may name the upstream and its address.
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
    ) -> None:
        super().__init__(status, message, kind="upstream_error", code=reason.value)
        self.reason = reason
        self.sent = sent
        self.answered = answered
        self.retry_after = retry_after
        self.tried = tried
        self.detail = detail

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


class UnauthorizedError(ClientError):
    """The request bears no key that may be used here."""

    reason = Reason.UNAUTHORIZED

    def __init__(self, message: str) -> None:
        super().__init__(401, message, code="invalid_api_key")
