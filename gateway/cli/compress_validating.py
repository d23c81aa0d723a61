"""``refrain compress validate``: the upstream's answers to recorded requests, whole and compressed.

Part of the composition root. Law: each request is asked three times, whole, whole again and
compressed, in bounded time; a line that holds no request is told by file and line and passed over.
Neither prompts nor answers are told or kept.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from dataclasses import dataclass
from http import HTTPStatus
from itertools import islice
from pathlib import Path
from typing import Any

import orjson

from gateway.cli.calibrate import ScoringError, scoring_service
from gateway.cli.terminal import Lines, show_progress
from gateway.prompts.compress.compressor import Compressor
from gateway.prompts.compress.outcome import Compression
from gateway.prompts.compress.validation import Asked, Tally, repeatable
from gateway.protocol.conversation import last_user_text, system_text
from gateway.protocol.errors import UpstreamError
from gateway.semantic.compare.answers import Outcome, Told, compare
from gateway.semantic.ports import LocalEncoder, SemanticUnavailableError
from gateway.server.admin.recorded_request import Recorded, read_request
from gateway.server.secrets import SecretSettingError, secret_setting
from gateway.upstream.http.client import HttpUpstream
from gateway.upstream.ports import Upstream
from gateway.upstream.request import Outgoing
from policies.decision import Decision
from policies.format.load import PolicyError, parse_policy
from policies.format.values import percent_text
from policies.format.yaml_document import policy_text
from policies.policy import Policy, RequestFacts

_AT_A_TIME = 4
_COMPRESS_SECONDS = 30.0
_MOST_ANSWER_BYTES = 8 * 2**20


@dataclass(frozen=True, slots=True)
class Options:
    """What the command was told."""

    log: Path
    policy: Path
    upstream: str
    limit: int
    most: float
    seconds: float
    socket: Path | None
    as_json: bool
    sure: bool = False
    """Only what the figures prove passes."""


@dataclass(frozen=True, slots=True)
class Validation:
    """The parts, and what they have found so far."""

    policy: Policy
    upstream: Upstream
    encoder: LocalEncoder | None
    seconds: float
    tally: Tally

    async def take(self, one: Recorded, place: str) -> None:
        """Ask one request in its forms, if it is compressed."""
        compressor = Compressor(self.encoder, _COMPRESS_SECONDS)
        decision = _decision(self.policy, one)
        sent = await compressor.compressed(one.endpoint, decision, one.body, one.raw)
        if sent is None:
            self.tally.undeclared += 1
            return
        if isinstance(sent, Compression):
            self.tally.refused[str(sent.refused)] += 1
            return
        try:
            first = await self._answer(one, one.body)
            again = await self._answer(one, one.body)
            shorter = await self._answer(one, sent.body)
        except (UpstreamError, TimeoutError) as error:
            self.tally.failed[type(error).__name__] += 1
            return
        except _StatusError as error:
            self.tally.failed[str(error)] += 1
            return
        asked = Asked(await self._compared(first, again), await self._compared(first, shorter))
        if self.tally.take(asked, sent.told):
            print(f"refrain: {place}: the answer changed ({asked.compressed})", file=sys.stderr)

    async def _answer(self, one: Recorded, body: dict[str, Any]) -> Any:
        raw = orjson.dumps(repeatable(one.endpoint, body))
        fields = (("Content-Type", "application/json"), ("Accept-Encoding", "identity"))
        outgoing = Outgoing(one.endpoint.value, fields, raw, one.model)
        async with asyncio.timeout(self.seconds), self.upstream.send(outgoing) as reply:
            if reply.status != HTTPStatus.OK:
                raise _StatusError(f"status {reply.status}")
            read = b""
            async for chunk in reply.chunks():
                read += chunk
                if len(read) > _MOST_ANSWER_BYTES:
                    raise _StatusError("too large")
        try:
            return orjson.loads(read)
        except orjson.JSONDecodeError:
            raise _StatusError("no JSON") from None

    async def _compared(self, one: Any, other: Any) -> Outcome:
        step = await asyncio.to_thread(compare, one, other)
        if isinstance(step, Told):
            return step.outcome
        try:
            vectors = None if self.encoder is None else await self.encoder.embed(step.texts)
        except SemanticUnavailableError:
            vectors = None
        return step.next(vectors).outcome


class _StatusError(Exception):
    """The upstream answered with something else than an answer."""


Service = Callable[[Path | None], AbstractAsyncContextManager[LocalEncoder]]


def validate(options: Options, service: Service = scoring_service) -> int:
    """Run; print what came of it and return the exit code."""
    try:
        policy = parse_policy(
            policy_text(options.policy.read_bytes(), str(options.policy)), str(options.policy)
        )
        key = secret_setting(os.environ, "UPSTREAM_API_KEY")
    except OSError as error:
        return _fail(f"{options.policy}: cannot be read: {error.strerror or error}", 2)
    except (PolicyError, SecretSettingError) as error:
        return _fail(str(error), 2)
    try:
        tally = asyncio.run(_validated(options, policy, key, service))
    except OSError as error:
        return _fail(f"{options.log}: cannot be read: {error.strerror or error}", 2)
    except ScoringError as error:
        return _fail(str(error), 1)
    if tally is None:
        return _fail(f"{options.log}: no request in it", 2)
    proved = tally.proves(options.most)
    passed = proved if options.sure else tally.passes(options.most)
    if options.as_json:
        plain = {**tally.plain(), "proved": proved, "passed": passed}
        print(orjson.dumps(plain).decode())
    else:
        print("\n".join(_told(tally, options.most, passed=passed)))
    return 0 if passed else 1


async def _validated(
    options: Options, policy: Policy, key: str | None, service: Service
) -> Tally | None:
    async with AsyncExitStack() as stack:
        encoder = await stack.enter_async_context(service(options.socket))
        upstream = HttpUpstream(
            options.upstream.rstrip("/"), own_credential=key is not None, api_key=key
        )
        await upstream.open()
        stack.push_async_callback(upstream.close)
        validation = Validation(policy, upstream, encoder, options.seconds, Tally())
        _say(
            f"up to {options.limit:,} requests are asked three times each of {options.upstream}, "
            "if their rule compresses them: that may cost as much as it did to answer them, thrice"
        )
        requests = islice(Lines(read_request, options.log), options.limit)
        done = 0
        while batch := list(islice(requests, _AT_A_TIME)):
            async with asyncio.TaskGroup() as group:
                for place, one in batch:
                    group.create_task(validation.take(one, place))
            done += len(batch)
            show_progress(f"{done:,} requests, {validation.tally.changed} answers changed")
        show_progress("")
        return validation.tally if done else None


def _decision(policy: Policy, one: Recorded) -> Decision:
    """Return the decision of the rule that was recorded, else of what the body alone matches."""
    for rule in policy.rules:
        if rule.name == one.rule:
            return rule.decision
    facts = RequestFacts(
        endpoint=one.endpoint.value,
        model=one.model,
        headers={},
        credential_sha256=None,
        organization=None,
        project=None,
        last_user_text=last_user_text(one.endpoint, one.body),
        system_text=system_text(one.body),
    )
    return policy.decide(facts)


def _told(tally: Tally, most: float, *, passed: bool) -> Iterator[str]:
    if tally.share is None:
        yield "no answer could be compared"
    else:
        yield (
            f"{tally.changed:,} of {tally.compared:,} answers changed: {tally.share:.1%} "
            f"(at most {percent_text(most)} may; with 95 % confidence at most {tally.bound:.1%})"
        )
        yield f"  {tally.unsure:,} of them counted because it could not be told"
        if tally.passes(most) and not tally.proves(most):
            lacking = tally.lacking(most)
            more = "far more" if lacking is None else f"{lacking:,} more"
            yield f"  that is no proof: it takes {more} of which none changes"
    if tally.tokens:
        share = tally.saved / tally.tokens
        yield f"tokens of context: {tally.tokens:,}, saved {tally.saved:,} ({share:.1%})"
    yield f"not answered the same twice, and left out: {tally.unstable:,}"
    yield f"without context that is compressed: {tally.undeclared:,}"
    for name, counts in (("sent as they were", tally.refused), ("failed", tally.failed)):
        for why, count in sorted(counts.items()):
            yield f"{name}, {why}: {count:,}"
    yield "passed" if passed else "not passed"


def _fail(message: str, code: int) -> int:
    _say(message)
    return code


def _say(message: str) -> None:
    print(f"refrain: {message}", file=sys.stderr)
