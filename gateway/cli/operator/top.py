"""``refrain top``: the figures of a running gateway, live in the terminal.

Law: counts are sums since the start, so rates are differences of looks, and a look that is lost
loses nothing. A gateway that goes away leaves its last figures there, below what is wrong.
"""

import asyncio
import contextlib
import os
import signal
import sys
import termios
import time
import tty
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from aiohttp import ClientSession, ClientTimeout
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from gateway.cli.operator.admin_api import fetch, share_text
from gateway.cli.operator.status import KINDS, duration
from gateway.cli.operator.usage import dollars_text, time_text
from gateway.cli.terminal import FailedError

_LOOK_SECONDS = 5.0
_KEPT = 16
"""Looks over which times to first token are taken; rates are taken over a few."""
_FEW = 4
_HITS = ("exact", "semantic", "stale", "shared")
_GOOD, _BAD, _HEAD = "green", "bold red", "bold"

Look = Mapping[str, Any]
"""What ``GET /admin/overview`` returns."""


def top(*, url: str, interval: float, once: bool) -> int:
    """Show the figures until q or Ctrl-C, or once; return the exit code."""
    console = Console(markup=False, highlight=False, emoji=False)
    url = url.rstrip("/").removesuffix("/v1")
    return asyncio.run(_top(console, url, interval, once=once or not console.is_terminal))


async def _top(console: Console, url: str, interval: float, *, once: bool) -> int:
    looks: deque[Look] = deque(maxlen=_KEPT)
    async with ClientSession(timeout=ClientTimeout(total=_LOOK_SECONDS)) as session:

        async def look() -> None:
            key = os.environ.get("REFRAIN_ADMIN_TOKEN")
            _, found = await fetch(session, url, "/admin/overview", None, key)
            if not {"time", "requests", "ready"} <= found.keys():
                raise FailedError(f"{url} answers not as a gateway does: is it one?")
            if not looks or found["time"] != looks[-1]["time"]:
                looks.append(found)

        if once:
            await look()
            # A rate needs two looks.
            await asyncio.sleep(interval)
            await look()
            console.print(frame(url, looks, None))
            return 0
        leave = asyncio.Event()
        with Live(console=console, screen=True, auto_refresh=False) as live, _keys(leave.set):

            async def follow() -> None:
                while True:
                    problem = None
                    try:
                        await look()
                    except FailedError as error:
                        problem = str(error)
                    live.update(frame(url, looks, problem), refresh=True)
                    await asyncio.sleep(interval)

            following = asyncio.create_task(follow())
            leaving = asyncio.create_task(leave.wait())
            await asyncio.wait((following, leaving), return_when=asyncio.FIRST_COMPLETED)
            for task in (following, leaving):
                task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await following
    return 0


