"""Which models take hints, learned from how their upstreams answer.

Law: hints fail no request. Where they may be why one is refused, it is asked once more without;
who then answers is never told hints again, until the gateway is started anew.
"""

from dataclasses import dataclass, field
from http import HTTPStatus

from gateway.core.hints.cache_key import FIELD
from policies.hints import BreakpointField

MOST_MODELS = 1024
_NAMES = (
    FIELD.encode(),
    b"prompt_cache_retention",
    *(each.value.encode() for each in BreakpointField if each is not BreakpointField.AUTO),
)
_REFUSALS = frozenset({HTTPStatus.BAD_REQUEST, HTTPStatus.UNPROCESSABLE_ENTITY})


@dataclass(slots=True)
class HintsTaken:
    """What is known of each model: that it takes hints, or that it refuses them."""

    known: dict[str, bool] = field(default_factory=dict)

    def refused_by(self, model: str) -> bool:
        """Tell whether it is known to refuse them."""
        return self.known.get(model) is False

    def may_be_why(self, model: str, status: int, answer: bytes) -> bool:
        """Tell whether a request with hints may have been refused for them."""
        if status not in _REFUSALS:
            return False
        return model not in self.known or any(name in answer for name in _NAMES)

    def note(self, model: str, *, taken: bool) -> None:
        """Note that a request with hints was answered, or one only without them."""
        if self.known.get(model) is taken or len(self.known) >= MOST_MODELS:
            return
        self.known[model] = taken
