"""One upstream of a pool, as the operator declared it."""

import re
from dataclasses import dataclass, field
from fnmatch import translate
from functools import cached_property


@dataclass(frozen=True)
class Member:
    """``models`` are globs; a lower ``tier`` is asked first; limits are this process's share."""

    name: str
    models: tuple[str, ...] = ("*",)
    tier: int = 1
    max_concurrency: int | None = None
    requests_per_minute: int | None = None
    weight: float = field(default=1.0)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(translate(glob) for glob in self.models))

    def serves(self, model: str) -> bool:
        """Tell whether the model is among those declared for it."""
        return self._pattern.match(model) is not None


def serving(members: tuple[Member, ...], model: str) -> tuple[Member, ...]:
    """Return the members for a model, all where none is declared: they say that they know it not.

    So an unknown model is told by an upstream, as everywhere.
    """
    declared = tuple(member for member in members if member.serves(model))
    return declared or members
