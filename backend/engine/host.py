"""Runs the engine's process (``engine_process``) and starts it again when it dies or hangs.

Law: the client is open exactly while a warm engine is there. When its process ends, for whatever
reason, every request that it had fails at once, and the next engine knows nothing of them. Nobody
waits without end for a process that is there and does nothing: whoever owes a word and keeps silent
for too long has ended (``core/watchdog``).
"""

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial

from backend.engine.client import EngineClient, TextSource
from backend.engine.link import EXIT_SECONDS, KILLED, Link, launch
from backend.engine.messages import EngineDescription, Ping, Stop, ToEngine
from backend.models.config import ModelLoadError
from backend.settings import EngineOptions

log = logging.getLogger(__name__)

STEP_SECONDS = 300.0
LOAD_SECONDS = 600.0
STOP_SECONDS = 5.0
FIRST_BACKOFF_SECONDS = 0.25
LAST_BACKOFF_SECONDS = 10.0
SETTLED_SECONDS = 60.0
"""An engine that ran for so long is started again without much delay."""

_DIED = "died"
_HUNG = "hung"


class EngineHost:
    """One engine at a time, and the client in front of it; belongs to one event loop."""

    def __init__(
        self,
        options: EngineOptions,
        tell: Callable[[str], None],
        *,
        step_seconds: float = STEP_SECONDS,
        load_seconds: float = LOAD_SECONDS,
    ) -> None:
        """``tell`` is called with what is being done while an engine is loaded, for people.

        An engine hangs that has requests and says nothing for ``step_seconds``, which the longest
        step must not take, or tells of no progress for ``load_seconds`` while it is loaded.
        """
        self.client = EngineClient(self._send)
        self._options = options
        self._tell = tell
        self._step_seconds = step_seconds
        self._load_seconds = load_seconds
        self._link: Link | None = None
        self._keeper: asyncio.Task[None] | None = None

    async def start(self) -> EngineDescription:
        """Start the first engine. Raises ModelLoadError, whatever the reason.

        Cancelling it ends the process.
        """
        self._link = link = await self._launch(self._tell)
        return link.description

    def open(self, text: TextSource) -> None:
        """Let requests in, and keep an engine running from now on."""
        link = self._link
        if link is None or self._keeper is not None:
            raise RuntimeError("open an engine once, after it was started")
        self.client.open(link.description, text)
        self._keeper = asyncio.create_task(self._keep(link, text))

    async def stop(self) -> None:
        """Fail open requests and end the process; a second call is harmless."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
        self.client.close("the engine is shutting down")
        link, self._link = self._link, None
        if link is not None:
            link.send(Stop())
            if await link.end(patience=STOP_SECONDS) == KILLED:
                log.warning("the engine did not stop by itself and was killed")

    def _send(self, message: ToEngine) -> None:
        if self._link is not None:
            self._link.send(message)

    async def _keep(self, link: Link, text: TextSource) -> None:
        backoff = FIRST_BACKOFF_SECONDS
        while True:
            began = time.monotonic()
            what = await self._fate(link)
            link.sever()
            self.client.close(f"the engine's process {what} and is being started again")
            how = await link.end(patience=0.0 if what == _HUNG else EXIT_SECONDS)
            self._link = None
            log.error("the engine's process %s (%s); starting it again", what, how)
            if time.monotonic() - began > SETTLED_SECONDS:
                backoff = FIRST_BACKOFF_SECONDS
            while self._link is None:
                await asyncio.sleep(backoff)
                backoff = min(backoff * 2, LAST_BACKOFF_SECONDS)
                try:
                    self._link = await self._launch(partial(self._restarting, what))
                except (ModelLoadError, OSError) as error:  # no process to be had is one
                    log.error("the engine cannot be started: %s", error)  # noqa: TRY400
                    self.client.close(f"the engine cannot be started: {error}")
                except Exception:
                    # Nobody but this task would ever try again.
                    log.exception("the engine cannot be started")
                    self.client.close("the engine cannot be started")
            link = self._link
            self.client.open(link.description, text)
            log.info("the engine is ready again")

    async def _fate(self, link: Link) -> str:
        """Return what became of a running engine, once it is to be replaced."""
        died = await link.watch(
            link.closed,
            self._step_seconds,
            waiting=lambda: self.client.has_requests,
            ask=lambda: link.send(Ping()),
        )
        return _DIED if died else _HUNG

    def _restarting(self, what: str, stage: str) -> None:
        self.client.close(f"the engine {what} and is being started again: {stage}")

    async def _launch(self, tell: Callable[[str], None]) -> Link:
        return await launch(
            self._options, self.client.receive, tell, silent_seconds=self._load_seconds
        )
