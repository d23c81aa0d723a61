"""The name of this installation, the same in all its processes, by which it knows itself again."""

import os
import secrets
from functools import cache

VARIABLE = "REFRAIN_INSTANCE"
"""Carries the name from parent to child."""


@cache
def instance() -> str:
    """Return the name: what the parent says, or a new one."""
    return os.environ.get(VARIABLE) or secrets.token_hex(6)


@cache
def via() -> str:
    """Return the member that requests to upstreams have in ``Via`` (RFC 9110, 7.6.3)."""
    return f"1.1 refrain-{instance()}"


def has_passed_here(told: str) -> bool:
    """Tell whether a ``Via`` names this installation: the request has been sent by it already."""
    return via() in told
