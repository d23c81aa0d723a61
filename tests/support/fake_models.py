"""Parts of a served model that is there without being loaded."""

from collections.abc import Awaitable, Callable
from typing import Any


async def nothing_to_close() -> None:
    """The ``close`` of a model that is all fake."""


def at_once(loaded: Any) -> Callable[..., Awaitable[Any]]:
    """The ``load`` of a model that is there already."""

    async def load(_tell: Any) -> Any:
        return loaded

    return load
