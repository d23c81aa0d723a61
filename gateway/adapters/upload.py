"""A body that comes from a client while it is sent on.

Law: while the client is waited for, the upstream is not; otherwise the upstream has to take each
piece, and after the last to answer, within so many seconds.
"""

import asyncio
from collections.abc import AsyncIterator


class Upload:
    """See the law above; ``answered`` is set once the head of a reply is there."""

    def __init__(self, body: AsyncIterator[bytes], seconds: float) -> None:
        self.answered = False
        self._body = body
        self._seconds = seconds

    async def chunks(self, limit: asyncio.Timeout) -> AsyncIterator[bytes]:
        """Yield the body; each piece has to be taken, and the head to come, in ``seconds``."""
        async for chunk in self._body:
            self._bound(limit, self._seconds)
            yield chunk
            self._bound(limit, None)
        self._bound(limit, self._seconds)

    def _bound(self, limit: asyncio.Timeout, seconds: float | None) -> None:
        if not self.answered:  # an upstream may answer before it has read all
            now = asyncio.get_running_loop().time()
            limit.reschedule(None if seconds is None else now + seconds)
