"""``refrain estimate``: what the cache would have saved of a log's requests, in figures.

The log is read twice: first to find its lines and their order, then to simulate them. So memory
does not grow with the length of a line's text, and a log may be in any order, the newest first too.
"""

import asyncio
import shutil
import tempfile
from array import array
from collections.abc import Iterator
from contextlib import AsyncExitStack, ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import IO, Any

import orjson

from gateway.app import default_policy
from gateway.cli.offline.calibrate import scoring_service
from gateway.cli.offline.estimate.log_formats import Format, LoggedRequest, read_line
from gateway.cli.offline.estimate.page import page
from gateway.cli.offline.estimate.simulation import FixedPolicy, Simulation, fixed_policy
from gateway.cli.offline.estimate.tally import Tally
from gateway.cli.offline.estimate.text import text
from gateway.cli.offline.json_lines import Lines, open_log
from gateway.cli.progress import noting, progress
from gateway.cli.terminal import CommandError, FailedError, show, show_json, unreadable
from gateway.semantic.calibrations import Calibrations
from gateway.semantic.ports import SemanticUnavailableError
from gateway.semantic.verifier import CalibratedVerifier
from gateway.server.open.prices import load_prices
from gateway.telemetry.prices import PricesError
from gateway.telemetry.usage import TypicalTimes
from policies.format.values import percent_text
from policies.format.yaml_document import PolicyError

_SCORE_SECONDS = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulated:
    """The options of the simulation."""

    log_format: Format | None
    risk: float | None
    prefix_seconds: float
    data_dir: Path


@dataclass(slots=True)
class LogIndex:
    """The lines of a log that hold a request: where each begins, and when its request did."""

    lines: IO[bytes]
    """The log's own bytes, or an unpacked copy in a file without a name."""
    skipped: int = 0
    first: float | None = None
    last: float | None = None
    offsets: "array[int]" = field(default_factory=lambda: array("Q"))
    starts: "array[float]" = field(default_factory=lambda: array("d"))

    def __len__(self) -> int:
        return len(self.offsets)

    def in_order(self, log_format: Format | None) -> Iterator[LoggedRequest]:
        """Yield the requests in the order of their start."""
        starts = self.starts
        order = sorted(range(len(starts)), key=starts.__getitem__)
        for number in order:
            self.lines.seek(self.offsets[number])
            yield read_line(orjson.loads(self.lines.readline()), log_format)


def index_log(file: Path, log_format: Format | None, stack: ExitStack) -> LogIndex:
    """Find the requests of a log; lines without one are named. Raises CommandError."""
    source = stack.enter_context(open_log(file))
    if file.suffix == ".gz" or not source.seekable():
        copy = stack.enter_context(tempfile.TemporaryFile())  # noqa: SIM115 - the stack closes it
        shutil.copyfileobj(source, copy)
        copy.seek(0)
        source = copy
    index = LogIndex(source)
    at = 0

    def lines() -> Iterator[bytes]:
        nonlocal at
        end = 0
        for line in source:
            at, end = end, end + len(line)
            yield line

    values = Lines(partial(read_line, log_format=log_format), file)
    latest = 0.0
    with progress("reading requests") as note:
        for _, one in values.read_from(file, lines()):
            if one.start is not None:
                latest = one.start
                index.first = latest if index.first is None else min(index.first, latest)
                index.last = latest if index.last is None else max(index.last, latest)
            index.offsets.append(at)
            note(len(index))
            index.starts.append(latest)  # one without a time stays behind the line before it
    index.skipped = values.skipped
    return index


def estimate(
    *,
    log: Path,
    policy: Path | None,
    prices: Path | None,
    html: Path | None,
    as_json: bool,
    **simulated: Any,
) -> int:
    """Print what would have been saved; return the exit code.

    ``simulated`` says how, see ``Simulated``.
    """
    how = Simulated(**simulated)
    try:
        policies = fixed_policy(policy or default_policy(), how.risk)
        price_list = load_prices(prices)
    except (PolicyError, PricesError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise unreadable(error.filename or log, error) from None
    with ExitStack() as stack:
        index = index_log(log, how.log_format, stack)
        if not index:
            raise CommandError(f"{log}: no request in it; docs/start/estimate.md has the formats")
        tally = Tally(price_list, index.first, index.last)
        facts = asyncio.run(_simulate(how, index, policies, tally))
    source = policies.active.policy.source
    result = {"log": str(log), "policy": source, "skipped_lines": index.skipped, **facts}
    result |= tally.as_json()
    if html is not None:
        try:
            html.write_text(page(result), "utf-8")
        except OSError as error:
            why = error.strerror or error
            raise FailedError(f"{html}: cannot be written: {why}") from None
    if as_json:
        show_json(result)
    else:
        show(text(result))
    return 0


async def _simulate(
    how: Simulated, index: LogIndex, policies: FixedPolicy, tally: Tally
) -> dict[str, Any]:
    """Take all requests; return what was simulated, and how far."""
    semantic: dict[str, Any] = {"risk": how.risk, "left_out": "no risk was given"}
    async with AsyncExitStack() as stack:
        service = verifier = None
        if how.risk is not None:
            try:
                service = await stack.enter_async_context(scoring_service(None))
                verifier = CalibratedVerifier(
                    service, Calibrations(how.data_dir), seconds=_SCORE_SECONDS
                )
                semantic["left_out"] = _why_not(policies, verifier, how.risk)
            except FailedError as error:
                semantic["left_out"] = str(error)
            if semantic["left_out"] is not None:
                service = verifier = None
        simulation = Simulation(
            policies, window=how.prefix_seconds, index=service, verifier=verifier
        )
        stack.push_async_callback(simulation.close)
        typical = TypicalTimes()
        with progress("simulating requests", len(index)) as note:
            for logged in noting(index.in_order(how.log_format), note):
                one = _with_duration(logged, typical)
                try:
                    tally.add(one, await simulation.take(one))
                except SemanticUnavailableError as error:
                    raise FailedError(f"the embeddings service failed: {error.reason}") from None
        await simulation.finish()
        not_stored = sorted(simulation.not_stored.items(), key=itemgetter(1), reverse=True)
        return {
            "semantic": semantic,
            "prefix_minutes": how.prefix_seconds / 60.0,
            "not_stored": {reason.value: count for reason, count in not_stored},
            "evictions": simulation.evictions,
        }


def _with_duration(one: LoggedRequest, typical: TypicalTimes) -> LoggedRequest:
    """Give a request without a call the usual time of a call for its model, if that is known."""
    model = one.request.model
    if one.called:
        if one.storable and one.seconds:
            typical.note(model, one.seconds)
        return one
    seconds = typical.seconds(model)
    if one.start is None or seconds is None:
        return one
    return replace(one, end=one.start + seconds)


def _why_not(policies: FixedPolicy, verifier: CalibratedVerifier, risk: float) -> str | None:
    """Return why nothing could be answered by meaning, or None."""
    if verifier.details()["kind"] != "model":
        return "no trained verifier is installed: pip install 'refrain-gateway[semantic]'"
    if not any(each.semantic and not each.shadow for each in policies.active.policy.decisions):
        return "no rule of the policy has semantic: on"
    if verifier.threshold(risk) is None:
        return f"no score is known to keep {percent_text(risk)} of wrong hits"
    return None
