"""``refrain policy explain``: a request explained, from files or by a running gateway.

Laws: nothing is made and nothing is changed; a store or secret that is not there is an error. In
the text, what a person wants to know first stands first.
"""

import asyncio
import os
import re
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson

from gateway.app import default_policy
from gateway.cache.pii_scan import Scans
from gateway.cache.ports import SEALED, Store, StoreError
from gateway.cache.stores.memory import MemoryStore
from gateway.cache.writer import CacheWriter
from gateway.cli.offline.json_lines import refuse_yaml
from gateway.cli.operator.admin_api import ask_gateway
from gateway.cli.terminal import CommandError, FailedError, printable, unreadable
from gateway.protocol.http.cache_status import WHY
from gateway.semantic.ports import SemanticIndex, Verifier
from gateway.server.admin import recorded_request
from gateway.server.admin.explain import Explainer
from gateway.server.admin.recorded_request import InvalidFieldError, RecordedRequest, parse_recorded
from gateway.server.keys.auth import Access, KeyRingError
from gateway.server.open.policy_file import PolicyFile, PolicySource
from gateway.server.open.secrets import (
    SecretError,
    SecretSettingError,
    load_or_create_secret,
    shared_secret,
)
from gateway.server.open.store import open_store
from gateway.server.pipeline import Pipeline
from gateway.server.prepare import Outbox, salted_endpoints
from gateway.settings import SettingsError, load_settings
from gateway.upstream.answer import AnsweredCall
from gateway.upstream.settings import alias_identities
from gateway.upstream.sharing.coalescer import Coalescer
from policies.format.yaml_document import PolicyError

_REPLY_SECONDS = 60.0
_NO_BOUND = 1 << 50
_SAMPLE = 1000
_WIDTH = 17
_LONGEST = 40
_WIDEST = 24
_LONGEST_CHANGE = 480
_SHOWN = 4
"""Values of a condition that are written out."""

_HOW = {
    "differs": "differs",
    "only asked": "only in this request",
    "only stored": "only in the entry",
}
_CONTENT = {
    "content.keywords": "not in the last user message",
    "content.regex": "not found in the last user message",
    "content.system_prompt_sha256": "is not the system prompt's",
    "tenant": "is not the one asking",
}
_COLOURS = (
    (r"^\S.*", "1"),
    (r"^  (?![✓✗ ]).{17}", "2"),
    (r"✓|^ {20}\+ .*", "32"),
    (r"✗|^ {20}- .*", "31"),
)


def explain(*, request: str, url: str | None, token: str | None, as_json: bool, **here: Any) -> int:
    """Explain a request from a file or standard input; return the exit code.

    ``here`` are the options of an answer without a running gateway.
    """
    try:
        asked = _read_request(request)
        if url is None:
            explanation = asyncio.run(_explain_here(asked, **here))
        elif any(here[name] for name in ("policy", "data_dir", "config")):
            raise CommandError("--gateway answers by its own policy, settings and store")
        else:
            explanation = _explain_there(asked, url, token)
    except (PolicyError, SettingsError, KeyRingError, SecretSettingError) as error:
        raise CommandError(str(error)) from None
    except OSError as error:
        raise unreadable(error.filename or here["policy"], error) from None
    except (SecretError, StoreError) as error:
        raise FailedError(str(error)) from None
    if as_json:
        sys.stdout.write(orjson.dumps(explanation, option=orjson.OPT_INDENT_2).decode() + "\n")
    else:
        colour = sys.stdout.isatty() and not os.environ.get("NO_COLOR")
        sys.stdout.write(explanation_text(explanation, colour=colour))
    return 0


def _explain_there(request: RecordedRequest, url: str, token: str | None) -> dict[str, Any]:
    fields = recorded_request.as_json(request)
    try:
        return ask_gateway(url, "explain", fields, token=token, seconds=_REPLY_SECONDS)
    except TypeError:
        wide = "the request holds an integer of more than 64 bits, which is not sent"
        raise CommandError(wide) from None


