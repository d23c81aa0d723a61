"""Runs one generation and writes its response, whole or as events."""

import time
import uuid
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any

import orjson
from aiohttp import web

from backend.ports import Generator
from backend.server.answering import FAILURES, api_error, broken_off, is_long
from backend.server.event_stream import TypedEventStream
from backend.server.generation import Tally
from backend.server.logprob_replies import Spell
from backend.server.prompts import off_loop
from backend.server.responses.writing import ResponseWriter
from backend.server.structured import Constraint
from backend.server.tool_parsers import AnswerFormat


@dataclass(frozen=True, slots=True)
class ResponseAnswer:
    """What is generated, by whom, and what is known of the response from the start."""

    tally: Tally
    generator: Generator
    repeated: Mapping[str, Any]
    reading: AnswerFormat | None = None
    spell: Spell | None = None
    """Given where log probabilities are wanted."""
    constraint: Constraint | None = None

    async def whole(self) -> web.Response:
        """Answer at the end. Raises ApiError."""
        try:
            async with aclosing(self.tally.generation.deltas(self.generator)) as deltas:
                async for delta in deltas:
                    self.tally.add(delta)
            [choice] = self.tally.choices()
        except FAILURES as error:
            raise api_error(error, self.constraint) from error
        writer = self._writer(eager=self.reading is not None and self.reading.demanded)

        def write() -> bytes:
            writer.push(choice.text, choice.logprobs)
            *_, last = writer.finish(choice.finish_reason, self.tally.usage, int(time.time()))
            return orjson.dumps(last["response"])

        written = await off_loop(write, is_long([choice]))
        return web.Response(body=written, content_type="application/json")

    async def stream(self, request: web.Request) -> TypedEventStream:
        """Answer as deltas arrive. Raises ApiError for what fails before the first one."""
        events = TypedEventStream()
        writer = self._writer(eager=True)
        try:
            async with aclosing(self.tally.generation.deltas(self.generator)) as deltas:
                async for delta in deltas:
                    if not events.prepared:
                        await events.prepare(request)
                        await events.send_all(writer.begin())
                    self.tally.add(delta)
                    await events.send_all(writer.push(delta.text, delta.logprobs))
            [choice] = self.tally.choices()
            ended = writer.finish(choice.finish_reason, self.tally.usage, int(time.time()))
            await events.end(ended)
        except FAILURES as error:
            failure = api_error(error, self.constraint)
            if not events.prepared:
                raise failure from error
            await events.end(writer.fail(failure), failed=True)
        except Exception as error:  # noqa: BLE001  # raised again, or logged
            failure = broken_off(error, events, request)
            await events.end(writer.fail(failure), failed=True)
        return events

    def _writer(self, *, eager: bool) -> ResponseWriter:
        parser = None if self.reading is None else self.reading.parser(eager=eager)
        return ResponseWriter(self.repeated, parser, self.spell, _new_id)


def _new_id(prefix: str) -> str:
    return prefix + uuid.uuid4().hex
