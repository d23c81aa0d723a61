"""One live session: events in, one response at a time, and the prompt's prefill while it grows.

Law: an event that cannot be obeyed is answered with an error event, and the session goes on. What
the session computes ends with its socket.
"""

import asyncio
import logging
import time
from collections import deque
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from typing import Any

import orjson
from aiohttp import WSCloseCode, WSMsgType, web
from pydantic_core import PydanticCustomError

from backend.scheduler.request import FinishReason, Priority, SamplingParams
from backend.server import chat
from backend.server.body import ALLOW_UNKNOWN, validated
from backend.server.pipeline import FAILURES, Answer, Generation, api_error
from backend.server.prompts import TOO_LONG
from backend.server.protocol.errors import ApiError, internal_error, invalid
from backend.server.protocol.generation import GenerationFields
from backend.server.protocol.messages import AnyMessage, Message, TemplateOptions, check_choice
from backend.server.protocol.realtime import (
    Event,
    ItemCreate,
    ItemDelete,
    ItemRetrieve,
    ResponseCancel,
    ResponseCreate,
    ResponseFields,
    Session,
    SessionUpdate,
    UnknownRealtimeItem,
    schema_of,
)
from backend.server.protocol.responses import messages_of
from backend.server.realtime.conversation import Conversation, Item
from backend.server.realtime.reply import End, RealtimeReply, new_id
from backend.server.replies import WRITE_SECONDS, Object
from backend.server.served_model import LoadedModel
from backend.server.structured import Constraint
from backend.server.tool_parsers import AnswerFormat

LEAST_PREFILL_TOKENS = 32
"""A prompt that has grown by less is computed with the response."""

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Bounds:
    """What sessions may take of the server."""

    message_bytes: int = 2**20
    items: int = 1_000
    characters: int = 4 * 2**20
    """Of all texts, names and call ids of a conversation."""
    sessions: int = 256
    idle_seconds: float = 900.0
    """Without a whole message, while nothing is generated."""
    session_seconds: float = 3_600.0
    heartbeat_seconds: float = 30.0
    """Between pings; a peer that does not answer in half of it has left."""
    close_seconds: float = 5.0


@dataclass(slots=True)
class _Active:
    """The response that is being generated."""

    reply: RealtimeReply
    answer: Answer
    joins: bool
    """Whether it joins the conversation."""