async def _explain_here(
    request: RecordedRequest,
    *,
    policy: Path | None,
    data_dir: Path | None,
    config: Path | None,
    upstream: str | None,
) -> dict[str, Any]:
    policies = PolicyFile(policy or default_policy())
    if data_dir is None and config is None:
        pipeline = pipeline_to_explain(policies, MemoryStore(max_bytes=0), b"", "")
        return await Explainer(pipeline, policy_only=True).explain(request)
    given = {"data_dir": data_dir, "upstream": upstream and (upstream,)}
    flags = {name: value for name, value in given.items() if value is not None}
    settings = load_settings(flags, os.environ, config)
    folder = settings.data_dir
    if settings.store == "memory":
        hint = "ask the running gateway with --gateway URL"
        raise CommandError(f"the entries are in the gateway's memory: {hint}")
    if settings.store == "disk" and not (folder / "entries.sqlite3").exists():
        raise CommandError(f"{folder}: there is no store here")
    secret = shared_secret(os.environ)
    if secret is None:
        if not (folder / "secret").exists():
            raise CommandError(f"{folder}: there is no secret here")
        secret = load_or_create_secret(folder)
    # A store trims itself to its bounds, and this command must evict nothing.
    unbounded = {"memory_bytes": 0, "store_bytes": _NO_BOUND}
    store = open_store(settings.model_copy(update=unbounded), os.environ).store
    try:
        identity = settings.upstream_identity
        if identity is None:  # as for most entries: it is part of every key
            page = await store.walk(None, _SAMPLE)
            counts = Counter(one.upstream for one in page.entries if one.endpoint != SEALED)
            identity = next((name for name, _ in counts.most_common(1)), "")
        salts = settings.salts
        explainer = Explainer(
            pipeline_to_explain(
                policies,
                store,
                secret,
                identity,
                salts_caches=salts,
                aliases=alias_identities(settings.all_upstreams),
            ),
            Access(settings.gateway_keys, settings.denied_keys).key,
            without_index="the running gateway has the index (--gateway URL)",
        )
        return await explainer.explain(request)
    finally:
        await store.close()


def pipeline_to_explain(
    policies: PolicySource,
    store: Store,
    secret: bytes,
    upstream: str,
    *,
    salts_caches: bool = False,
    aliases: Mapping[str, str] | None = None,
    semantic: SemanticIndex | None = None,
    verifier: Verifier | None = None,
    now: Callable[[], float] = time.time,
) -> Pipeline:
    """Return a pipeline that can only explain: of the upstream it has the name.

    Without an index of questions no verifier is needed.
    """
    nothing: Any = SimpleNamespace(name=upstream, holds=lambda _key: False)
    scans = Scans()
    return Pipeline(
        store=store,
        semantic=semantic,
        verifier=verifier or nothing,
        policies=policies,
        coalescer=Coalescer(
            AnsweredCall(nothing, CacheWriter(store, semantic, scans, now, nothing), 0)
        ),
        scans=scans,
        secret=secret,
        outbox=Outbox(secret, salted_endpoints(upstream_knows_salt=salts_caches)),
        recorder=None,
        now=now,
        aliases=aliases or {},
    )


def _read_request(file: str) -> RecordedRequest:
    raw = sys.stdin.buffer.read() if file == "-" else Path(file).read_bytes()
    source = "standard input" if file == "-" else file
    try:
        return parse_recorded(raw)
    except InvalidFieldError as error:
        refuse_yaml(source, raw, "a request in JSON")
        raise CommandError(f"{source}: {error}") from None