@contextlib.contextmanager
def _keys(leave: Callable[[], None]) -> Iterator[None]:
    """Call ``leave`` at q, Ctrl-C and SIGTERM; keys are not shown."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, leave)
    if not sys.stdin.isatty():
        yield
        return
    terminal = sys.stdin.fileno()
    before = termios.tcgetattr(terminal)

    def read() -> None:
        typed = os.read(terminal, 64)
        if not typed or b"q" in typed.lower():
            leave()

    try:
        tty.setcbreak(terminal)
        loop.add_reader(terminal, read)
        yield
    finally:
        loop.remove_reader(terminal)
        termios.tcsetattr(terminal, termios.TCSADRAIN, before)


def frame(url: str, looks: Sequence[Look], problem: str | None) -> RenderableType:
    """Return what is shown of the looks, the latest of which is the last one."""
    now = looks[-1] if looks else None
    parts: list[RenderableType] = [_head(url, now, problem)]
    if now is not None:
        parts += [Text(problem, _BAD) for problem in _problems(now["ready"])]
        parts += [Text(), _requests(looks), Text(), _saved(now), _times(looks)]
        parts += [Text(), _upstreams(now)]
        if names := sorted({*now["rules"], *now["budgets"].get("rules", {})} - {""}):
            parts += [Text(), _rules(now, names)]
    return Group(*parts)


def _problems(ready: Mapping[str, Any]) -> Iterator[str]:
    for reason in ready["reasons"]:
        yield f"not ready: {reason}"
    for part in ("store", "policy"):
        if problem := ready[part]["problem"]:
            yield f"{part}: {problem}"
    for problem in ready.get("keys", {}).get("problems", ()):
        yield f"keys: {problem}"
    yield from ready.get("background", ())
    if unlike := ready.get("verifier", {}).get("unlike"):
        yield unlike


def _head(url: str, now: Look | None, problem: str | None) -> Text:
    text = Text(f"refrain top  {url}  ", _HEAD)
    if now is not None and problem is None:
        word = now["ready"]["status"]
        text.append(word, _GOOD if word == "ready" else _BAD)
        up = duration(max(now["time"] - now["started"], 0.0))
        text.append(f"  version {now['version']}, up {up}")
    if now is not None:
        text.append(time.strftime("  %H:%M:%S", time.localtime(now["time"])))
    if problem is not None:
        text.append(f"\n{problem}", _BAD)
    return text


def _table(*columns: str) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style=_HEAD)
    for number, name in enumerate(columns):
        table.add_column(name, justify="right" if number else "left", no_wrap=True)
    return table


def _of_kind(look: Look, kind: str) -> float:
    return float(look["requests"].get(kind, 0))


def _requests(looks: Sequence[Look]) -> Table:
    counts = looks[-1]["requests"]
    total = sum(counts.values())
    table = _table("requests", "per second", "share", "since the start")
    table.add_row(
        "all", _rate(looks, lambda look: sum(look["requests"].values())), "", f"{total:,}"
    )
    for kind, name in KINDS.items():
        if count := counts.get(kind, 0):
            rate = _rate(looks, partial(_of_kind, kind=kind))
            table.add_row(name, rate, f"{count / total:.0%}", f"{count:,}")
    return table


def _saved(now: Look) -> Text:
    def of(unit: str, *, but: str) -> float:
        return sum((units.get(unit, 0.0) for way, units in now["saved"].items() if way != but), 0.0)

    # What a prefix cache had, the upstream would have found without this gateway, too.
    tokens, dollars, seconds = (of(unit, but="prefix") for unit in ("tokens", "dollars", "seconds"))
    money = dollars_text(dollars if dollars or not tokens else None)
    text = Text("saved     ", _HEAD)
    return text.append(f"{tokens:,.0f} tokens, {money}, {time_text(seconds)}", "not bold")


def _times(looks: Sequence[Look]) -> Text:
    text = Text("TTFT      ", _HEAD)
    for number, (outcome, name) in enumerate((("hit", "hits"), ("miss", "misses"))):
        half, most = (quantile(looks, outcome, part) for part in (0.5, 0.95))
        text.append(f"{', ' * number}{name} {_time(half)} (95 %: {_time(most)})", "not bold")
    return text


def _upstreams(now: Look) -> Table:
    states, engines = now["ready"].get("upstreams") or {}, now["engines"]
    columns = ["upstream", "state", "calls"]
    table = _table(*columns, *(("running", "waiting", "KV in use") if engines else ()))
    for name in now["upstreams"]:
        one = states.get(name)
        word = one["state"] if one else ""
        state = Text(word, _GOOD if word == "up" else _BAD)
        if one and one["why"]:
            state.append(f" ({one['why']})")
        calls = f"{one['in_flight']:,}" if one else ""
        shown = f"{name} ({role})" if one and (role := one.get("role")) else name
        cells: list[RenderableType] = [Text(shown), state, calls]
        if engine := engines.get(name):
            cells += [f"{engine['running']:,}", f"{engine['waiting']:,}", f"{engine['kv_use']:.0%}"]
        table.add_row(*cells)
    if now["waiting"]:
        table.add_row("waiting here", "", f"{now['waiting']:,}")
    return table


def _rules(now: Look, names: Sequence[str]) -> Table:
    budgets = now["budgets"].get("rules", {})
    table = _table("rule", "requests", "hit ratio", "compared", "error budget used")
    for name in names:
        counts = now["rules"].get(name, {})
        hits = sum(counts.get(kind, 0) for kind in _HITS)
        of = hits + counts.get("miss", 0)
        ratio = f"{hits / of:.0%}" if of else "-"
        figures = budgets.get(name)
        compared = f"{figures['comparisons']:,}" if figures else "-"
        used = _budget(figures) if figures else Text("-")
        table.add_row(name, f"{sum(counts.values()):,}", ratio, compared, used)
    return table


def _budget(figures: Mapping[str, Any]) -> Text:
    if figures["off"]:
        return Text("off: too many wrong", _BAD)
    wrong, budget = figures["wrong_hits"] or 0.0, figures["budget"]
    used = wrong / budget if budget else 0.0
    return Text(f"{used:.0%} of {share_text(budget)}", _BAD if used > 1 else "")


def _rate(looks: Sequence[Look], read: Callable[[Look], float]) -> str:
    """Write the growth of a sum a second; a gateway that was started anew has none."""
    before, now = looks[max(len(looks) - _FEW, 0)], looks[-1]
    seconds, grown = now["time"] - before["time"], read(now) - read(before)
    return f"{grown / seconds:,.1f}" if seconds > 0 and grown >= 0 else "-"


def quantile(looks: Sequence[Look], outcome: str, part: float) -> float | None:
    """Return a quantile of the times to first token, None if there were none of late."""
    before = dict(looks[0]["ttft"].get(outcome, ()) if len(looks) > 1 else ())
    grown = [
        (most, count - before.get(most, 0)) for most, count in looks[-1]["ttft"].get(outcome, ())
    ]
    total = grown[-1][1] if grown else 0
    if total <= 0:
        return None
    low, under = 0.0, 0
    for most, count in grown:
        if count >= part * total:
            within = (part * total - under) / max(count - under, 1)
            return low if most is None else low + (most - low) * within
        low, under = low if most is None else most, count
    return low


def _time(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
