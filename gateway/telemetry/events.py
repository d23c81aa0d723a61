"""What changed the state of a gateway, and when: a short list that answers "what was that?".

An event is a log line whose fields name one: ``extra={"fields": {"event": "store"}}``. It also goes
into ``events.jsonl`` of the data directory, which all workers and their supervisor share. The list
holds the operators' actions too, which are read from the audit log.

Laws. The file is bounded. A separate thread writes it, and a file that cannot be written delays
nothing. Lines of several workers that say the same count as one event.
"""

import asyncio
import contextlib
import logging
import queue
import time
from collections.abc import Iterable, Iterator, Mapping
from logging.handlers import QueueHandler
from operator import itemgetter
from pathlib import Path
from typing import Any

import orjson
from filelock import Timeout

from gateway import background
from gateway.cache.append_files import last_lines, open_locked, write_line

EVENTS_FILE = "events.jsonl"
AUDIT_FILE = "admin-audit.jsonl"
MAX_BYTES = 256 * 1024
"""Of the file; as many are in the one before."""
MOST_EVENTS = 200
SAME_SECONDS = 60.0
"""For so long, the same text is the same event, seen by another worker."""

_MOST_WAITING = 1000
_MOST_TEXT = 500
_TOGETHER_BYTES = 64 * 1024
_LOCK_SECONDS = 1.0
_PAUSE_SECONDS = 10.0
"""After a failure, lines are dropped for so long: each might wait for the lock."""
_LAST_SECONDS = 2.0
_AUDIT_BYTES = 64 * 1024
_ACTIONS = {
    "purge": "purged entries",
    "wrong": "reported a wrong hit",
    "forget": "forgot a scope",
    "audit": "scanned the entries for personal data",
    "semantic/reset": "switched semantic hits on again",
    "policy": "saved a policy",
}
"""Actions of an operator that change something."""
_DIGESTS = ("sha256",)
_UNTOLD = ("dry_run", "purge", *_DIGESTS)
_FIGURES = ("entries", "purged", "evicted")


class EventLog(QueueHandler):
    """Takes the log lines that are events; a thread writes them to the file."""

    def __init__(self, data_dir: Path) -> None:
        self._lines: queue.Queue[Any] = queue.Queue(_MOST_WAITING)
        super().__init__(self._lines)
        self._path = data_dir / EVENTS_FILE
        self._retry_at = 0.0
        self._writer = background.start_thread("list of events", self._write_all)

    def filter(self, record: logging.LogRecord) -> bool:
        return _kind(record) is not None

    def prepare(self, record: logging.LogRecord) -> Any:
        return {
            "time": record.created,
            "level": record.levelname.lower(),
            "event": _kind(record),
            # A path may have half characters, which JSON has not.
            "text": record.getMessage()[:_MOST_TEXT].encode(errors="backslashreplace").decode(),
        }

    def enqueue(self, record: Any) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put_nowait(record)

    def close(self) -> None:
        with contextlib.suppress(queue.Full):
            self._lines.put(None, timeout=_LAST_SECONDS)
        self._writer.join(_LAST_SECONDS)
        super().close()

    def _write_all(self) -> None:
        has_ended = False
        while not has_ended and (line := self._lines.get()) is not None:
            data = orjson.dumps(line) + b"\n"
            # Each write waits for the disk, so lines that came meanwhile are written together.
            while len(data) < _TOGETHER_BYTES and not self._lines.empty():
                if (line := self._lines.get()) is None:
                    has_ended = True
                    break
                data += orjson.dumps(line) + b"\n"
            self._write(data)

    def _write(self, data: bytes) -> None:
        if time.monotonic() < self._retry_at:
            return
        try:
            with open_locked(self._path, len(data), max_bytes=MAX_BYTES, seconds=_LOCK_SECONDS) as (
                descriptor,
                size,
            ):
                write_line(descriptor, size, data)
        except (OSError, Timeout):
            # Not in the log: its line would be no news, and doctor names a failing disk.
            self._retry_at = time.monotonic() + _PAUSE_SECONDS


def _kind(record: logging.LogRecord) -> str | None:
    fields: Mapping[str, str] = getattr(record, "fields", {})
    return fields.get("event")


@contextlib.contextmanager
def event_log(data_dir: Path) -> Iterator[None]:
    """Write the events of this process's log to the list of the data directory."""
    handler, logger = EventLog(data_dir), logging.getLogger("gateway")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


class EventList:
    """Reads the events of a data directory, the operators' actions among them."""

    def __init__(self, data_dir: Path) -> None:
        self._files = data_dir / EVENTS_FILE, data_dir / AUDIT_FILE
        self._seen: list[tuple[int, int]] | None = None
        self._events: list[dict[str, Any]] = []

    async def latest(self) -> list[dict[str, Any]]:
        """Return the latest events, the newest first. Raises OSError."""
        return await asyncio.to_thread(self._read)

    def _read(self) -> list[dict[str, Any]]:
        seen = [_version(file) for file in self._files]
        if seen != self._seen:
            events, audit = self._files
            found = [_event(line) for line in last_lines(events, MAX_BYTES)]
            found += [_action(line) for line in last_lines(audit, _AUDIT_BYTES)]
            self._events, self._seen = _merged(filter(None, found))[: -MOST_EVENTS - 1 : -1], seen
        return self._events


def _version(file: Path) -> tuple[int, int]:
    try:
        status = file.stat()
    except FileNotFoundError:
        return 0, 0
    return status.st_ino, status.st_size


def _merged(events: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the events by time. What several workers saw is one, if no other came between."""
    merged: list[dict[str, Any]] = []
    latest: dict[str, dict[str, Any]] = {}
    for event in sorted(events, key=itemgetter("time")):
        former = latest.get(event["event"])
        if (
            former is not None
            and former["text"] == event["text"]
            and event["time"] - former["until"] <= SAME_SECONDS
        ):
            former["until"], former["times"] = event["time"], former["times"] + 1
            continue
        latest[event["event"]] = event
        merged.append(event)
    return merged


def _event(line: Mapping[str, Any]) -> dict[str, Any] | None:
    match line:
        case {"time": float(at), "level": str(level), "event": str(event), "text": str(text)}:
            return _entry(at, level, event, text)
    return None


def _action(line: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the event of a line of the audit log; None if it changed nothing, or is no end."""
    match line:
        case {"time": float(at), "action": str(action), "result": dict(result)}:
            text = _ACTIONS.get(action)
            if text is None or result.get("dry_run") or result.get("purged") == 0:
                return None
            asked = line.get("asked") or {}
            # Of a saved policy, the text that is in force now.
            shown = {name: asked[name] for name in asked if name not in _UNTOLD}
            shown |= {name: result[name] for name in _DIGESTS if name in result}
            named = [f"{name} {str(value)[:16]}" for name, value in shown.items()]
            named += [_figure(name, result[name]) for name in _FIGURES if name in result]
            more = f" ({', '.join(named)})" if named else ""
            return _entry(at, "info", "operator", f"an operator {text}{more}")
    return None


def _figure(name: str, value: object) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return f"{name}: {value}"


def _entry(at: float, level: str, event: str, text: str) -> dict[str, Any]:
    return {"time": at, "until": at, "times": 1, "level": level, "event": event, "text": text}
