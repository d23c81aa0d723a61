"""The journal of comparisons, ``semantic-checks.jsonl``, and the ledger made of its lines.

Law: the file is the truth, and each worker that shares it reads what all of them have written. Its
size is bounded: at ``max_bytes`` it replaces FILE.1, and the new file begins with the rules that
are switched off.
"""

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from gateway.cache.append_files import open_locked, previous_file, read_bytes, write_line
from gateway.cache.folder_watch import Deliver, at_once
from gateway.cache.plan import Plan
from gateway.cache.ports import Entry, Quarantine
from gateway.cache.quality.shadow_eval import ComparisonLedger, basis_of, question_id
from policies.decision import Decision

COMPARISONS_FILE = "semantic-checks.jsonl"
JUDGED = "judged"
"""The kind of a line that says what a person found: it is of the comparison with this entry, key
and time."""
MAX_BYTES = 8 * 2**20
LINES_AT_ONCE = 256
"""Taken in one turn of the loop."""

_log = logging.getLogger(__name__)


class ComparisonJournal:
    """Appends to the journal, reads the lines of other workers, and answers from the ledger."""

    def __init__(self, path: Path, quarantine: Quarantine, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.ledger = ComparisonLedger()
        self._quarantine = quarantine
        self._max_bytes = max_bytes
        self._seen: tuple[int, int] | None = None
        """Inode and size of the file when it was read."""
        self._unreadable = False
        self._lock = threading.Lock()
        self.is_known: Callable[[], bool] = self.look
        """Tells whether the ledger has what the file has; the default looks at the file."""

    def off(self, decision: Decision, threshold: Callable[[float], float | None]) -> bool:
        """Tell whether the rule has no semantic hits at present.

        ``threshold`` is the verifier's for a budget.
        """
        if not self.is_known():
            return True  # nothing is served by meaning
        rule = self.ledger.rules.get(decision.rule)
        if rule is None or not rule.off:
            return False
        return rule.basis == basis_of(decision, threshold(decision.max_wrong_hits))

    def alias(self, plan: Plan, entry: Entry, now: float) -> bool:
        """Tell whether the entry's answer is known to answer the plan's question."""
        if not self.ledger.aliases:
            return False
        question, key, until = question_id(plan), entry.key.hex(), entry.expires_at
        return self.ledger.alias(question, key, until, now=now, barred=self._quarantine.holds)

    async def append(self, line: Mapping[str, Any]) -> None:
        """Write a line. Raises OSError; this process counts the line even then."""
        lines = [_encoded(each) for each in self.ledger.lines_to_carry_over()]
        try:
            await asyncio.to_thread(self._append, _encoded(line), b"".join(lines))
        except OSError:
            self.ledger.take(line)
            raise
        await self.refresh()

    async def refresh(self) -> None:
        """Take what the file has now."""
        deliver = asyncio.get_running_loop().call_soon_threadsafe
        await asyncio.to_thread(self.look, deliver)

    def rules_off(self) -> dict[str, bool]:
        self.is_known()
        return self.ledger.rules_off()

    def report(self) -> dict[str, Any]:
        self.is_known()
        return {"rules": self.ledger.report(), "aliases": self.ledger.aliases}

    def look(self, deliver: Deliver = at_once) -> bool:
        """Read the lines since the last look; tell whether the file could be read."""
        with self._lock:
            return self._look(deliver)

    def _look(self, deliver: Deliver) -> bool:
        try:
            status = self.path.stat()
            if (status.st_ino, status.st_size) != self._seen:
                self._read_new(status, deliver)
            self._unreadable = False
        except FileNotFoundError:
            self._unreadable = False
        except OSError as error:
            if not self._unreadable:
                _log.warning("%s cannot be read: %s", self.path, error.strerror or error)
            self._unreadable = True
        return not self._unreadable

    def _read_new(self, status: os.stat_result, deliver: Deliver) -> None:
        former = previous_file(self.path)
        inode, offset = self._seen or (0, 0)
        if status.st_ino != inode or status.st_size < offset:
            if former.exists():
                turned_over = former.stat().st_ino == inode
                self._read_lines(former, offset if turned_over else 0, deliver)
            offset = 0
        self._seen = status.st_ino, self._read_lines(self.path, offset, deliver)

    def _read_lines(self, path: Path, offset: int, deliver: Deliver) -> int:
        """Read the complete lines from ``offset`` on; return where they end."""
        data = read_bytes(path, offset=offset)
        data = data[: data.rfind(b"\n") + 1]
        lines = []
        for raw in data.splitlines():
            try:
                line = orjson.loads(raw)
            except orjson.JSONDecodeError:
                continue  # the half of a line that a crash left
            if isinstance(line, dict):
                lines.append(line)
        for start in range(0, len(lines), LINES_AT_ONCE):
            deliver(self._take, lines[start : start + LINES_AT_ONCE])
        return offset + len(data)

    def _take(self, lines: Sequence[Mapping[str, Any]]) -> None:
        for line in lines:
            self.ledger.take(line)

    def _append(self, data: bytes, carried: bytes) -> None:
        with open_locked(self.path, len(data), max_bytes=self._max_bytes) as (descriptor, size):
            write_line(descriptor, size, data if size else carried + data)


def _encoded(line: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(line)) + b"\n"
