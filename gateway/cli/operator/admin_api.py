"""``refrain warm``, ``audit`` and ``semantic report``: an operator's requests to a running gateway.

Law: secrets come from the environment; a command line is public. Progress goes to standard error,
results to standard output, and the exit code says whether all went well.

A line of a file for ``refrain warm`` is {"question": TEXT, "answer": TEXT} or {"request": BODY,
"answer": RESULT or TEXT}. Both may leave the answer out; "endpoint" is chat by default.
"""

import asyncio
import hashlib
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from pathlib import Path
from typing import Any

import orjson
from aiohttp import ClientConnectorError, ClientError, ClientSession, ClientTimeout

from gateway.cache.quality.comparison_journal import COMPARISONS_FILE, ComparisonJournal
from gateway.cache.quality.quarantine import QuarantineFile
from gateway.cli.offline.json_lines import MOST_NAMED_LINES, Lines
from gateway.cli.progress import for_each, progress
from gateway.cli.terminal import CommandError, FailedError, printable, say, show, show_json
from gateway.server.admin.recorded_request import InvalidFieldError
from policies.decision import Endpoint

_REPLY_SECONDS = 600.0
_MOST_FAULTS = 20
"""Lines that failed are named one by one up to here."""
_COLUMNS = "rule,compared,equal,different,unsure,wrong hits,95 % interval,budget,would meet"
_WIDTHS = (-20, 9, 8, 11, 8, 12, 20, 9, 12)
_FIELDS = ("question", "request", "answer", "endpoint")


@dataclass(frozen=True, slots=True)
class KnownQuestion:
    """A request, and the complete result that answers it where that is known."""

    endpoint: Endpoint
    request: dict[str, Any]
    answer: dict[str, Any] | None


def _known_question(line: Any, *, model: str | None, system: str | None) -> KnownQuestion:
    """Read a line; ``model`` and ``system`` complete a bare question. Raises ValueError."""
    if not isinstance(line, dict):
        raise InvalidFieldError("", "a JSON object")
    for field in line:
        if field not in _FIELDS:
            raise InvalidFieldError(field, f"one of the fields {', '.join(_FIELDS)}")
    try:
        endpoint = Endpoint(line.get("endpoint", Endpoint.CHAT.value))
    except ValueError:
        raise InvalidFieldError("endpoint", f"one of {', '.join(Endpoint)}") from None
    match line:
        case {"request": dict(request)} if "question" not in line:
            request = {**request, "stream": False}
        case {"question": str(question)} if "request" not in line and question.strip():
            if model is None:
                raise ValueError("question: a bare question needs --model")
            opening = [] if system is None else [{"role": "system", "content": system}]
            messages = [*opening, {"role": "user", "content": question}]
            request = {"model": model, "messages": messages}
        case _:
            raise InvalidFieldError("", "either question (text) or request (an object)")
    match line.get("answer"):
        case None | dict() as answer:
            return KnownQuestion(endpoint, request, answer)
        case str(text) if text and endpoint is Endpoint.CHAT:
            return KnownQuestion(endpoint, request, _chat_result(text, request))
        case _:
            raise InvalidFieldError("answer", "text (for a chat) or a complete result")


def _chat_result(text: str, request: dict[str, Any]) -> dict[str, Any]:
    digest = hashlib.sha256(orjson.dumps([request, text], option=orjson.OPT_SORT_KEYS)).hexdigest()
    message = {"role": "assistant", "content": text, "refusal": None}
    choice = {"index": 0, "message": message, "logprobs": None, "finish_reason": "stop"}
    return {
        "id": f"chatcmpl-{digest[:24]}",
        "object": "chat.completion",
        "created": int(time.time()),
        "model": request.get("model"),
        "choices": [choice],
        # Nothing was computed for it, and nothing is claimed.
        "usage": {"prompt_tokens": 0, "completion_tokens": 0, "total_tokens": 0},
    }


