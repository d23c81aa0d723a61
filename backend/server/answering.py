"""Runs one generation and writes its reply, whole or as events."""

import logging
import time
from collections.abc import Iterable
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from backend.ports import (
    EngineError,
    Generator,
    GrammarRejectedError,
    OverloadedError,
    RequestRejectedError,
    UnavailableError,
)
from backend.scheduler.request import TextDelta
from backend.server.event_stream import EventStream
from backend.server.generation import Tally
from backend.server.prompts import off_loop
from backend.server.protocol.errors import (
    ApiError,
    engine_failed,
    internal_error,
    overloaded,
    unavailable,
)
from backend.server.protocol.generation import StreamOptions
from backend.server.replies import FinishedChoice, Head, ReplyForm
from backend.server.structured import Constraint

FAILURES = (EngineError, OverloadedError, RequestRejectedError)
"""What a generation raises."""

_ON_LOOP_CHARACTERS = 20_000
_CHARACTERS_OF_A_LOGPROB = 400  # twenty others belong to it, perhaps

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Answer:
    """What is generated and counted, by whom, and in which form it is told."""

    tally: Tally
    generator: Generator
    form: ReplyForm
    model: str
    constraint: Constraint | None = None

    async def whole(self) -> web.Response:
        """Answer at the end. Raises ApiError."""
        try:
            async with aclosing(self.tally.generation.deltas(self.generator)) as deltas:
                async for delta in deltas:
                    self.tally.add(delta)
            choices = self.tally.choices()

            def write() -> bytes:
                written = [self.form.whole(index, choice) for index, choice in enumerate(choices)]
                body = self._head().body(self.form.whole_kind, written)
                return orjson.dumps(body | {"usage": self.tally.usage.body()})

            written = await off_loop(write, is_long(choices))
        except FAILURES as error:
            raise api_error(error, self.constraint) from error
        return web.Response(body=written, content_type="application/json")

    async def stream(self, request: web.Request, options: StreamOptions) -> EventStream:
        """Answer as deltas arrive. Raises ApiError for what fails before the first one."""
        events = EventStream()
        head = self._head()
        # With usage asked for, every chunk has the key. All but the last hold null, or what was
        # used so far.
        usage: dict[str, Any] = {"usage": None} if options.include_usage else {}
        try:
            async with aclosing(self.tally.generation.deltas(self.generator)) as deltas:
                async for delta in deltas:
                    if not events.prepared:
                        await events.prepare(request)
                    choices = self._chunk_choices(delta)
                    if choices and options.continuous_usage_stats:
                        usage = {"usage": self.tally.usage.body()}
                    for choice in choices:
                        await events.send(head.body(self.form.chunk_kind, [choice]) | usage)
            self.tally.choices()
            if options.include_usage:
                last = head.body(self.form.chunk_kind, [])
                await events.send(last | {"usage": self.tally.usage.body()})
            await events.finish()
        except FAILURES as error:
            if not events.prepared:
                raise api_error(error, self.constraint) from error
            await events.fail(api_error(error, self.constraint))
        except Exception as error:  # noqa: BLE001  # raised again, or logged
            await events.fail(broken_off(error, events, request))
        return events

    def _head(self) -> Head:
        return Head(self.tally.generation.id, self.model, int(time.time()))

    def _chunk_choices(self, delta: TextDelta) -> list[dict[str, Any]]:
        choices = []
        if self.tally.is_first(delta.index):
            opening = self.form.opening(delta.index, delta.prompt_logprobs)
            if opening is not None:
                choices.append(opening)
        self.tally.add(delta)
        if delta.text or delta.logprobs:
            choices += self.form.text(delta.index, delta.text, delta.logprobs)
        if delta.finish_reason is not None:
            choices += self.form.finish(delta.index, delta.finish_reason)
        return choices


def is_long(choices: Iterable[FinishedChoice]) -> bool:
    """Whether writing ``choices`` whole takes more than a millisecond or two."""
    effort = sum(len(each.text) + _CHARACTERS_OF_A_LOGPROB * len(each.logprobs) for each in choices)
    return effort > _ON_LOOP_CHARACTERS


def broken_off(error: Exception, events: EventStream, request: web.Request) -> ApiError:
    """Return what is told of a defect of ours in the middle of a stream.

    Before it, and where nobody listens any more, ``error`` is raised: another response cannot be
    begun later.
    """
    if isinstance(error, ConnectionResetError) or not events.prepared:
        raise error
    log.error("%s failed in the middle of its stream", request.path, exc_info=error)
    return internal_error()


def api_error(error: Exception, constraint: Constraint | None) -> ApiError:
    """Return what a client is told of one of ``FAILURES``."""
    if isinstance(error, GrammarRejectedError) and constraint is not None:
        return constraint.refused(str(error))
    if isinstance(error, RequestRejectedError):
        return ApiError(400, f"The engine cannot run this request: {error}.", code="rejected")
    if isinstance(error, OverloadedError):
        return overloaded(error)
    if isinstance(error, UnavailableError):
        return unavailable(str(error))
    return engine_failed(str(error))
