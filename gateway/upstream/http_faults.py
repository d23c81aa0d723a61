"""What went wrong with an upstream: in general words for clients, exactly for the log.

Law: an error that a client gets names no upstream and no address. The log names both, and what an
operator can do.
"""

import errno
import logging
import time
from collections.abc import Callable
from http import HTTPStatus

from aiohttp import (
    ClientConnectionError,
    ClientConnectorCertificateError,
    ClientConnectorDNSError,
    ClientConnectorError,
    ClientConnectorSSLError,
    ClientResponseError,
    ConnectionTimeoutError,
    ServerTimeoutError,
)
from yarl import URL

from gateway.protocol.cache_status import Reason
from gateway.protocol.errors import UpstreamError

log = logging.getLogger(__name__)

EVERY_SECONDS = 10.0
"""Between two lines of one kind about one upstream."""

_TLS_RECORDS = ("\\x15\\x03", "\\x16\\x03")
"""How a TLS record begins, as a parser's message quotes it."""


def fault_of(error: BaseException, url: URL) -> UpstreamError:
    """Return what a failed call to ``url`` is for clients; ``detail`` is what the log says."""
    match error:
        case ConnectionTimeoutError():
            return UpstreamError(
                504,
                "The upstream did not answer in time.",
                Reason.UPSTREAM_TIMEOUT,
                sent=False,
                detail=f"no connection to {_place(url)} within connect_timeout",
            )
        case ServerTimeoutError() | TimeoutError():
            return UpstreamError(
                504,
                "The upstream did not answer in time.",
                Reason.UPSTREAM_TIMEOUT,
                detail=f"{_place(url)} did not answer within the time that the settings give it",
            )
        case ClientConnectorError() | ClientConnectorCertificateError():
            return UpstreamError(
                502,
                "The upstream could not be reached.",
                Reason.UPSTREAM_UNREACHABLE,
                sent=False,
                detail=_unreachable(error, url),
            )
        case ClientConnectionError() | OSError():
            return UpstreamError(
                502,
                "The upstream closed the connection.",
                Reason.UPSTREAM_BROKE,
                detail=f"{_place(url)} closed the connection before its reply was complete",
            )
        case _:
            return UpstreamError(
                502,
                "The upstream sent a reply that could not be read.",
                Reason.UPSTREAM_BROKE,
                answered=True,
                detail=_unreadable(error, url),
            )


def _place(url: URL) -> str:
    return f"{url.host}:{url.port}"


def _unreachable(error: BaseException, url: URL) -> str:
    match error:
        case ClientConnectorDNSError():
            return f"the host name {url.host} is not known; is it spelt correctly?"
        case ClientConnectorCertificateError():
            return f"the certificate of {_place(url)} is not trusted; is its authority installed?"
        case ClientConnectorSSLError():
            return f"{_place(url)} speaks no TLS that is understood here; is http:// meant?"
        case ClientConnectorError(os_error=OSError(errno=errno.ECONNREFUSED)):
            return f"nothing listens on {_place(url)}; is the server started?"
        case ClientConnectorError(os_error=OSError(strerror=str(text))):
            return f"no connection to {_place(url)}: {text}"
        case _:
            return f"no connection to {_place(url)}"


def _unreadable(error: BaseException, url: URL) -> str:
    text = error.message if isinstance(error, ClientResponseError) else ""
    if url.scheme == "http" and any(record in text for record in _TLS_RECORDS):
        return f"{_place(url)} speaks TLS; is https:// meant?"
    return f"{_place(url)} sent a reply that is not valid HTTP ({type(error).__name__})"


class FailureLog:
    """A line for each failed call to one upstream, at most one of a kind in some seconds."""

    def __init__(self, name: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._name = name
        self._clock = clock
        self._last: dict[Reason, float] = {}
        self._suppressed: dict[Reason, int] = {}

    def failed(self, error: UpstreamError) -> None:
        """Log a call that failed."""
        self._warn(error.reason, error.detail or error.message)

    def answered(self, status: int, content_type: str, *, own_credential: bool) -> None:
        """Log a reply that shows a fault of the upstream or of its settings."""
        if status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            self._warn(Reason.UPSTREAM_STATUS, f"it answered with status {status}")
        elif own_credential and status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
            text = f"it refuses the key that the gateway has for it (status {status})"
            self._warn(Reason.UPSTREAM_STATUS, text)
        elif status == HTTPStatus.OK and content_type == "text/html":
            text = "it answered with a web page; is its URL that of an API?"
            self._warn(Reason.UPSTREAM_STATUS, text)

    def _warn(self, reason: Reason, what: str) -> None:
        now = self._clock()
        if (last := self._last.get(reason)) is not None and now - last < EVERY_SECONDS:
            self._suppressed[reason] = self._suppressed.get(reason, 0) + 1
            return
        self._last[reason] = now
        suppressed = self._suppressed.pop(reason, 0)
        more = f" ({suppressed} more since the last line)" if suppressed else ""
        log.warning("upstream %s: %s%s", self._name, what, more)
