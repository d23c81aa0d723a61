"""``refrain warm``, ``audit`` and ``semantic report``: what an operator asks of a running gateway.

Law: secrets come from the environment; a command line is public. Progress goes to standard error,
results to standard output, and the exit code says whether all went well.
"""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientSession, ClientTimeout

from gateway.cache.quarantine import QuarantineFile
from gateway.cache.shadow_eval.journal import CHECKS_FILE, ComparisonJournal
from gateway.cli.gateway_client import CallError, Gateway
from gateway.cli.terminal import CommandError, say, unreadable
from gateway.cli.warm_file import Known, KnownError, parse_known
from gateway.server.admin.semantic_report import report_text

_REPLY_SECONDS = 600.0
_PROGRESS_EVERY = 1.0
_TOLD = 20
"""Lines that failed are told one by one up to here."""


def warm(file: Path, *, url: str, model: str | None, system: str | None, concurrency: int) -> int:
    """Load or generate answers to the questions in ``file``; return the exit code."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError as error:
        raise unreadable(file, error) from None
    known: list[tuple[int, Known]] = []
    wrong = 0
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                known.append(
                    (number, parse_known(line, model=model, system=system, now=time.time()))
                )
            except KnownError as error:
                wrong += 1
                say(f"{file}:{number}: {error}")
    if wrong:
        return 2
    return asyncio.run(_warm(file, known, url, concurrency))


async def _warm(file: Path, known: list[tuple[int, Known]], url: str, concurrency: int) -> int:
    outcomes: Counter[str] = Counter()
    queue = iter(known)
    last = time.monotonic()

    async def work(gateway: Gateway) -> None:
        nonlocal last
        for number, one in queue:
            try:
                outcome = await _warm_one(gateway, one)
            except CallError as error:
                outcome = "failed"
                if outcomes[outcome] < _TOLD:
                    say(f"{file}:{number}: {error}")
            outcomes[outcome] += 1
            if time.monotonic() - last > _PROGRESS_EVERY:
                last = time.monotonic()
                say(f"{outcomes.total()} of {len(known)}")

    async with ClientSession(timeout=ClientTimeout(total=_REPLY_SECONDS)) as session:
        gateway = Gateway(session, url, os.environ)
        await asyncio.gather(*(work(gateway) for _ in range(concurrency)))
    told = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{file}: {len(known)} questions: {told or 'nothing to do'}")
    return 1 if outcomes["failed"] else 0


async def _warm_one(gateway: Gateway, known: Known) -> str:
    if known.answer is None:
        cache = await gateway.ask(known)
        if "; hit" in cache:
            return "there already"
        if "; stored" in cache:
            return "generated"
        raise CallError(f"answered but not stored: {cache or 'no Cache-Status'}")
    asked = {
        "endpoint": known.endpoint.value,
        "headers": gateway.tenant_headers,
        "request": known.request,
        "answer": known.answer,
    }
    reply = await gateway.admin("load", asked)
    if reply["stored"]:
        return "loaded"
    raise CallError(f"not stored: {reply['reason']}")


def audit(*, url: str, purge: bool, as_json: bool) -> int:
    """Scan what is stored with today's detectors; return 1 where findings stay, else 0."""
    try:
        found = asyncio.run(_audit(url, purge=purge))
    except CallError as error:
        raise CommandError(str(error), 1) from None
    kept = sum(found["findings"].values()) - found["purged"]
    if as_json:
        print(orjson.dumps(found).decode())
        return 1 if kept else 0
    print(f"{found['scanned']} entries scanned, {found['purged']} purged")
    for title, counts in (("by kind", found["findings"]), ("by rule", found["rules"])):
        for name, count in sorted(counts.items()):
            print(f"  {title}: {name}: {count}")
    if kept:
        print("Remove them with: refrain audit --purge")
    return 1 if kept else 0


async def _audit(url: str, *, purge: bool) -> dict[str, Any]:
    async with ClientSession(timeout=ClientTimeout(total=_REPLY_SECONDS)) as session:
        return await Gateway(session, url, os.environ).admin("audit", {"purge": purge})


def semantic_report(*, data_dir: Path, url: str | None, as_json: bool) -> int:
    """Print what comparisons have shown; return the exit code."""
    if url is None:
        path = data_dir / CHECKS_FILE
        if not data_dir.is_dir():
            raise CommandError(f"{data_dir}: there is no data directory; --data-dir names another")
        if not path.is_file():
            raise CommandError(f"{path}: not there: nothing has been compared yet", 1)
        journal = ComparisonJournal(path, QuarantineFile(data_dir / "quarantine.jsonl"))
        if not journal.read():
            raise CommandError(f"{path}: cannot be read", 1)
        report = journal.report()
    else:
        try:
            report = asyncio.run(_semantic_report(url))
        except CallError as error:
            raise CommandError(str(error), 1) from None
    if as_json:
        print(orjson.dumps(report).decode())
    else:
        print("\n".join(report_text(report)))
    return 0


async def _semantic_report(url: str) -> dict[str, Any]:
    async with ClientSession(timeout=ClientTimeout(total=_REPLY_SECONDS)) as session:
        return await Gateway(session, url, os.environ).look("semantic")
