"""``refrain semantic calibrate``: thresholds for error budgets from an operator's own traffic.

A line of a log is a comparison that the gateway made, what a person said of one, or a pair that a
person labelled. Laws: what is unsure counts as wrong, unless a person has judged it. A line that
cannot be used is counted and named, and never guessed. What keeps no budget is not written. The
file is there whole or not at all. An embeddings service that was started for the command ends with
it, and owns nothing of a gateway.
"""

import asyncio
import contextlib
import importlib.util
import os
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from operator import mul
from pathlib import Path
from typing import Any

from embeddings.client import EmbeddingsClient
from embeddings.verify.binomial import upper_bound
from embeddings.verify.calibration import Calibration, Step, calibrated, written_calibration
from embeddings.verify.resemblance import LEAST, Features
from gateway.cache.append_files import previous_file, replace_file
from gateway.cache.quality.comparison_journal import COMPARISONS_FILE
from gateway.cache.quality.shadow_eval import Kind
from gateway.cli.offline.json_lines import Lines
from gateway.cli.process.child_process import PYTHON, Child, run_child
from gateway.cli.progress import for_each, progress
from gateway.cli.terminal import CommandError, FailedError, say
from gateway.semantic.calibrations import OWN_FILE, Calibrations
from gateway.semantic.ports import SemanticUnavailableError
from gateway.semantic.verifier import OF_THE_TEXT, CalibratedVerifier
from gateway.server.admin.recorded_request import InvalidFieldError
from policies.format.values import percent_text

READY_SECONDS = 120.0
_CALL_SECONDS = 30.0
_POLL_SECONDS = 0.1
_AT_A_TIME = 8
_NOTHING_COMPARED = "set shadow: on in the policy, or give a file of labelled pairs"
_SCORE_SECONDS = 30.0
_CURVE = 8
"""Lines of the curve."""


Identity = tuple[Any, Any, Any]
"""Entry, key and time of a comparison."""


