"""Which headers travel in both directions: end-to-end ones (RFC 9110, 7.6.1); credentials."""

import re
from collections.abc import Iterable
from functools import lru_cache

_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"}
    | {"te", "trailer", "transfer-encoding", "upgrade"}
)
_REQUEST_ONLY_HERE = frozenset({"host", "content-length", "expect"})
"""True of the client's connection, not of ours to the upstream."""

OF_ONE_CONNECTION = _HOP_BY_HOP | _REQUEST_ONLY_HERE
"""Headers of one connection, in lower case: none of them is sent on."""

CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
"""No field may hold these (RFC 9110, 5.5): some parsers accept them, but none can be sent on."""

_ONE_REQUESTS = frozenset(
    {"age", "authentication-info", "cf-ray", "content-length", "content-location", "date", "etag"}
    | {"location", "proxy-authentication-info", "server-timing", "set-cookie", "set-cookie2"}
    | {"traceparent", "tracestate", "www-authenticate"}
)
_ONE_REQUESTS_PARTS = ("request-id", "correlation-id", "trace-id", "ratelimit", "rate-limit")
_ONE_REQUESTS_ENDS = ("-ms", "-cost", "-organization", "-project")
"""Headers about one request only: its client, its quota, its duration."""

_ANYBODYS = frozenset({"content-type", "content-language", "retry-after", "cache-status"})

_OWN_PREFIXES = ("x-refrain-", "refrain-")
"""Of the gateway's own headers."""

_VALUE = r'"(?:[^"\\]|\\.)*+"|[^\s",;]++'
_MEMBER = re.compile(rf"{_VALUE}(?:\s*;\s*[a-z*][\w.*-]*+(?:=(?:{_VALUE}))?)*+", re.ASCII)
_NEXT = re.compile(r"\s*,\s*")
_OWN_NAME = "refrain"

Fields = tuple[tuple[str, str], ...]


def fold_fields(fields: Iterable[tuple[str, str]]) -> dict[str, str]:
    """Return headers by lower-case name; repeated lines are joined (RFC 9110, 5.3).

    What is decided on must be what is forwarded: a second Authorization or Cache-Control line
    counts as much as the first.
    """
    joined: dict[str, str] = {}
    for name, value in fields:
        lower = name.lower()
        joined[lower] = f"{joined[lower]}, {value}" if lower in joined else value
    return joined


def end_to_end(fields: Iterable[tuple[str, str]], *names: str) -> Fields:
    """Drop the fields of one connection, the fields that its ``Connection`` names, and junk.

    Headers in ``names``, in lower case, are dropped as well.
    """
    dropped = _dropped(names)
    rest: list[tuple[str, str]] = []
    connection: list[str] = []
    for each in fields:
        name, value = each
        lower = name.lower()
        if lower not in dropped:
            # No control character is printable, and this is quicker to tell.
            if value.isprintable() or CONTROL.search(value) is None:
                rest.append(each)
        elif lower == "connection":
            connection += value.lower().split(",")
    if not connection:
        return tuple(rest)
    named = frozenset(map(str.strip, connection))
    return tuple([each for each in rest if each[0].lower() not in named])


@lru_cache(maxsize=64)
def _dropped(names: tuple[str, ...]) -> frozenset[str]:
    return _HOP_BY_HOP.union(names)


def request_fields(fields: Iterable[tuple[str, str]], *names: str) -> Fields:
    """Return the headers of a request to send on, the client's own credential among them.

    Headers in ``names``, in lower case, are dropped.
    """
    return end_to_end(fields, *_REQUEST_ONLY_HERE, *names)


def reply_fields(fields: Iterable[tuple[str, str]], *names: str) -> Fields:
    """Return the headers of an upstream's reply that clients get.

    Headers in ``names``, in lower case, are dropped, and headers that only the gateway may send.
    """
    rest = end_to_end(fields, *names)
    return tuple([each for each in rest if each[0][:1] not in "xXrR" or not _is_own(each[0])])


def _is_own(name: str) -> bool:
    """Tell whether only the gateway may send a header. Some clients read _ as -."""
    return name.lower().replace("_", "-").startswith(_OWN_PREFIXES)


def without(fields: Iterable[tuple[str, str]], *names: str) -> Fields:
    """Return the headers without the named ones; the names are in lower case."""
    return tuple([each for each in fields if each[0].lower() not in names])


def as_json(fields: Iterable[tuple[str, str]]) -> Fields:
    """Return the headers of a body that was read as JSON: by another type, it may say more."""
    return (*without(fields, "content-type"), ("Content-Type", "application/json"))


def with_cache_status(fields: Iterable[tuple[str, str]], ours: str, *names: str) -> Fields:
    """Return an upstream's headers with our member at the end of its ``Cache-Status``.

    Headers in ``names``, in lower case, are dropped, and members that name us.
    """
    members: list[str] = []
    rest: list[tuple[str, str]] = []
    for each in fields:
        name, value = each
        lower = name.lower()
        if lower == "cache-status":
            members += _others_members(value)
        elif lower not in names:
            rest.append(each)
    return (*rest, ("Cache-Status", ", ".join((*members, ours))))


def _others_members(cache_status: str) -> list[str]:
    """Return the members that caches of other names have added; none of a list that is broken."""
    members, at, text = list[str](), 0, cache_status.strip()
    while at < len(text):
        member = _MEMBER.match(text, at)
        if member is None:
            return []
        if _OWN_NAME not in member[0].lower():
            members.append(member[0])
        separator = _NEXT.match(text, member.end())
        at = len(text) if separator is None else separator.end()
        if separator is None and member.end() < len(text):
            return []
    return members


def shared_fields(fields: Iterable[tuple[str, str]], *, same_tenant: bool) -> Fields:
    """Return an upstream's headers that are as true of another request that got the same answer.

    If the tenant is another one, only headers that cannot tell anything of the first tenant.
    """
    if not same_tenant:
        return tuple(field for field in fields if field[0].lower() in _ANYBODYS)
    return tuple(field for field in fields if not _is_one_requests(field[0].lower()))


def _is_one_requests(name: str) -> bool:
    return (
        name in _ONE_REQUESTS
        or any(part in name for part in _ONE_REQUESTS_PARTS)
        or name.endswith(_ONE_REQUESTS_ENDS)
    )


CREDENTIALS = ("authorization", "api-key", "x-api-key")
"""Headers in which clients send a key, in lower case."""


def bearer(value: str) -> str:
    """Return the key in the value of a credential header."""
    return (value[7:] if value[:7].lower() == "bearer " else value).strip()


def bears_credential(fields: Iterable[tuple[str, str]]) -> bool:
    """Tell whether a request's header lines have a key among them."""
    return any(value and name.lower() in CREDENTIALS for name, value in fields)


@lru_cache(64)
def media_type(content_type: str) -> str:
    """Return a Content-Type without its parameters, in lower case."""
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type if media_type.count("/") == 1 else "application/octet-stream"
