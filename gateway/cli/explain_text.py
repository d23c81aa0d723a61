"""An explanation for a terminal: what a person wants to know first stands first."""

from collections.abc import Iterator
from typing import Any

_BOLD, _DIM, _RED, _GREEN, _YELLOW = "1", "2", "31", "32", "33"
_WIDTH = 17
_LONGEST = 40
_WIDEST = 24
_LONGEST_CHANGE = 480
_SHOWN = 4
"""Values of a condition that are written out."""

_OUTCOMES = {
    "hit": (_GREEN, "HIT"),
    "miss": (_YELLOW, "MISS"),
    "bypass": (_YELLOW, "BYPASS"),
    "refused": (_RED, "REFUSED"),
    "invalid": (_RED, "INVALID"),
    "lookup": (_GREEN, "LOOKED UP"),
    "unknown": (_RED, "UNKNOWN"),
}
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


def explanation_text(told: dict[str, Any], *, colour: bool) -> str:
    """Write an explanation as text of several sections.

    Names come from requests: what a terminal would obey is left out.
    """
    told = _printable(told)
    paint = _Paint(colour)
    sections = [
        _head(told, paint),
        _rules(told, paint),
        _settings(told, paint),
        _content(told, paint),
        _rewritten(told, paint),
        _hinted(told, paint),
        _lookup(told, paint),
        _nearest(told, paint),
    ]
    return "\n\n".join("\n".join(lines) for lines in map(list, sections) if lines) + "\n"


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