@dataclass(frozen=True, slots=True)
class WouldBeHit:
    """A would-be hit with its answer compared with a fresh one."""

    score: float
    wrong: bool
    verifier: str
    """Digest of the verifier that gave the score."""
    unsure: bool = False
    selected: bool = False
    """Whether sampling or promotion compared it: they pass near misses over, or served hits."""
    features: Features | None = None
    of: Identity | None = field(default=None, compare=False)


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a person said of a comparison."""

    of: Identity
    same: bool


@dataclass(frozen=True, slots=True)
class LabelledPair:
    """Two questions, and whether one answer fits both."""

    question: str
    stored: str
    same: bool


Parsed = WouldBeHit | Judgement | LabelledPair | None


def parse_line(line: Any) -> Parsed:
    """Read a line's JSON; None is another line of the gateway's journal. Raises InvalidFieldError.

    A line of an alias counts as such another: aliases are hits because they were right.
    """
    match line:
        case {"asked": str(question), "stored": str(stored), "same": bool(same)}:
            return LabelledPair(question, stored, same)
        case {"asked": _, "stored": _}:
            raise InvalidFieldError("", "asked and stored as text, and same: true or false")
        case {"kind": "judged", "same": bool(same)}:
            return Judgement((line.get("entry"), line.get("key"), line.get("of")), same)
        case {"kind": str(), "alias": True}:
            return None
        case {"kind": str(), "outcome": "equal" | "different" | "unsure" as outcome}:
            return _comparison(line, outcome)
        case {"kind": str()} if "outcome" not in line:
            return None
    raise InvalidFieldError("", "a comparison of the gateway or {asked, stored, same}")


def _comparison(line: dict[str, Any], outcome: str) -> WouldBeHit:
    score: Any = line.get("score")
    verifier = line.get("verifier")
    is_number = isinstance(score, int | float) and not isinstance(score, bool)
    if not is_number or not 0 <= score <= 1:
        raise InvalidFieldError("score", "a number from 0 to 1")
    if not isinstance(verifier, str) or not verifier:
        raise InvalidFieldError("verifier", "the digest of the verifier whose score it is")
    return WouldBeHit(
        float(score),
        outcome != "equal",
        verifier,
        unsure=outcome == "unsure",
        # Near misses come from shadow mode or from promotion, and older lines do not say which.
        selected=line["kind"] != Kind.SHADOW and line.get("shadow") is not True,
        features=_features(line, float(score)),
        of=(line.get("entry"), line.get("key"), line.get("time")),
    )


def _features(line: dict[str, Any], score: float) -> Features | None:
    """Return the features of a comparison; None where the line has none."""
    if line.get("characters") is None and line.get("overlap") is None:
        return None
    known: dict[str, Any] = {}
    for name, least, most in (("similarity", -2, 2), ("characters", 0, 10**9), ("overlap", 0, 1)):
        value = known[name] = line.get(name)
        # NaN is no such number either.
        if not isinstance(value, int | float) or not least <= value <= most:
            raise InvalidFieldError(name, "a number, as the gateway writes it")
    return Features(known["similarity"], score, known["characters"], known["overlap"])


@dataclass(slots=True)
class Points:
    """Would-be hits of one verifier, and the lines that count as none."""

    verifier: str = ""
    scored: list[tuple[float, bool]] = field(default_factory=list)
    unsure: int = 0
    selected: int = 0
    features: list[Features] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)


def calibrate(
    *,
    log: Sequence[Path],
    confidence: float,
    budget: Sequence[float],
    socket: Path | None,
    write: bool,
    data_dir: Path,
) -> int:
    """Print thresholds, and write them if requested; return the exit code."""
    latest = data_dir / COMPARISONS_FILE
    if not log and not latest.exists():
        raise CommandError(f"{latest}: not there: {_NOTHING_COMPARED}")
    former = previous_file(latest)
    logs = log or [*([former] if former.exists() else ()), latest]
    lines = Lines(parse_line, *logs)
    points = asyncio.run(_points([line for _, line in lines], data_dir, socket))
    points.skipped["no comparisons or pairs"] += lines.skipped
    names = " ".join(file.name for file in logs)
    if not points.scored:
        _print_skipped(points)
        raise CommandError(f"{names}: no would-be hit in it")
    calibration = calibrated(
        points.scored,
        verifier=points.verifier,
        confidence=confidence,
        provenance=f"refrain semantic calibrate {names}, {time.strftime('%Y-%m-%d')}",
        # Sampling has served hits alone, and promotion near misses alone.
        features=() if points.selected else points.features,
    )
    print("\n".join(_table(calibration, points, sorted(budget))))
    _print_skipped(points)
    if write and calibration.features is None:
        say(_why_not_compared(points))
    reachable = [each for each in budget if calibration.step(each) is not None]
    if not reachable:
        raise FailedError("none of the budgets is kept" + "; nothing was written" * write)
    if not write:
        return 0
    file = data_dir / OWN_FILE
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        replace_file(file, written_calibration(calibration))
    except OSError as error:
        why = error.strerror or error
        raise FailedError(f"{file}: cannot be written: {why}") from None
    print(f"\nwritten to {file}; a running gateway takes it at its next lookup")
    return 0


async def _points(lines: Sequence[Parsed], data_dir: Path, socket: Path | None) -> Points:
    """Return the points of one verifier: of the one that scores the pairs, else of the latest."""
    compared = [line for line in lines if isinstance(line, WouldBeHit)]
    pairs = [line for line in lines if isinstance(line, LabelledPair)]
    points = Points(compared[-1].verifier if compared else "")
    if pairs:
        async with scoring_service(socket) as service:
            if not service.verifier:
                fault = f" ({service.verifier_fault})" if service.verifier_fault else ""
                raise FailedError(f"no trained verifier is loaded{fault}: no pair can be scored")
            points.verifier = service.verifier
            await _score(pairs, service, points, data_dir)
    judged = {line.of: line.same for line in lines if isinstance(line, Judgement)}
    for each in compared:
        if each.verifier != points.verifier:
            points.skipped["of another verifier"] += 1
            continue
        same = judged.get(each.of) if each.of is not None else None
        points.scored.append((each.score, each.wrong if same is None else not same))
        points.unsure += each.unsure and same is None
        points.selected += each.selected
        if each.features is not None:
            points.features.append(each.features)
    return points


async def _score(
    pairs: Sequence[LabelledPair], service: EmbeddingsClient, points: Points, data_dir: Path
) -> None:
    """Add the gateway's own verifications of the pairs; a pair that a guard refuses is no hit."""
    verifier = CalibratedVerifier(service, Calibrations(data_dir), seconds=_SCORE_SECONDS)

    async def score(pair: LabelledPair) -> None:
        result = await verifier.verify(pair.question, pair.stored, await _cosine(service, pair))
        refusal = result.refusal
        if refusal is None:
            points.scored.append((result.score, not pair.same))
            if result.features is not None:
                points.features.append(result.features)
        elif refusal.startswith("verifier-") or refusal in ("not-a-number", "fault"):
            raise FailedError(f"a pair could not be scored: {refusal}")
        else:
            points.skipped["refused by a guard"] += 1

    await for_each(pairs, score, at_a_time=_AT_A_TIME, what="scoring pairs")


async def _cosine(service: EmbeddingsClient, pair: LabelledPair) -> float:
    """Return the cosine of the two questions; 0 if one has no vector."""
    try:
        question, stored = await service.embed((pair.question, pair.stored))
    except SemanticUnavailableError as error:
        if error.reason in OF_THE_TEXT:
            return 0.0
        raise FailedError(f"a pair could not be scored: encoder-{error.reason}") from None
    return float(sum(map(mul, question, stored)))


