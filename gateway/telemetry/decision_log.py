"""The decision log: a line for each request, so that an edited policy can be tried on it later.

Laws:
- It has no plain text unless the operator asked for it, and never a credential. Identities are
  keyed digests. Of the conditions that looked at text only their truth is kept.
- It never holds up a request and never grows without bound. A separate thread writes the lines.
  Lines that cannot be queued are counted and dropped. At ``max_bytes`` the file becomes FILE.1, in
  place of the one before.
"""

import hmac
import logging
import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from gateway import background
from gateway.cache.append_files import append_lines, open_locked
from gateway.cache.key import Tenant, canonical_form, keyed_headers, scope_ids
from gateway.cache.plan import end_user
from gateway.telemetry.observation import Observation
from policies.decision import Decision, Endpoint, Scope
from policies.policy import RequestFacts

MAX_WAITING = 10_000
MAX_WAITING_BYTES = 64 * 2**20
GROUP_LINES = 512

_log = logging.getLogger(__name__)


class DecisionLog:
    """A sink of observations; several workers share one file."""

    def __init__(self, path: Path, *, max_bytes: int, clock: Callable[[], float]) -> None:
        self._path = path
        self._max_bytes = max_bytes
        self._clock = clock
        self._lines: queue.Queue[bytes | None] = queue.Queue(MAX_WAITING)
        self._dropped = 0
        self._bytes_queued = 0  # both only grow, each by one thread
        self._bytes_written = 0
        self._complained = False
        self._thread = background.start_thread("decision log", self._run)

    def observe(self, seen: Observation) -> None:
        """Queue the line of a finished request, if it was planned."""
        if seen.asked.record is None:
            return
        if self._bytes_queued - self._bytes_written > MAX_WAITING_BYTES:
            self._dropped += 1
            return
        record = {"time": self._clock(), **seen.asked.record, **_outcome(seen)}
        try:
            line = orjson.dumps(record, option=orjson.OPT_NON_STR_KEYS)
            self._lines.put_nowait(line)
            self._bytes_queued += len(line)
        except queue.Full:
            self._dropped += 1
        except (TypeError, UnicodeEncodeError):
            self._dropped += 1  # a text with a lone surrogate

    def close(self) -> None:
        """Write the queued records, for a bounded time."""
        try:
            self._lines.put(None, timeout=1.0)
        except queue.Full:
            return
        self._thread.join(5.0)

    def _run(self) -> None:
        while True:
            lines = [self._lines.get()]
            while len(lines) < GROUP_LINES:
                try:
                    lines.append(self._lines.get_nowait())
                except queue.Empty:
                    break
            whole = [line + b"\n" for line in lines if line is not None]
            try:
                if whole:
                    self._write(b"".join(whole))
                self._complained = False
            except OSError as error:
                self._dropped += len(whole)
                if not self._complained:
                    why, event = error.strerror or error, {"event": "log"}
                    _log.error("%s cannot be written: %s", self._path, why, extra={"fields": event})
                self._complained = True
            self._bytes_written += sum(len(line) for line in lines if line is not None)
            if self._dropped:
                _log.warning("decision log: %d lines were dropped", self._dropped)
                self._dropped = 0
            if None in lines:
                return

    def _write(self, data: bytes) -> None:
        with open_locked(self._path, len(data), max_bytes=self._max_bytes) as (descriptor, size):
            append_lines(descriptor, size, data)


def _outcome(seen: Observation) -> dict[str, object]:
    hit, usage = seen.hit, seen.call.usage
    tokens = (usage.prompt or 0) + (usage.completion or 0)
    return {
        "key": seen.lookup.key.hex(),
        "outcome": seen.outcome,
        "reason": None if seen.reason is None else seen.reason.value,
        "declined": seen.call.declined and seen.call.declined.value,
        "ineligible": seen.lookup.ineligible and seen.lookup.ineligible.value,
        "source": None if hit is None else hit.entry.key.hex(),
        "similarity": None if hit is None else hit.status.similarity,
        "score": None if hit is None else hit.status.score,
        "threshold": None if hit is None else hit.status.threshold,
        "prompt_tokens": usage.prompt,
        "cached_tokens": usage.cached,
        "tokens": tokens or (0 if hit is None else hit.entry.tokens),
        "bytes": seen.answer_bytes,
        "seconds": None if seen.ended is None else round(seen.ended - seen.started, 6),
        "status": seen.status,
    }


def decision_record(decision: Decision) -> dict[str, Any]:
    """Return a decision in the form of the decision log."""
    return {
        "exact": decision.exact,
        "semantic": decision.semantic,
        "min_similarity": decision.min_similarity,
        "max_wrong_hits": decision.max_wrong_hits,
        "lifetime": decision.lifetime,
        "scope": decision.scope.value,
        "pii": decision.pii.value,
        "generation": decision.generation,
        "max_temperature": decision.max_temperature,
        "finish_reasons": sorted(decision.finish_reasons),
    }


_ID_BYTES = 16


@dataclass(frozen=True, slots=True)
class Recorder:
    """Makes the first half of a record: what is known before the lookup."""

    secret: bytes
    with_text: bool
    with_requests: bool = False
    """Whether records hold whole bodies, to find where prompts differ."""

    def record(
        self,
        body: dict[str, Any],
        tenant: Tenant,
        facts: RequestFacts,
        decision: Decision,
        *,
        truths: Mapping[str, bool],
        upstream: str,
        query: str,
    ) -> dict[str, Any]:
        """Return the record; its outcome is added when the request has ended."""
        endpoint = Endpoint(facts.endpoint)
        versions = keyed_headers(endpoint, facts.headers)
        where = f"{facts.endpoint}\0{upstream}\0{query}\0".encode("utf-8", "surrogatepass")
        if versions:
            where += repr(versions).encode("utf-8", "surrogatepass") + b"\0"
        identity = where + canonical_form(endpoint, body)
        temperature = body.get("temperature")
        record: dict[str, Any] = {
            "endpoint": facts.endpoint,
            "model": facts.model,
            "rule": decision.rule,
            "decision": decision_record(decision),
            "form": hmac.digest(self.secret, b"form" + identity, "sha256")[:_ID_BYTES].hex(),
            "scopes": self._scopes(endpoint, body, tenant),
            "temperature": temperature if isinstance(temperature, int | float) else None,
            "conditions": dict(truths),
        }
        if self.with_text:
            record |= {"text": facts.last_user_text, "system": facts.system_text}
        if self.with_requests:
            record["request"] = body
            if versions:
                record["headers"] = dict(versions)
        return record

    def _scopes(
        self, endpoint: Endpoint, body: dict[str, Any], tenant: Tenant
    ) -> dict[str, str | None]:
        ids = scope_ids(self.secret, tenant, end_user(endpoint, body))
        return {
            scope.value: ids[scope][:_ID_BYTES].hex() if scope in ids else None for scope in Scope
        }
