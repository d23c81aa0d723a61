"""The journal of comparisons, ``semantic-checks.jsonl``, and what its lines have taught.

Law: the file is the truth, and every worker that shares it reads it: whoever asks is told what all
of them have found. It never grows without bound: at ``max_bytes`` it becomes FILE.1, in place of
the one before, and the new one begins with what is switched off.
"""

import asyncio
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

from gateway.cache.append_files import before, turned
from gateway.cache.entry import Entry
from gateway.cache.plan import Plan
from gateway.cache.ports import Quarantine
from gateway.cache.shadow_eval.comparison import asked_id, basis_of
from gateway.cache.shadow_eval.ledger import CheckLedger
from policies.decision import Decision

CHECKS_FILE = "semantic-checks.jsonl"
MAX_BYTES = 8 * 2**20

_log = logging.getLogger(__name__)


class CheckJournal:
    """Appends to the journal, reads what others have appended, and answers from it."""

    def __init__(self, path: Path, quarantine: Quarantine, *, max_bytes: int = MAX_BYTES) -> None:
        self.path = path
        self.ledger = CheckLedger()
        self._quarantine = quarantine
        self._max_bytes = max_bytes
        self._seen: tuple[int, int] | None = None
        """Inode and size of the file when it was read."""
        self._unreadable = False

    def off(self, decision: Decision, threshold: float | None) -> bool:
        """See the port ``Learned``."""
        self.read()
        # In doubt nothing is served by meaning.
        return self._unreadable or self.ledger.off(decision.rule, basis_of(decision, threshold))

    def alias(self, plan: Plan, entry: Entry, now: float) -> bool:
        """See the port ``Learned``."""
        if not self.ledger.aliases:
            return False
        asked, key, until = asked_id(plan), entry.key.hex(), entry.expires_at
        return self.ledger.alias(asked, key, until, now=now, barred=self._quarantine.holds)

    async def append(self, line: Mapping[str, Any]) -> None:
        """See the port ``Comparisons``."""
        carried = [_encoded(each) for each in self.ledger.carried_over()]
        try:
            await asyncio.to_thread(self._append, _encoded(line), b"".join(carried))
        except OSError:
            self.ledger.take(line)
            raise
        self.read()

    def rules_off(self) -> dict[str, bool]:
        """Return of each rule that was ever compared whether its semantic hits are off."""
        self.read()
        return self.ledger.rules_off()

    def report(self) -> dict[str, Any]:
        """Return the figures by rule, and how many aliases there are."""
        self.read()
        return {"rules": self.ledger.report(), "aliases": self.ledger.aliases}

    def to_switch_off(self, rule: str) -> dict[str, Any] | None:
        """See the port ``Comparisons``."""
        return self.ledger.to_switch_off(rule)

    def read(self) -> bool:
        """Take what was appended since the last time; tell whether the file could be read."""
        try:
            status = self.path.stat()
            if (status.st_ino, status.st_size) != self._seen:
                self._take_news(status)
            self._unreadable = False
        except FileNotFoundError:
            self._unreadable = False
        except OSError as error:
            if not self._unreadable:
                _log.warning("%s cannot be read: %s", self.path, error.strerror or error)
            self._unreadable = True
        return not self._unreadable

    def _take_news(self, status: os.stat_result) -> None:
        former = before(self.path)
        inode, offset = self._seen or (0, 0)
        if status.st_ino != inode or status.st_size < offset:
            if former.exists():
                turned_over = former.stat().st_ino == inode
                self._take(former, offset if turned_over else 0)
            offset = 0
        self._seen = status.st_ino, self._take(self.path, offset)

    def _take(self, path: Path, offset: int) -> int:
        """Take the whole lines from ``offset`` on; return where they end."""
        with path.open("rb") as file:
            file.seek(offset)
            whole = file.read()
        whole = whole[: whole.rfind(b"\n") + 1]
        for raw in whole.splitlines():
            try:
                line = orjson.loads(raw)
            except orjson.JSONDecodeError:
                continue  # the half of a line that a crash left
            if isinstance(line, dict):
                self.ledger.take(line)
        return offset + len(whole)

    def _append(self, data: bytes, carried: bytes) -> None:
        most = self._max_bytes
        with turned(self.path, len(data), max_bytes=most, access=os.O_RDWR) as (descriptor, size):
            if not size:
                data = carried + data
            elif os.pread(descriptor, 1, size - 1) != b"\n":
                data = b"\n" + data
            os.write(descriptor, data)
            os.fsync(descriptor)


def _encoded(line: Mapping[str, Any]) -> bytes:
    return orjson.dumps(dict(line)) + b"\n"