class _Paint:
    def __init__(self, colour: bool) -> None:
        self._colour = colour

    def __call__(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self._colour else text

    def row(self, name: str, text: str) -> str:
        return f"  {self(_DIM, name.ljust(_WIDTH))} {text}"


def _head(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    outcome = told["outcome"]
    code, word = _OUTCOMES[outcome["would"]]
    yield f"{paint(_BOLD + ';' + code, word)}  {_why(told)}"
    request = told["request"]
    inferred = " (inferred)" if request["inferred"] else ""
    line = request["endpoint"] + inferred
    if "model" in request:
        line += f", model {request['model']}, {request['tenant']}"
    yield paint.row("request", line)
    if "policy" in told:
        policy = told["policy"]
        yield paint.row("policy", f"{policy['source']}, generation {policy['generation']}")
    if "cache_status" in outcome:
        yield paint.row("Cache-Status", outcome["cache_status"])


def _why(told: dict[str, Any]) -> str:
    outcome = told["outcome"]
    rule = told.get("decision", {}).get("rule")
    match outcome["would"]:
        case "hit":
            entry = outcome["entry"]
            by = "the same request" if outcome["reason"] == "exact" else "a question like it"
            return f"answered from {by}, stored {_span(entry['age'])} ago by rule {entry['rule']}"
        case "miss":
            reason = _REASONS.get(outcome["reason"] or "")
            return "the upstream is asked: " + (reason or _why_missed(told))
        case "lookup":
            return f"by rule {rule}; whether it would hit is for a store to say"
        case "invalid" | "unknown":
            return str(outcome["message"])
        case _:
            return f"{outcome['reason']}: {_REASONS.get(outcome['reason'], 'see the reference')}"


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


def _rules(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    if "rules" not in told:
        return
    yield paint(_BOLD, "Rules, in order")
    width = min(_WIDEST, max(len(each["rule"]) for each in told["rules"]))
    for each in told["rules"]:
        name = each["rule"].ljust(width)
        if not each["failed"]:
            yield f"  {paint(_GREEN, '✓')} {paint(_BOLD, name)}  decides"
            continue
        for index, failed in enumerate(each["failed"]):
            mark = paint(_RED, "✗") if index == 0 else " "
            yield f"  {mark} {name if index == 0 else ' ' * width}  {_failed(failed, paint)}"


def _failed(failed: dict[str, Any], paint: _Paint) -> str:
    key, wanted = failed["key"], failed["wanted"]
    shown = ", ".join(_cut(value) for value in wanted[:_SHOWN])
    if len(wanted) > _SHOWN:
        shown += f" and {len(wanted) - _SHOWN} more"
    if "got" in failed:
        met = "absent" if failed["got"] is None else _cut(failed["got"])
        return f"{paint(_DIM, key)} is {met}, not {shown}"
    return f"{paint(_DIM, key)} {_CONTENT.get(key, 'does not hold')}: {shown}"


def _cut(value: str) -> str:
    return value if len(value) <= _LONGEST else value[: _LONGEST - 1] + "…"


def _settings(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    if "decision" not in told:
        return
    decision = told["decision"]
    yield paint(_BOLD, f"What rule {decision['rule']} decides")
    for name, value in decision["settings"].items():
        yield paint.row(name, _yaml(value))


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


def _content(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    if "pii" not in told:
        return
    yield paint(_BOLD, "What it holds")
    yield paint.row("prompt", f"about {told['prompt_tokens']} tokens")
    pii = told["pii"]
    if not pii["scanned"]:
        yield paint.row("personal data", "not scanned (pii: allow)")
    elif not pii["findings"]:
        yield paint.row("personal data", "none found")
    for index, found in enumerate(pii["findings"]):
        place = f", characters {found['start']} to {found['end']}" if found["end"] else ""
        what = f"{paint(_YELLOW, found['kind'])} in {found['where']}{place}"
        yield paint.row("" if index else "personal data", what)
    semantic = told["semantic"]
    can = "yes" if semantic["eligible"] else f"no, {semantic['reason']}: {semantic['why_not']}"
    yield paint.row("by meaning", can)


def _rewritten(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    if "rewrite" in told:
        yield paint(_BOLD, "What would be rewritten on its way to the upstream")
        yield from _changed("rules", told["rewrite"], paint)


def _hinted(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    if "hints" in told:
        yield paint(_BOLD, "What the upstream would then be told of its stable prefix")
        yield from _changed("hints", told["hints"], paint)


def _changed(what: str, rewrite: dict[str, Any], paint: _Paint) -> Iterator[str]:
    yield paint.row(what, ", ".join(rewrite["changes"]) or "none changes anything")
    for each in rewrite["declined"]:
        yield paint.row(each["rewrite"], paint(_YELLOW, f"left as it is: {each['why']}"))
    for hunk in rewrite["diff"]:
        yield paint.row(f"byte {hunk['at']}", f"{hunk['before']}{paint(_DIM, '…')}{hunk['behind']}")
        for mark, code, text in (("-", _RED, hunk["went"]), ("+", _GREEN, hunk["came"])):
            if text:
                yield paint.row("", paint(code, f"{mark} {_shortened(text)}"))
    if rewrite["more"]:
        yield paint.row("", "and more")


def _shortened(text: str) -> str:
    """Return a text of which the middle may be left out; --json has all of it."""
    if len(text) <= _LONGEST_CHANGE:
        return text
    head, tail = _LONGEST_CHANGE * 3 // 4, _LONGEST_CHANGE // 4
    return f"{text[:head]} … {len(text) - head - tail:,} more characters … {text[-tail:]}"


def _lookup(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    if "lookup" not in told:
        return
    yield paint(_BOLD, "Lookup")
    for step in told["lookup"]:
        yield paint.row(step["step"], step["result"])
    if "items" in told:
        items = told["items"]
        yield paint.row("items", f"{items['stored']} of {items['asked']} are stored")
    yield paint.row("key", told["identity"]["key"])
    yield paint.row("scope", told["identity"]["scope"])
    entry = told["outcome"].get("entry")
    if entry is not None:
        yield paint.row("entry", f"{entry['key']}\n{'':{_WIDTH + 3}}{_entry(entry)}")


def _nearest(told: dict[str, Any], paint: _Paint) -> Iterator[str]:
    near = told.get("nearest")
    if near is None:
        return
    yield paint(_BOLD, "Nearest entry of the same scope")
    count = f"{near['of_this_scope']} of {near['entries']} entries are of this scope and endpoint"
    if near["entry"] is None:
        yield paint.row("none", count)
        return
    yield paint.row("entry", near["entry"]["key"])
    yield paint.row("", f"{_entry(near['entry'])}; {count}")
    for each in near["differences"]:
        yield paint.row(each["field"], paint(_YELLOW, _HOW[each["how"]]))


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
