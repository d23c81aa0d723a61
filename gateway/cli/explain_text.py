"""An explanation for a terminal: what a person wants to know first stands first."""

import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

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
_REASONS = {
    "no-store": "the request says Cache-Control: no-store",
    "store-true": "the request asks the upstream to store it",
    "policy": "the policy switches the cache off for it",
    "no-user": "scope is user, and the request names no end user",
    "temperature": "its temperature is over max_temperature",
    "pii": "it holds personal data or secrets",
    "web-search": "it searches the web",
    "background": "it runs in the background",
    "conversation": "it goes on from what is kept upstream",
    "previous-response-id": "it goes on from what is kept upstream",
    "stored-prompt": "its prompt is kept upstream",
    "hosted-tools": "it uses tools that run upstream",
    "prompt-too-long": "the prompt is over max_prompt_tokens",
    "only-if-cached": "the request wants a stored answer only (504)",
    "no-cache": "the request says Cache-Control: no-cache",
    "freshness": "the request's Cache-Control refuses the entry's age",
}
_COLOURS = (
    (r"^\S.*", "1"),
    (r"^  (?![✓✗ ]).{17}", "2"),
    (r"✓|^ {20}\+ .*", "32"),
    (r"✗|^ {20}- .*", "31"),
)


def explanation_text(told: dict[str, Any], *, colour: bool) -> str:
    """Write an explanation as text of several sections.

    Names come from requests: what a terminal would obey is left out.
    """
    told = _printable(told)
    sections = [list(_head(told))]
    for name, title, rows in _SECTIONS:
        if name in told:
            sections.append([title.format_map(told), *rows(told)])
    text = "\n\n".join(map("\n".join, sections)) + "\n"
    for pattern, code in _COLOURS if colour else ():
        text = re.sub(pattern, f"\x1b[{code}m\\g<0>\x1b[0m", text, flags=re.MULTILINE)
    return text


def _printable(value: Any) -> Any:
    match value:
        case str():
            return "".join(each if each.isprintable() else "\ufffd" for each in value)
        case dict():
            return {name: _printable(each) for name, each in value.items()}
        case list():
            return [_printable(each) for each in value]
        case _:
            return value


def _row(name: str, text: str) -> str:
    return f"  {name:<{_WIDTH}} {text}"


def _head(told: dict[str, Any]) -> Iterator[str]:
    request, outcome = told["request"], told["outcome"]
    would = "looked up" if outcome["would"] == "lookup" else outcome["would"]
    yield f"{would.upper()}  {_why(told)}"
    line = request["endpoint"] + (" (inferred)" if request["inferred"] else "")
    if "model" in request:
        line += f", model {request['model']}, {request['tenant']}"
    yield _row("request", line)
    if "policy" in told:
        yield _row("policy", "{source}, generation {generation}".format_map(told["policy"]))
    if "cache_status" in outcome:
        yield _row("Cache-Status", outcome["cache_status"])


def _why(told: dict[str, Any]) -> str:
    outcome = told["outcome"]
    reason = outcome.get("reason")
    match outcome["would"]:
        case "hit":
            entry = outcome["entry"]
            by = "the same request" if reason == "exact" else "a question like it"
            return f"answered from {by}, stored {_span(entry['age'])} ago by rule {entry['rule']}"
        case "miss":
            return "the upstream is asked: " + (_REASONS.get(reason) or _why_missed(told))
        case "lookup":
            rule = told["decision"]["rule"]
            return f"by rule {rule}; whether it would hit is for a store to say"
        case "invalid" | "unknown":
            return str(outcome["message"])
        case _:
            return f"{reason}: {_REASONS.get(reason, 'see the reference')}"


def _why_missed(told: dict[str, Any]) -> str:
    if told["outcome"]["forwarded"] == "stale":
        return "what is stored is too old"
    near = told.get("nearest") or {}
    if not near.get("entry"):
        return "nothing is stored in its scope"
    fields = [each["field"] for each in near["differences"]]
    if not fields or len(fields) > _SHOWN:
        return "nothing stored is like it"
    return f"the nearest entry differs in {' and '.join(fields)}"


def _rules(told: dict[str, Any]) -> Iterator[str]:
    width = min(_WIDEST, max(len(each["rule"]) for each in told["rules"]))
    for each in told["rules"]:
        mark, name = "✗", each["rule"].ljust(width)
        if not each["failed"]:
            yield f"  ✓ {name}  decides"
        for failed in each["failed"]:
            yield f"  {mark} {name}  {_failed(failed)}"
            mark, name = " ", " " * width


def _failed(failed: dict[str, Any]) -> str:
    key, wanted = failed["key"], failed["wanted"]
    shown = ", ".join(map(_cut, wanted[:_SHOWN]))
    if len(wanted) > _SHOWN:
        shown += f" and {len(wanted) - _SHOWN} more"
    if "got" in failed:
        return f"{key} is {_cut(failed['got'] or 'absent')}, not {shown}"
    return f"{key} {_CONTENT.get(key, 'does not hold')}: {shown}"


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"


def _settings(told: dict[str, Any]) -> Iterator[str]:
    for name, value in told["decision"]["settings"].items():
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


def _content(told: dict[str, Any]) -> Iterator[str]:
    yield _row("prompt", f"about {told['prompt_tokens']} tokens")
    name, pii = "personal data", told["pii"]
    if not pii["findings"]:
        yield _row(name, "none found" if pii["scanned"] else "not scanned (pii: allow)")
    for found in pii["findings"]:
        place = f", characters {found['start']} to {found['end']}" if found["end"] else ""
        yield _row(name, f"{found['kind']} in {found['where']}{place}")
        name = ""
    semantic = told["semantic"]
    can = "yes" if semantic["eligible"] else "no, {reason}: {why_not}".format_map(semantic)
    yield _row("by meaning", can)


def _changes(name: str, told: dict[str, Any]) -> Iterator[str]:
    rewrite = told[name]
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


def _lookup(told: dict[str, Any]) -> Iterator[str]:
    for step in told["lookup"]:
        yield _row(step["step"], step["result"])
    if "items" in told:
        yield _row("items", "{stored} of {asked} are stored".format_map(told["items"]))
    yield _row("key", told["identity"]["key"])
    yield _row("scope", told["identity"]["scope"])
    if entry := told["outcome"].get("entry"):
        yield _row("entry", entry["key"])
        yield _row("", _entry(entry))


def _nearest(told: dict[str, Any]) -> Iterator[str]:
    near = told["nearest"]
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
    """Write a time in its two largest units."""
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
