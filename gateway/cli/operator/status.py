"""``refrain status``: one screen about a running gateway. Exit code 1: not ready, or no answer."""

import asyncio
import os
import time
from collections.abc import Iterator, Mapping
from typing import Any

import orjson
from aiohttp import ClientError, ClientSession, ClientTimeout

from gateway.cli.operator.admin_api import cannot_ask, fetch
from gateway.cli.terminal import FailedError, say, show, show_json

_SECONDS = 10.0
"""For all questions together."""

KINDS = {
    "exact": "exact hits",
    "semantic": "semantic hits",
    "stale": "stale hits",
    "shared": "shared calls",
    "miss": "misses",
    "bypass": "bypasses",
    "refused": "refused",
    "left": "client left",
    "error": "errors",
}
_UNITS = (("d", 86_400), ("h", 3600), ("min", 60), ("s", 1))


def status(*, url: str, as_json: bool) -> int:
    """Print the state of a gateway; return 0 if it is ready, else 1."""
    found = asyncio.run(_look(url.rstrip("/").removesuffix("/v1")))
    if as_json:
        show_json(found)
    else:
        show(screen(found))
    if problem := found["overview_problem"]:
        say(f"version, uptime and requests are not known: {problem}")
    return 0 if found["ready"]["status"] == "ready" else 1


async def _look(url: str) -> dict[str, Any]:
    """Return what the gateway says of itself. Raises FailedError."""
    async with ClientSession(timeout=ClientTimeout(total=_SECONDS)) as session:
        ready = await _ready(session, url)
        overview, problem = None, None
        try:
            key = os.environ.get("REFRAIN_ADMIN_TOKEN")
            _, overview = await fetch(session, url, "/admin/overview", None, key)
        except FailedError as error:
            problem = str(error)
    return {"url": url, "ready": ready, "overview": overview, "overview_problem": problem}


async def _ready(session: ClientSession, url: str) -> dict[str, Any]:
    """Return what ``/readyz`` says, whether ready or not. Raises FailedError."""
    try:
        async with session.get(f"{url}/readyz") as reply:
            code, body = reply.status, await reply.read()
    except (ClientError, TimeoutError, OSError) as error:
        raise cannot_ask(url, error) from None
    try:
        parsed = orjson.loads(body)
    except orjson.JSONDecodeError:
        parsed = None
    match code, parsed:
        case 200 | 503, {"status": str(), "reasons": list(), "policy": dict(), "store": dict()}:
            return dict(parsed)
    raise FailedError(f"{url} answers {code} and not as a gateway does: is it one?")


def screen(found: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of a screen."""
    ready, overview = found["ready"], found["overview"] or {}
    rows = [("gateway", _gateway(found["url"], ready, overview))]
    rows += [("", f"not ready: {reason}") for reason in ready["reasons"]]
    if overview:
        rows += _requests(overview)
    rows += _upstreams(ready, overview)
    rows.append(("store", _store(ready["store"])))
    policy = ready["policy"]
    text = f"{policy['source']}, generation {policy['generation']}"
    rows.append(("policy", _with_problem(text, policy["problem"])))
    rows += _semantic(ready)
    keys = ready.get("keys", {})
    rows += [("keys", f"PROBLEM: {problem}") for problem in keys.get("problems", ())]
    rows += [("background", f"PROBLEM: {problem}") for problem in ready.get("background", ())]
    for label, value in rows:
        yield f"{label:<11}{value}"


def _gateway(url: str, ready: Mapping[str, Any], overview: Mapping[str, Any]) -> str:
    parts = [url, ready["status"]]
    if overview:
        parts.append(f"version {overview['version']}")
        parts.append(f"up {duration(max(time.time() - overview['started'], 0.0))}")
    return ", ".join(parts)


def duration(seconds: float) -> str:
    """Write a time in its two largest units."""
    left = int(seconds)
    parts: list[str] = []
    for unit, size in _UNITS:
        count, left = divmod(left, size)
        if count or (unit == "s" and not parts):
            parts.append(f"{count} {unit}")
    return " ".join(parts[:2])


def _requests(overview: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    counts = overview["requests"]
    total = sum(counts.values())
    yield "requests", f"{total:,} since the start, {overview['calls']:,} calls under way"
    for kind, name in KINDS.items():
        if count := counts.get(kind, 0):
            yield "", f"{name:<15}{count:>11,}{count / total:>6.0%}"


def _upstreams(ready: Mapping[str, Any], overview: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    states = ready.get("upstreams") or dict.fromkeys(overview.get("upstreams", ()))
    label = "upstreams"
    for name, state in states.items():
        shown = f"{name} ({role})" if state and (role := state.get("role")) else name
        yield label, shown if state is None else f"{shown}: {_state(state)}"
        label = ""


def _store(store: Mapping[str, Any]) -> str:
    text = _with_problem(store["kind"], store["problem"])
    return f"{text}{_since(store)}: {store['why']}" if "since" in store else text


def _since(part: Mapping[str, Any]) -> str:
    return time.strftime(" since %Y-%m-%d %H:%M:%S UTC", time.gmtime(part["since"]))


def _state(state: Mapping[str, Any]) -> str:
    """Write the state of an upstream; what gets in the way of requests is a problem."""
    word, why = state["state"], state["why"]
    text = word
    if word == "open":  # alone, the word reads like "open for business"
        text = f"out (open: {why})" if why else "out (open)"
    elif why:
        text = f"{word} ({why})"
    problem = "" if word in ("up", "draining") else "; PROBLEM"
    return f"{text}, {state['in_flight']} in flight{problem}"


def _semantic(ready: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if ready["semantic"] == "off":
        yield "semantic", "off: the libraries are not installed"
        return
    verifier, vectors = ready["verifier"], ready["vectors"]
    faults = filter(None, (vectors.get("fault"), verifier.get("fault")))
    kind = verifier.get("kind", "")
    name = {"model": verifier.get("name") or "trained", "none": "none"}.get(kind, "not known yet")
    text = f"on, vectors in {vectors.get('index') or 'an index not known yet'}, verifier {name}"
    yield "semantic", _with_problem(text, "; ".join(faults))
    if unlike := verifier.get("unlike"):
        yield "", f"PROBLEM: {unlike}"
    for rule in ready["rules_off"]:
        yield "", _with_problem(f"off in rule {rule}", "too many hits were wrong")
    for rule in ready["budgets_not_kept"]:
        yield "", f"no threshold keeps the budget of rule {rule}; PROBLEM"


def _with_problem(text: str, problem: str | None) -> str:
    return f"{text}; PROBLEM: {problem}" if problem else text