def explanation_text(explanation: dict[str, Any], *, colour: bool) -> str:
    """Write an explanation as text of several sections.

    Names come from requests: what a terminal would obey is escaped.
    """
    sections = [list(_head(explanation))]
    for name, title, rows in _SECTIONS:
        if name in explanation:
            sections.append([title.format_map(explanation), *rows(explanation)])
    text = "\n\n".join("\n".join(map(printable, section)) for section in sections) + "\n"
    for pattern, code in _COLOURS if colour else ():
        text = re.sub(pattern, f"\x1b[{code}m\\g<0>\x1b[0m", text, flags=re.MULTILINE)
    return text


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}} {text}"


def _head(explanation: dict[str, Any]) -> Iterator[str]:
    request, outcome = explanation["request"], explanation["outcome"]
    would = "looked up" if outcome["would"] == "lookup" else outcome["would"]
    yield f"{would.upper()}  {_why(explanation)}"
    line = request["endpoint"] + (" (inferred)" if request["inferred"] else "")
    if "model" in request:
        line += f", model {request['model']}, {request['tenant']}"
    yield _row("request", line)
    if "policy" in explanation:
        yield _row("policy", "{source}, generation {generation}".format_map(explanation["policy"]))
    if "cache_status" in outcome:
        yield _row("Cache-Status", outcome["cache_status"])


def _why(explanation: dict[str, Any]) -> str:
    outcome = explanation["outcome"]
    reason = outcome.get("reason")
    match outcome["would"]:
        case "hit":
            entry = outcome["entry"]
            by = "the same request" if reason == "exact" else "a question like it"
            return f"answered from {by}, stored {_span(entry['age'])} ago by rule {entry['rule']}"
        case "miss":
            return "the upstream is asked: " + (WHY.get(reason) or _why_missed(explanation))
        case "lookup":
            rule = explanation["decision"]["rule"]
            return f"by rule {rule}; whether it would hit is for a store to say"
        case "invalid" | "unknown":
            return str(outcome["message"])
        case _:
            return f"{reason}: {WHY.get(reason, 'see the reference')}"


def _why_missed(explanation: dict[str, Any]) -> str:
    if explanation["outcome"]["forwarded"] == "stale":
        return "what is stored is too old"
    near = explanation.get("nearest") or {}
    if not near.get("entry"):
        return "nothing is stored in its scope"
    fields = [each["field"] for each in near["differences"]]
    if not fields or len(fields) > _SHOWN:
        return "nothing stored is like it"
    return f"the nearest entry differs in {' and '.join(fields)}"


def _rules(explanation: dict[str, Any]) -> Iterator[str]:
    width = min(_WIDEST, max(len(each["rule"]) for each in explanation["rules"]))
    for each in explanation["rules"]:
        mark, name = "✗", each["rule"].ljust(width)
        if not each["failed"]:
            yield f"  ✓ {name}  decides"
        for failed in each["failed"]:
            yield f"  {mark} {name}  {_failure(failed)}"
            mark, name = " ", " " * width


def _failure(failed: dict[str, Any]) -> str:
    key, wanted = failed["key"], failed["wanted"]
    shown = ", ".join(map(_cut, wanted[:_SHOWN]))
    if len(wanted) > _SHOWN:
        shown += f" and {len(wanted) - _SHOWN} more"
    if "got" in failed:
        return f"{key} is {_cut(failed['got'] or 'absent')}, not {shown}"
    return f"{key} {_CONTENT.get(key, 'does not hold')}: {shown}"


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"


def _settings(explanation: dict[str, Any]) -> Iterator[str]:
    for name, value in explanation["decision"]["settings"].items():
        yield _row(name, _yaml(value))


def _yaml(value: Any) -> str:
    match value:
        case dict():
            return "{" + ", ".join(f"{name}: {_yaml(each)}" for name, each in value.items()) + "}"
        case list():
            return "[" + ", ".join(map(_yaml, value)) + "]"
        case float():
            return f"{value:g}"
        case _:
            return str(value)


