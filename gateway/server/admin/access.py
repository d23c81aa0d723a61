"""Who may use the operator's API.

Law: with a token, whoever has it; without one, only a program on this very machine that speaks to
the gateway directly. A browser on this machine is not enough: a page from elsewhere may send
requests to loopback (hence Origin) or under its own name for this address (hence Host), and a
proxy on this machine speaks for anybody (hence no forwarded requests).
"""

import hmac
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

_FORWARDED = ("forwarded", "via", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
_LOCAL_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})


def admin_refusal(
    token: str | None, headers: Mapping[str, str], peer: str | None
) -> tuple[int, str] | None:
    """Return None when the request may pass, else the status and what to tell.

    ``headers`` are by lower-case name; ``peer`` is the address that the connection came from.
    """
    if token is not None:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        known = hmac.compare_digest(given.strip().encode(errors="replace"), token.encode())
        if scheme.lower() == "bearer" and known:
            return None
        return 401, "This needs the operator's token: Authorization: Bearer REFRAIN_ADMIN_TOKEN."
    if peer is None or not _is_loopback(peer):
        return 403, "Without REFRAIN_ADMIN_TOKEN set, only this machine may ask."
    for name in _FORWARDED:
        if name in headers:
            return 403, f"A forwarded request ({name}) needs REFRAIN_ADMIN_TOKEN."
    if _host(f"//{headers.get('host', '')}") not in _LOCAL_NAMES:
        return 403, "Without REFRAIN_ADMIN_TOKEN set, Host must be 127.0.0.1, ::1 or localhost."
    origin = headers.get("origin")
    if origin is not None and _netloc(origin) != headers.get("host", "").lower():
        return 403, "A page from elsewhere may not ask."
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return 403, "A page from elsewhere may not ask."
    return None


def _netloc(url: str) -> str | None:
    """Return host and port of a URL in lower case, or None where it has none."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return None
    return parts.netloc.lower() if parts.scheme in ("http", "https") else None


def _host(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


def _is_loopback(peer: str) -> bool:
    try:
        address = ip_address(peer)
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
