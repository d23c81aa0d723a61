"""Prompts that are being computed: who comes with the same beginning waits for the first of them.

Law: a block is computed by one request of a replica at a time, as far as waiting can see to it.
Nobody waits behind who waits, nor behind a lower priority, nor for a few blocks, nor for long.
"""

from collections.abc import Sequence

from gateway.core.routing import Sent, Wait

LEAST_BLOCKS = 8
"""Computing so many blocks twice costs less than waiting does."""

MOST_SECONDS = 2.0


class ColdPrefixes:
    """The blocks that are being computed, each with who does it; not thread-safe."""

    def __init__(
        self, *, least_blocks: int = LEAST_BLOCKS, most_seconds: float = MOST_SECONDS
    ) -> None:
        self._least_blocks = least_blocks
        self._most_seconds = most_seconds
        self._computing: dict[str, dict[int, Sent]] = {}

    def held(self, name: str, prefix: Sequence[int], computed: int) -> int:
        """Return how many blocks are computed or being computed, where ``computed`` are."""
        computing = self._computing.get(name)
        if computing:
            while computed < len(prefix) and prefix[computed] in computing:
                computed += 1
        return computed

    def wait(self, sent: Sent, now: float) -> Wait | None:
        """Return whom to wait for before ``sent`` goes, if there is somebody worth it."""
        until = sent.at + self._most_seconds
        computing = self._computing.get(sent.name, {})
        leaders = [
            leader
            for digest in sent.prefix
            if (leader := computing.get(digest)) is not None and leader.rank <= sent.rank
        ]
        if len(leaders) < self._least_blocks or leaders[-1] is sent:
            return None
        until = min(until, leaders[-1].computed_by)
        return Wait(leaders[-1], until) if now < until else None

    def begin(self, sent: Sent, computed: int) -> None:
        """Note that it computes what nobody is computing, beyond the blocks that are computed."""
        computing = self._computing.setdefault(sent.name, {})
        for digest in sent.prefix[computed:]:
            if computing.setdefault(digest, sent).rank > sent.rank:
                computing[digest] = sent

    def end(self, sent: Sent) -> None:
        """Note that it computes no more."""
        computing = self._computing.get(sent.name, {})
        for digest in sent.prefix:
            if computing.get(digest) is sent:
                del computing[digest]