def _content(explanation: dict[str, Any]) -> Iterator[str]:
    yield _row("prompt", f"about {explanation['prompt_tokens']} tokens")
    name, pii = "personal data", explanation["pii"]
    if not pii["findings"]:
        yield _row(name, "none found" if pii["scanned"] else "not scanned (pii: allow)")
    for found in pii["findings"]:
        place = f", characters {found['start']} to {found['end']}" if found["end"] else ""
        yield _row(name, f"{found['kind']} in {found['where']}{place}")
        name = ""
    semantic = explanation["semantic"]
    can = "yes" if semantic["eligible"] else "no, {reason}: {why_not}".format_map(semantic)
    yield _row("by meaning", can)


def _changes(name: str, explanation: dict[str, Any]) -> Iterator[str]:
    rewrite = explanation[name]
    changes = ", ".join(rewrite["changes"]) or "none changes anything"
    yield _row("rules" if name == "rewrite" else name, changes)
    for each in rewrite["declined"]:
        yield _row(each["rewrite"], f"left as it is: {each['why']}")
    for hunk in rewrite["diff"]:
        yield _row(f"byte {hunk['at']}", f"{hunk['before']}…{hunk['behind']}")
        for mark, text in (("-", hunk["went"]), ("+", hunk["came"])):
            if text:
                yield _row("", f"{mark} {_shortened(text)}")
    if rewrite["more"]:
        yield _row("", "and more")


def _shortened(text: str) -> str:
    """Return a text of which the middle may be left out; --json has all of it."""
    if len(text) <= _LONGEST_CHANGE:
        return text
    head, tail = _LONGEST_CHANGE * 3 // 4, _LONGEST_CHANGE // 4
    return f"{text[:head]} … {len(text) - head - tail:,} more characters … {text[-tail:]}"


def _lookup(explanation: dict[str, Any]) -> Iterator[str]:
    for step in explanation["lookup"]:
        yield _row(step["step"], step["result"])
    if "items" in explanation:
        yield _row("items", "{stored} of {asked} are stored".format_map(explanation["items"]))
    yield _row("key", explanation["identity"]["key"])
    yield _row("scope", explanation["identity"]["scope"])
    if entry := explanation["outcome"].get("entry"):
        yield _row("entry", entry["key"])
        yield _row("", _entry(entry))


def _nearest(explanation: dict[str, Any]) -> Iterator[str]:
    near = explanation["nearest"]
    count = f"{near['of_this_scope']} of {near['entries']} entries are of this scope and endpoint"
    if near["entry"] is None:
        yield _row("none", count)
        return
    yield _row("entry", near["entry"]["key"])
    yield _row("", f"{_entry(near['entry'])}; {count}")
    for each in near["differences"]:
        yield _row(each["field"], _HOW[each["how"]])


def _entry(entry: dict[str, Any]) -> str:
    ttl = entry["ttl"]
    left = f"fresh for {_span(ttl)}" if ttl > 0 else f"stale by {_span(-ttl)}"
    return f"{_span(entry['age'])} old, {left}, rule {entry['rule']}"


def _span(seconds: int) -> str:
    parts: list[str] = []
    for unit, size in (("d", 86_400), ("h", 3600), ("m", 60), ("s", 1)):
        count, seconds = divmod(seconds, size)
        if count or parts:
            parts.append(f"{count}{unit}")
    return " ".join(parts[:2]) or "0s"


_SECTIONS: tuple[tuple[str, str, Callable[[dict[str, Any]], Iterator[str]]], ...] = (
    ("rules", "Rules, in order", _rules),
    ("decision", "What rule {decision[rule]} decides", _settings),
    ("pii", "What it holds", _content),
    ("rewrite", "What would be rewritten on its way to the upstream", partial(_changes, "rewrite")),
    ("hints", "What the upstream would be told of its stable prefix", partial(_changes, "hints")),
    ("lookup", "Lookup", _lookup),
    ("nearest", "Nearest entry of the same scope", _nearest),
)
"""Each member of an explanation that has a section: its title, and how it is written."""
