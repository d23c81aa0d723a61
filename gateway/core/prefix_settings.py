"""Settings that a report may recommend, and the YAML of a policy that says them."""

import re
from collections import Counter
from collections.abc import Collection, Sequence

from gateway.core.prefix_report import Recorded, Setting
from gateway.core.prompt_layout import laid_out
from policies.decide import PrefixSettings, VolatileKind
from policies.parse import parse_policy

TOOLS = "tools: sorted"
WHITESPACE = "whitespace: on"
TURNS = "turns: earlier"
_VOLATILE = "volatile: "
_DOCUMENTS = "documents: "
_TAG = re.compile(r"<([A-Za-z][A-Za-z0-9_-]{1,30})>")
_LOOKED_AT = 200
_MOST_MARKERS = 3
_POLICY = """\
version: 1
default:
  exact: on
  semantic: off
  freshness: 1h
  scope: tenant
  pii: bypass
"""


def candidates(prompts: Sequence[Recorded]) -> list[Setting]:
    """Return the settings worth a trial."""
    volatile = [f"{_VOLATILE}{kind}" for kind in VolatileKind]
    markers = [f"{_DOCUMENTS}<{name}>" for name in _markers(prompts[:_LOOKED_AT])]
    return [TOOLS, *volatile, *markers[:_MOST_MARKERS], WHITESPACE, TURNS]


def written(settings: Collection[Setting]) -> str:
    """Return the ``prefix`` of a rule with these settings, as YAML without indentation."""
    lines = ["prefix:"]
    lines += [f"  {one}" for one in (TOOLS, WHITESPACE, TURNS) if one in settings]
    if volatile := _of(settings, _VOLATILE):
        lines.append(f"  volatile: [{', '.join(volatile)}]")
    if markers := _of(settings, _DOCUMENTS):  # a rule has one pair
        begin = markers[0]
        lines.append(f'  documents: {{begin: "{begin}", end: "</{begin[1:]}"}}')
    return "\n".join(lines) if len(lines) > 1 else ""


def compiled(settings: Collection[Setting]) -> PrefixSettings:
    """Return what a policy with these settings has a prompt rewritten by."""
    indented = "".join(f"  {line}\n" for line in written(settings).splitlines())
    return parse_policy(_POLICY + indented, "report").default.prefix


def _of(settings: Collection[Setting], kind: str) -> list[str]:
    return [one.removeprefix(kind) for one in settings if one.startswith(kind)]


def _markers(prompts: Sequence[Recorded]) -> list[str]:
    """Return the tags that enclose several pieces of one text, most frequent first."""
    seen: Counter[str] = Counter()
    for one in prompts:
        for part in laid_out(one.endpoint, one.body):
            tags = Counter(_TAG.findall(part.text))
            seen.update(
                name
                for name, count in tags.items()
                if count > 1 and part.text.count(f"</{name}>") == count
            )
    return [name for name, _ in seen.most_common()]
