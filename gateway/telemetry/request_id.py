"""The id by which client, log and upstream speak of one request: the header ``x-request-id``."""

import re
import secrets
from collections.abc import Mapping
from contextvars import ContextVar
from itertools import count

HEADER = "x-request-id"

CURRENT: ContextVar[str] = ContextVar("request_id", default="")
"""The id of the request that is being answered; tasks that it starts have it too."""

_VALID = re.compile(r"[\x21-\x7e]{1,128}")
_OURS = f"req_{secrets.token_hex(6)}-"
_NUMBERS = count(1)


def begin(headers: Mapping[str, str]) -> None:
    """Give the request that begins its id: the client's, if it is printable ASCII, or a new one."""
    given = headers.get(HEADER)
    CURRENT.set(given if given is not None and _VALID.fullmatch(given) else new_id())


def adopt(headers: Mapping[str, str]) -> None:
    """Take over the id that a reply has, unless the client has given one."""
    given = headers.get(HEADER)
    if given is not None and CURRENT.get().startswith(_OURS) and _VALID.fullmatch(given):
        CURRENT.set(given)


def current() -> str:
    """Return the id of the request that is being answered, a new one where it has none yet."""
    return CURRENT.get() or new_id()


def new_id() -> str:
    """Return an id that no other request has."""
    return f"{_OURS}{next(_NUMBERS)}"