async def fetch(
    session: ClientSession, url: str, path: str, fields: Mapping[str, Any] | None, key: str | None
) -> tuple[str, dict[str, Any]]:
    """Post the fields, or get a page where there are none, with a key as bearer token.

    Return Cache-Status and the JSON object of the reply. Raises FailedError.
    """
    url = url.rstrip("/").removesuffix("/v1")
    method, raw = ("GET", None) if fields is None else ("POST", orjson.dumps(fields))
    headers = {"Content-Type": "application/json", **_bearer(key)}
    try:
        async with session.request(method, url + path, data=raw, headers=headers) as reply:
            body = await reply.read()
    except (ClientError, TimeoutError, OSError) as error:
        raise cannot_ask(url, error) from None
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    match reply.status, parsed:
        case HTTPStatus.OK, dict() if parsed:
            return reply.headers.get("Cache-Status", ""), parsed
        case HTTPStatus.UNAUTHORIZED, dict() if path.startswith("/admin"):
            raise FailedError("401: set REFRAIN_ADMIN_TOKEN to the gateway's token")
        case status, {"error": {"message": str(message)}}:
            raise FailedError(f"{status}: {message}")
    raise FailedError(f"{url} answers {reply.status} and not as a gateway does: is it one?")


def cannot_ask(url: str, error: Exception) -> FailedError:
    """Return the error of a command whose gateway does not answer."""
    match error:
        case ClientConnectorError(os_error=OSError(errno=int(number))) if number > 0:
            reason = f"{os.strerror(number)}; is the gateway running?"
        case TimeoutError():
            reason = "no answer in time"
        case _:
            reason = str(error) or type(error).__name__
    return FailedError(f"{url} cannot be asked: {reason}")


def _bearer(key: str | None) -> dict[str, str]:
    return {} if key is None else {"Authorization": f"Bearer {key}"}


def ask_gateway(
    url: str,
    path: str,
    fields: Mapping[str, Any] | None = None,
    *,
    token: str | None = None,
    seconds: float = _REPLY_SECONDS,
) -> dict[str, Any]:
    """Do an operator's action at a running gateway, or without ``fields`` get a page.

    ``token`` is REFRAIN_ADMIN_TOKEN by default. Raises FailedError.
    """

    async def ask() -> dict[str, Any]:
        key = os.environ.get("REFRAIN_ADMIN_TOKEN") if token is None else token
        async with ClientSession(timeout=ClientTimeout(total=seconds)) as session:
            _, reply = await fetch(session, url, f"/admin/{path}", fields, key)
            return reply

    return asyncio.run(ask())


def warm(*, file: Path, model: str | None, system: str | None, concurrency: int, url: str) -> int:
    """Load or generate answers to the questions in a file; return the exit code."""
    lines = Lines(partial(_known_question, model=model, system=system), file)
    questions = list(lines)
    if lines.skipped > MOST_NAMED_LINES:
        say(f"{file}: {lines.skipped - MOST_NAMED_LINES:,} more lines cannot be used")
    if lines.skipped:
        return 2
    outcomes = asyncio.run(_warm(questions, url, concurrency))
    counts = ", ".join(f"{count} {outcome}" for outcome, count in sorted(outcomes.items()))
    print(f"{file}: {len(questions)} questions: {counts or 'nothing to do'}")
    return 1 if outcomes["failed"] else 0


async def _warm(
    questions: list[tuple[str, KnownQuestion]], url: str, at_a_time: int
) -> Counter[str]:
    outcomes: Counter[str] = Counter()
    async with ClientSession(timeout=ClientTimeout(total=_REPLY_SECONDS)) as session:

        async def warm(question: tuple[str, KnownQuestion]) -> None:
            place, known = question
            try:
                outcome = await _warm_one(session, url, known)
            except FailedError as error:
                outcome = "failed"
                if outcomes[outcome] < _MOST_FAULTS:
                    say(f"{place}: {error}")
            outcomes[outcome] += 1

        await for_each(questions, warm, at_a_time=at_a_time, what="warming questions")
    return outcomes


