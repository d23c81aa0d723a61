"""Who may use the operator's API.

Laws. With a token, any client that sends it may use the API, and so may a browser with a session of
the page. Without a token, only a program on the same host that connects to the gateway directly.
A browser on the host is not enough: a foreign page may send requests to loopback (hence the check
of Origin). It may also use its own name for this address (hence the check of Host). A proxy on the
host forwards requests of any client (hence no forwarded requests).

A browser sends its cookie by itself, so a session changes nothing without its CSRF token. Wrong
tokens from an address count together, whether they come by login or by the API.
"""

import hmac
from collections.abc import Callable, Mapping
from ipaddress import ip_address
from math import ceil
from urllib.parse import urlsplit

from gateway.server.admin.session import CSRF_HEADER, Failures, Sessions

Refusal = tuple[int, str]
"""The status, and what to tell."""

_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})
_READING = frozenset({"GET", "HEAD"})


class AdminAccess:
    """The rules for one gateway. ``token`` is the operator's, None where only this machine may."""

    def __init__(self, token: str | None, now: Callable[[], float], *, ui: bool) -> None:
        self.token = token
        self.now = now
        self.sessions = Sessions(token) if ui and token is not None else None
        """The sessions of the page, None where there is none or nobody has to log in."""
        self._failures = Failures()

    def retry_after(self, peer: str | None) -> int:
        return ceil(self._failures.wait(peer, self.now()))

    def too_many(self, peer: str | None) -> Refusal | None:
        """Return the refusal of an address from which too many wrong tokens came."""
        if (wait := self.retry_after(peer)) == 0:
            return None
        return 429, f"Too many failed logins. Try again in {ceil(wait / 60)} minutes."

    def login_refusal(self, given: str, peer: str | None) -> Refusal | None:
        """Return None when this is the operator's token; a wrong token is noted."""
        if (refused := self.too_many(peer)) is not None:
            return refused
        if self.token is not None and _equal(given, self.token):
            return None
        self._failures.note(peer, self.now())
        return 401, "This is not the operator's token."

    def has_session(self, cookie: str | None) -> bool:
        sessions = self.sessions
        return sessions is not None and cookie is not None and sessions.is_valid(cookie, self.now())

    def refusal(
        self, method: str, headers: Mapping[str, str], cookie: str | None, peer: str | None
    ) -> Refusal | None:
        """Return None when the request may pass.

        ``headers`` are by lower-case name; ``peer`` is the address that the connection came from.
        """
        sessions = self.sessions
        if sessions is None or cookie is None or "authorization" in headers:
            return self._refusal_by_token(headers, peer)
        if not sessions.is_valid(cookie, self.now()):
            return 401, "Your session has ended: log in again."
        if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
            return 403, "A page from elsewhere may not ask."
        if method not in _READING and not sessions.has_csrf(cookie, headers.get(CSRF_HEADER, "")):
            return 403, f"A session's request that changes something needs {CSRF_HEADER}."
        return None

    def _refusal_by_token(self, headers: Mapping[str, str], peer: str | None) -> Refusal | None:
        is_try = self.token is not None and "authorization" in headers
        if is_try and (refused := self.too_many(peer)) is not None:
            return refused
        refused = admin_refusal(self.token, headers, peer)
        if is_try and refused is not None:
            self._failures.note(peer, self.now())
        return refused


def admin_refusal(
    token: str | None, headers: Mapping[str, str], peer: str | None
) -> Refusal | None:
    """Return None when the request may pass without a session."""
    if token is not None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and _equal(given.strip(), token):
            return None
        return 401, "This needs the operator's token: Authorization: Bearer REFRAIN_ADMIN_TOKEN."
    if peer is None or not _is_loopback(peer):
        return 403, "Without REFRAIN_ADMIN_TOKEN set, only this machine may ask."
    for name in _FORWARDED:
        if name in headers:
            return 403, f"A forwarded request ({name}) needs REFRAIN_ADMIN_TOKEN."
    host = headers.get("host", "")
    try:
        host_name, origin = urlsplit(f"//{host}").hostname, urlsplit(headers.get("origin", ""))
    except ValueError:
        return 403, "Host or Origin is no address."
    if host_name not in _LOCAL_NAMES:
        return 403, "Without REFRAIN_ADMIN_TOKEN set, Host must be 127.0.0.1, ::1 or localhost."
    same = origin.scheme in ("http", "https") and origin.netloc.lower() == host.lower()
    if ("origin" in headers and not same) or (
        headers.get("sec-fetch-site", "none") not in ("none", "same-origin")
    ):
        return 403, "A page from elsewhere may not ask."
    return None


def _equal(given: str, token: str) -> bool:
    known = token.encode(errors="surrogateescape")
    return hmac.compare_digest(given.encode(errors="replace"), known)


def _is_loopback(peer: str) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
