"""Enumerations whose members are found like any other attribute of a class."""

from enum import Enum
from typing import TypeVar

E = TypeVar("E", bound=type[Enum])


def plain_members(enumeration: E) -> E:
    """Keep each member in the class itself, as Python does from 3.12 on.

    Python 3.11 makes a call to find one, and a request meets some twenty.
    """
    for name, member in enumeration.__members__.items():
        type.__setattr__(enumeration, name, member)
    return enumeration