class LiveSession:
    """Owned by its handler; ``run`` ends when the socket does."""

    def __init__(
        self,
        request: web.Request,
        socket: web.WebSocketResponse,
        loaded: LoadedModel,
        model: str,
        bounds: Bounds,
        *,
        key: str | None = None,
    ) -> None:
        """``socket`` is prepared. KV is shared within a ``key`` that is not in a header alone."""
        self._request, self._socket, self._key = request, socket, key
        self._loaded, self._model, self._bounds = loaded, model, bounds
        self._id = new_id("sess_")
        self._conversation_id = new_id("conv_")
        self._fields = Session(type="realtime")
        self._expires = int(time.time() + bounds.session_seconds)
        self._conversation = Conversation(
            most_items=bounds.items, most_characters=bounds.characters
        )
        self._active: _Active | None = None
        self._responding: asyncio.Task[None] | None = None
        self._prefill: asyncio.Task[None] | None = None
        self._has_grown = False
        self._prefilled = 0
        """Tokens of the last prompt that was computed ahead."""
        self._is_too_long = False
        """Whether the prompt was refused as that: until something is left out, it stays so."""
        self._outbox: deque[str] = deque()
        self._sending = asyncio.Lock()
        self._stopping: asyncio.Task[Any] | None = None

    async def run(self) -> None:
        """Serve until the client leaves, or a bound is reached."""
        try:
            async with asyncio.timeout(self._bounds.session_seconds):
                await self._send([{"type": "session.created", "session": self._described()}])
                await self._read()
        except TimeoutError:
            await self._close(WSCloseCode.GOING_AWAY, "the session has lasted as long as it may")
        except ConnectionResetError:
            pass  # the client has left
        finally:
            tasks = [self._prefill, self._stopping, self._responding]
            running = [task for task in tasks if task is not None]
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    def stop(self) -> None:
        """Close, once the response that is being generated has ended."""
        if self._stopping is None:
            self._stopping = asyncio.create_task(self._stop())

    async def _stop(self) -> None:
        if self._responding is not None:
            await asyncio.wait([self._responding])
        await self._close(WSCloseCode.GOING_AWAY, "the server is stopping")

    async def _close(self, code: WSCloseCode, reason: str) -> None:
        await self._socket.close(code=code, message=reason.encode())

    async def _read(self) -> None:
        while True:
            try:
                message = await self._socket.receive(timeout=self._bounds.idle_seconds)
            except TimeoutError:
                if self._active is None:
                    await self._close(WSCloseCode.GOING_AWAY, "nothing was sent for too long")
                    return
                continue
            if message.type is WSMsgType.TEXT:
                await self._obey(message.data.encode())
            elif message.type is WSMsgType.BINARY:
                await self._close(WSCloseCode.UNSUPPORTED_DATA, "events are text, not binary")
                return
            elif message.type is WSMsgType.ERROR:
                # aiohttp has said why, 1009 for example. What the client still sends would reset
                # the connection before it reads that. Its leaving ends the wait.
                await asyncio.sleep(self._bounds.close_seconds)
                return
            else:
                return

    async def _obey(self, raw: bytes) -> None:
        event_id = None
        try:
            event = await validated(
                raw, schema_of, allow_unknown=self._request.app[ALLOW_UNKNOWN], what="event"
            )
            event_id = event.event_id
            await self._send(await self._answer(event))
        except ApiError as error:
            await self._send([_error(error, event_id or _event_id(raw))])
        except ConnectionResetError:
            raise
        except Exception:
            log.exception("an event of a realtime session failed")
            await self._send([_error(internal_error(), event_id)])

    async def _answer(self, event: Event) -> Sequence[Object]:
        """Do what an event says and return what is to be sent. Raises ApiError."""
        match event:
            case SessionUpdate():
                return self._update(event.session)
            case ItemCreate():
                return self._create_item(event)
            case ItemRetrieve():
                found = self._conversation.get(event.item_id)
                return [{"type": "conversation.item.retrieved", "item": found.body()}]
            case ItemDelete():
                self._conversation.delete(event.item_id)
                self._prefilled, self._is_too_long = 0, False
                return [{"type": "conversation.item.deleted", "item_id": event.item_id}]
            case ResponseCreate():
                await self._respond(event)
            case ResponseCancel():
                await self._cancel(event.response_id)
        return ()

    def _update(self, given: Session) -> Sequence[Object]:
        if given.model is not None and given.model != self._model:
            message = "The model of a session cannot be changed."
            raise invalid(message, "session.model", "cannot_update_model")
        fields = self._fields.updated(given)
        _check_choice(fields, "session.tool_choice")
        self._fields = fields
        self._prefilled, self._is_too_long = 0, False
        self._grow()
        return [{"type": "session.updated", "session": self._described()}]

    def _described(self) -> Object:
        fields = self._fields
        told = fields.model_dump(exclude_none=True, include={"temperature", "top_p", "seed"})
        return {
            "id": self._id,
            "object": "realtime.session",
            "type": "realtime",
            "model": self._model,
            "expires_at": self._expires,
            "output_modalities": ["text"],
            "instructions": fields.instructions or "",
            "max_output_tokens": fields.max_output_tokens or "inf",
            "tools": [
                tool.model_dump(include={"type", "name", "description", "parameters"})
                for tool in fields.tools or ()
            ],
            "tool_choice": _plain(fields.tool_choice) or "auto",
            "parallel_tool_calls": fields.parallel_tool_calls is not False,
            "truncation": "disabled",
            **told,
        }

    def _create_item(self, event: ItemCreate) -> Sequence[Object]:
        content = event.item
        if isinstance(content, UnknownRealtimeItem):
            raise TypeError("its type is never valid")
        item = Item(content.id or new_id("item_"), content)
        self._conversation.check(item)
        before = self._conversation.add(item, event.previous_item_id)
        self._grow()
        body = {"previous_item_id": before, "item": item.body()}
        kinds = ("conversation.item.added", "conversation.item.done")
        return [{"type": kind, **body} for kind in kinds]

    async def _generation(
        self, fields: ResponseFields, messages: Sequence[AnyMessage], template: TemplateOptions
    ) -> tuple[Generation, AnswerFormat, Constraint | None]:
        """Return what follows the messages. Raises ApiError."""
        if fields.instructions:
            developer = Message(role="developer", content=fields.instructions)
            messages = [developer, *messages]
        if not messages:
            message = "There is nothing to be answered: create an item, or give instructions."
            raise invalid(message, "response", "empty_conversation")
        body = GenerationFields(
            model=self._model,
            stream=True,
            temperature=fields.temperature,
            top_p=fields.top_p,
            seed=fields.seed,
            cache_salt=self._key or None,
        )
        asked = chat.Conversation(
            messages=messages,
            functions=fields.tools or (),
            choice=fields.tool_choice,
            parallel=fields.parallel_tool_calls,
            response_format=None,
            max_tokens=fields.most_tokens,
            logprobs=None,
            template=template,
            prefix="resp_",
            messages_at="conversation",
            parameters_at="parameters",
        )
        arrived = time.monotonic()
        return await chat.generation_of(self._request, body, self._loaded, asked, arrived=arrived)

    async def _respond(self, event: ResponseCreate) -> None:
        if self._active is not None:
            message = (
                f"Conversation already has an active response in progress: {self._active.reply.id}."
            )
            code = "conversation_already_has_active_response"
            raise ApiError(400, message, code=code)
        if self._stopping is not None:
            raise ApiError(503, "The server is stopping.", code="server_stopping")
        asked = event.response
        fields: ResponseFields = self._fields if asked is None else self._fields.updated(asked)
        _check_choice(fields, "response.tool_choice")
        if asked is None or asked.input is None:
            items = [item.content for item in self._conversation]
        else:
            items = self._conversation.resolve(asked.input)
        messages = list(messages_of(items))
        made = await self._generation(fields, messages, TemplateOptions())
        await self._end_prefill()
        joins = asked is None or asked.conversation != "none"
        described = {
            "id": made[0].id,
            "conversation_id": self._conversation_id if joins else None,
            "output_modalities": ["text"],
            "max_output_tokens": fields.max_output_tokens or "inf",
            "metadata": None if asked is None else asked.metadata,
        }
        reply = RealtimeReply(described, made[1], self._conversation if joins else None)
        self._active = _Active(reply, Answer(made[0]), joins)
        await self._send([reply.begin()])
        self._responding = asyncio.create_task(self._generate(made[0], made[2], self._active))

    async def _generate(
        self, generation: Generation, constraint: Constraint | None, active: _Active
    ) -> None:
        failure: ApiError | None = None
        status: End = "completed"
        try:
            async with aclosing(generation.deltas(self._loaded.generator)) as deltas:
                async for delta in deltas:
                    active.answer.add(delta)
                    await self._send(active.reply.push(delta.text))
            [choice] = active.answer.choices()
            if choice.finish_reason is FinishReason.LENGTH:
                status = "incomplete"
        except ConnectionResetError:
            return  # the reader learns it too
        except FAILURES as error:
            status, failure = "failed", api_error(error, constraint)
        except Exception:
            log.exception("a response of a realtime session failed")
            status, failure = "failed", internal_error()
        await self._send(self._end_response(active, status, failure))

    def _end_response(
        self, active: _Active, status: End, failure: ApiError | None = None
    ) -> Sequence[Object]:
        """Let another response begin, and return the last events of this one."""
        usage = active.answer.usage()
        self._active = None
        if active.joins:
            self._prefilled = usage.prompt_tokens + usage.completion_tokens
            self._is_too_long = False
        if self._has_grown:
            self._grow()
        return active.reply.end(status, usage, failure)

    async def _cancel(self, response_id: str | None) -> None:
        active = self._active
        if active is None or response_id not in (None, active.reply.id):
            message = "Cancellation failed: no active response found"
            raise ApiError(400, message, param="response_id", code="response_cancel_not_active")
        if self._responding is not None:
            self._responding.cancel()
            await asyncio.wait([self._responding])
        # Else it has ended meanwhile.
        is_over = self._active is not active
        await self._send(() if is_over else self._end_response(active, "cancelled"))

    def _grow(self) -> None:
        """Compute what is known of the next prompt, so that its response begins soon."""
        self._has_grown = True
        if self._prefill is None and self._active is None and not self._is_too_long:
            self._prefill = asyncio.create_task(self._compute_ahead())

    async def _compute_ahead(self) -> None:
        try:
            while self._has_grown and self._active is None:
                self._has_grown = False
                await self._compute_prompt()
        except (*FAILURES, ApiError) as error:
            self._is_too_long = isinstance(error, ApiError) and error.code == TOO_LONG
            log.debug("a prompt is not computed ahead: %s", error)  # its response says why
        except Exception:
            log.exception("a prompt was not computed ahead")
        finally:
            self._prefill = None

    async def _compute_prompt(self) -> None:
        messages = list(messages_of([item.content for item in self._conversation]))
        template = TemplateOptions(add_generation_prompt=False)
        made, *_ = await self._generation(self._fields, messages, template)
        length = len(made.first.prompt_tokens)
        if length - self._prefilled < LEAST_PREFILL_TOKENS:
            return
        # One token is the least that the engine computes; nobody reads it.
        request = replace(
            made.first,
            sampling=SamplingParams(temperature=0.0, max_tokens=1),
            priority=Priority.LOW,
            stream=False,
        )
        async with aclosing(self._loaded.generator.generate(request)) as deltas:
            async for _ in deltas:
                pass
        self._prefilled = length

    async def _end_prefill(self) -> None:
        """Cancel it; what it has computed stays in the prefix cache."""
        if (prefill := self._prefill) is not None:
            prefill.cancel()
            await asyncio.wait([prefill])
            self._prefill = None

    async def _send(self, events: Sequence[Object]) -> None:
        """Send events in order. What a cancelled task has left is sent by the next one.

        Raises ConnectionResetError for a client that does not read.
        """
        self._outbox += map(_written, events)
        try:
            async with asyncio.timeout(WRITE_SECONDS), self._sending:
                while self._outbox:
                    await self._socket.send_str(self._outbox.popleft())
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()
            raise ConnectionResetError("the client does not read") from error


def _written(event: Object) -> str:
    return orjson.dumps({"event_id": new_id("event_"), **event}).decode()


def _error(error: ApiError, event_id: str | None) -> Object:
    told = error.body()["error"]
    return {"type": "error", "error": {**told, "event_id": event_id}}


def _event_id(raw: bytes) -> str | None:
    """Return the id of an event that was refused, if it has one."""
    try:
        found = orjson.loads(raw).get("event_id")
    except (ValueError, AttributeError):
        return None
    return found[:512] if isinstance(found, str) else None


def _plain(choice: Any) -> Any:
    return choice if choice is None or isinstance(choice, str) else choice.model_dump()


def _check_choice(fields: ResponseFields, param: str) -> None:
    try:
        check_choice(fields.tools or (), fields.tool_choice)
    except PydanticCustomError as error:
        raise invalid(error.message(), param, "invalid_parameter_combination") from None