async def _warm_one(session: ClientSession, url: str, known: KnownQuestion) -> str:
    tenant_key = os.environ.get("OPENAI_API_KEY")
    if known.answer is None:
        cache_status, _ = await fetch(session, url, known.endpoint, known.request, tenant_key)
        if "; hit" in cache_status:
            return "there already"
        if "; stored" in cache_status:
            return "generated"
        raise FailedError(f"answered but not stored: {cache_status or 'no Cache-Status'}")
    fields = {
        "endpoint": known.endpoint.value,
        "headers": _bearer(tenant_key),
        "request": known.request,
        "answer": known.answer,
    }
    token = os.environ.get("REFRAIN_ADMIN_TOKEN")
    _, reply = await fetch(session, url, "/admin/load", fields, token)
    if reply["stored"]:
        return "loaded"
    raise FailedError(f"not stored: {reply['reason']}")


def audit(*, purge: bool, as_json: bool, url: str) -> int:
    """Scan the stored entries with today's detectors; return 1 if findings stay, else 0."""
    with progress("scanning entries"):
        found = ask_gateway(url, "audit", {"purge": purge})
    stay = sum(found["findings"].values()) - found["purged"]
    if as_json:
        show_json(found)
        return 1 if stay else 0
    print(f"{found['scanned']} entries scanned, {found['purged']} purged")
    for title, counts in (("by kind", found["findings"]), ("by rule", found["rules"])):
        for name, count in sorted(counts.items()):
            print(f"  {title}: {printable(name)}: {count}")
    if stay:
        print("Remove them with: refrain audit --purge")
    return 1 if stay else 0


def semantic_report(*, as_json: bool, url: str | None, data_dir: Path) -> int:
    """Print the results of comparisons; return the exit code."""
    report = _report_of(data_dir) if url is None else ask_gateway(url, "semantic")
    if as_json:
        show_json(report)
    else:
        show(report_text(report))
    return 0


def _report_of(data_dir: Path) -> dict[str, Any]:
    path = data_dir / COMPARISONS_FILE
    if not data_dir.is_dir():
        raise CommandError(f"{data_dir}: there is no data directory; --data-dir names another")
    if not path.is_file():
        raise FailedError(f"{path}: not there: nothing has been compared yet")
    journal = ComparisonJournal(path, QuarantineFile(data_dir / "quarantine.jsonl"))
    if not journal.look():
        raise FailedError(f"{path}: cannot be read")
    return journal.report()


def report_text(report: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a report for a terminal."""
    if unlike := report.get("unlike"):
        yield unlike
    rules = report["rules"]
    if not rules:
        yield "nothing has been compared: set shadow: on or sample: 1% under semantic in the policy"
        return
    yield _row(_COLUMNS.split(","))
    for name, figures in rules.items():
        low, high = map(share_text, figures["interval"])
        counts = [figures[key] for key in ("comparisons", "equal", "different", "unsure")]
        interval = f"{low} to {high}" if figures["comparisons"] else "-"
        wrong, budget, reachable = (
            share_text(figures[key]) for key in ("wrong_hits", "budget", "budget_met")
        )
        yield _row([name, *(f"{count:,}" for count in counts), wrong, interval, budget, reachable])
    yield ""
    for name, figures in rules.items():
        near = figures["near_misses"]
        tried = sum(near.values())
        alike = f"; of {tried:,} near misses {near['equal']:,} were the same" if tried else ""
        yield f"{name}: {figures['next']}{alike}"
    yield f"aliases: {report['aliases']:,}"


def _row(cells: Sequence[str]) -> str:
    padded = zip(cells, _WIDTHS, strict=True)
    return "".join(cell.rjust(width) if width > 0 else cell.ljust(-width) for cell, width in padded)


def share_text(value: float | None) -> str:
    """Write a share as a policy has it; of two digits, but whole from 10 % on."""
    if value is None:
        return "-"
    return f"{value:.0%}" if value >= 0.1 else f"{value * 100:.2g}%"
