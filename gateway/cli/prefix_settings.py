"""Settings that a report may recommend, and the YAML of a policy that says them."""

import re
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import replace

from gateway.cli.prefix_trials import Setting
from gateway.cli.prompt_layout import laid_out
from gateway.cli.recorded_requests import Recorded
from policies.decision import PrefixSettings, SchemaKeys, VolatileKind
from policies.format.load import parse_policy

SCHEMA_KEYS = "schema_keys: on"
TOOLS = "tools: sorted"
WHITESPACE = "whitespace: on"
TURNS = "turns: earlier"
_VOLATILE = "volatile: "
_DOCUMENTS = "documents: "
# The further one goes, the earlier it is taken away: what goes too far keeps others from work.
_KINDS = (
    VolatileKind.DATES,
    VolatileKind.USER_NAMES,
    VolatileKind.COMMITS,
    VolatileKind.REQUEST_IDS,
    VolatileKind.UUIDS,
    VolatileKind.TIMESTAMPS,
)
_TAG = re.compile(r"<([A-Za-z][A-Za-z0-9_-]{1,30})(>| +[A-Za-z_][\w.:-]{0,30}=)")
_NAME = re.compile(r"<([A-Za-z0-9_-]+)")
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
    volatile = [f"{_VOLATILE}{kind}" for kind in _KINDS]
    markers = [f"{_DOCUMENTS}{begin}" for begin in _markers(prompts[:_LOOKED_AT])]
    return [TURNS, WHITESPACE, *volatile, *markers[:_MOST_MARKERS], TOOLS, SCHEMA_KEYS]


def of_pattern(pattern: str) -> Setting:
    """Return the setting that a pattern of one's own is."""
    return _VOLATILE + "'" + pattern.replace("'", "''") + "'"


def written(settings: Collection[Setting]) -> str:
    """Return the ``prefix`` of a rule with these settings, as YAML without indentation."""
    lines = ["prefix:"]
    lines += [f"  {one}" for one in (SCHEMA_KEYS, TOOLS, WHITESPACE, TURNS) if one in settings]
    volatile = _of(settings, _VOLATILE)
    kinds = [kind.value for kind in VolatileKind if kind.value in volatile]
    if patterns := [one for one in volatile if one.startswith("'")]:
        lines.append("  volatile:")
        lines += [f"    detect: [{', '.join(kinds)}]"] if kinds else []
        lines += ["    patterns:", *(f"      - {one}" for one in patterns)]
    elif kinds:
        lines.append(f"  volatile: [{', '.join(kinds)}]")
    if markers := _of(settings, _DOCUMENTS):  # a rule has one pair
        begin = markers[0]
        lines.append(f'  documents: {{begin: "{begin}", end: "</{_name(begin)}>"}}')
    return "\n".join(lines) if len(lines) > 1 else ""


def compiled(settings: Collection[Setting]) -> PrefixSettings:
    """Return what a policy with these settings, and nothing else, has a prompt rewritten by."""
    indented = "".join(f"  {line}\n" for line in written(settings).splitlines())
    prefix = parse_policy(_POLICY + indented, "report").default.prefix
    return prefix if SCHEMA_KEYS in settings else replace(prefix, schema_keys=SchemaKeys.OFF)


def _of(settings: Collection[Setting], kind: str) -> list[str]:
    return [one.removeprefix(kind) for one in settings if one.startswith(kind)]


def _name(begin: str) -> str:
    found = _NAME.match(begin)
    return "" if found is None else found[1]


def _markers(prompts: Sequence[Recorded]) -> list[str]:
    """Return the beginnings of tags that enclose several pieces of one text, most frequent first.

    ``<document>``, or ``<document id=`` where something stands in them.
    """
    seen: Counter[str] = Counter()
    for one in prompts:
        for part in laid_out(one.endpoint, one.body):
            tags = Counter(_TAG.findall(part.text))
            seen.update(
                f"<{name}{rest}"
                for (name, rest), count in tags.items()
                if count > 1 and part.text.count(f"</{name}>") == count
            )
    return [begin for begin, _ in seen.most_common()]