def _table(calibration: Calibration, points: Points, budgets: Sequence[float]) -> Iterator[str]:
    wrong = calibration.steps[-1].wrong
    unsure = f", {points.unsure:,} of them unsure" if points.unsure else ""
    verifier = calibration.verifier[:16]
    yield f"{calibration.hits:,} would-be hits of verifier {verifier}, {wrong:,} wrong{unsure}"
    yield ""
    bound = f"at most ({calibration.confidence:.4g} sure)"
    yield f"{'surest hits':>19}{'score from':>18}{'wrong':>8}{'share':>9}{bound:>22}"
    for each in calibration.curve(_CURVE):
        yield (
            f"{each.hits:>19,}{each.threshold:>18.6f}{each.wrong:>8,}{each.wrong / each.hits:>9.2%}"
            f"{_most(calibration, each):>21.2%}"
        )
    yield ""
    yield f"{'budget':<9}{'threshold':>10}{'hits served':>18}{'wrong':>8}{bound:>31}"
    needed = False
    for budget in budgets:
        step = calibration.step(budget)
        if step is None:
            more = calibration.hits_needed(budget)
            needed = needed or more is not None
            why = "too many of the surest hits are wrong"
            if more is not None:
                why = f"{more:,} more judgement{'s are' if more > 1 else ' is'} needed"
            yield f"{percent_text(budget):<9}{'none':>10}   {why}"
            continue
        hits = f"{step.hits:,} ({step.hits / calibration.hits:.0%})"
        yield (
            f"{percent_text(budget):<9}{step.threshold:>10.6f}{hits:>18}{step.wrong:>8,}"
            f"{_most(calibration, step):>30.2%}"
        )
    if needed:
        yield ""
        yield "So many more judgements are enough if the surest ones go on as so far."


def _most(calibration: Calibration, step: Step) -> float:
    return upper_bound(step.wrong, step.hits, calibration.confidence)


def _why_not_compared(points: Points) -> str:
    text = "later traffic is not compared with this calibration: "
    if points.selected:
        why = "only shadow mode and labelled pairs have both hits and near misses"
        return f"{text}{points.selected:,} of the hits come from sampling or promotion; {why}"
    return f"{text}the features of {LEAST} hits are needed, and {len(points.features)} are known"


def _print_skipped(points: Points) -> None:
    for why, count in sorted(points.skipped.items()):
        if count:
            say(f"passed over, {why}: {count:,}")


@contextlib.asynccontextmanager
async def scoring_service(socket: Path | None, *arguments: str) -> AsyncIterator[EmbeddingsClient]:
    """Open the service at ``socket``, or start one with these arguments. Raises FailedError."""
    async with contextlib.AsyncExitStack() as stack:
        process = None
        if socket is None:
            if importlib.util.find_spec("onnxruntime") is None:
                install = "pip install 'refrain-gateway[semantic]'"
                raise FailedError(f"nothing can be scored: {install}")
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="refrain-")))
            socket = folder / "embeddings.sock"
            process = await stack.enter_async_context(_start_service(socket, folder, *arguments))
        service = EmbeddingsClient(socket, timeout=_CALL_SECONDS)
        stack.push_async_callback(service.close)
        await _wait_until_ready(service, socket, process)
        yield service


@contextlib.asynccontextmanager
async def _start_service(
    socket: Path, folder: Path, *arguments: str
) -> AsyncIterator[asyncio.Task[int]]:
    argv = [*PYTHON, "-m", "embeddings", "--socket", str(socket), "--data-dir", str(folder)]
    # Its start is no news; what is wrong is.
    argv += ["--log-level", "warning", *arguments]
    if not arguments and (model := os.environ.get("REFRAIN_EMBEDDINGS_MODEL")):
        argv += ["--model", model]
    child = Child("embeddings", argv, {"REFRAIN_VECTORS": "faiss"}, stop_seconds=5.0)
    stop = asyncio.Event()
    process = asyncio.create_task(run_child(child, stop, at_once=asyncio.Event()))
    try:
        yield process
    finally:
        stop.set()
        await process


async def _wait_until_ready(
    service: EmbeddingsClient, socket: Path, process: asyncio.Task[int] | None
) -> None:
    """Wait for the service, which ``process`` is where one was started. Raises FailedError."""
    what = f"{'starting an' if process else 'waiting for the'} embeddings service"
    try:
        with progress(what):
            async with asyncio.timeout(READY_SECONDS):
                while (reason := await service.not_ready()) is not None:
                    if process is None and reason != "encoder: loading":
                        raise FailedError(f"{socket}: no embeddings service answers there")
                    if process is not None and process.done():
                        why = "its own lines say why"
                        raise FailedError(f"the embeddings service did not start; {why}")
                    await asyncio.sleep(_POLL_SECONDS)
    except TimeoutError:
        raise FailedError(f"the embeddings service was not ready in {READY_SECONDS:g} s") from None
