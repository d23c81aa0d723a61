"""What headers say of a request: who asks, how urgently, for how long it may wait."""

import hashlib
import math
from collections.abc import Mapping

from backend.scheduler.request import Priority
from backend.server.protocol.errors import ApiError

QUEUE_TIMEOUT = "X-Refrain-Queue-Timeout"
PRIORITY = "X-Refrain-Priority"

_TENANT = ("Authorization", "api-key", "x-api-key", "OpenAI-Organization", "OpenAI-Project")

_PRIORITIES = {priority.name.lower(): priority for priority in Priority}


def kv_salt(headers: Mapping[str, str], client_salt: str | None) -> str:
    """Return the salt of the request's KV blocks; empty where neither tenant nor salt is given.

    A cached prefix is computed faster, so requests that share KV can time one another. A client's
    salt divides its tenant's KV further: it is hashed with the tenant and never replaces it.
    """
    tenant = _tenant_salt(headers)
    if client_salt is None:
        return tenant
    # The tenant's part is empty or 64 characters of hex, so the comma is the first one.
    return hashlib.sha256(f"{tenant},{client_salt}".encode()).hexdigest()


def _tenant_salt(headers: Mapping[str, str]) -> str:
    credentials = [headers.get(name, "") for name in _TENANT]
    if not any(credentials):
        return ""
    # A header holds no NUL.
    return hashlib.sha256("\0".join(credentials).encode(errors="surrogateescape")).hexdigest()


def queue_seconds(headers: Mapping[str, str]) -> float | None:
    """Read how long a request may wait before anything is computed for it. Raises ApiError."""
    text = headers.get(QUEUE_TIMEOUT)
    if text is None:
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ApiError(
            400,
            f"Invalid header '{QUEUE_TIMEOUT}': expected seconds above 0.",
            param=QUEUE_TIMEOUT,
            code="invalid_value",
        )
    return seconds


def priority(headers: Mapping[str, str]) -> Priority:
    """Read the lane that whoever stands before the engine gives a request; any other is normal."""
    return _PRIORITIES.get(headers.get(PRIORITY, ""), Priority.NORMAL)
