"""The parts of the docs that are made from the code: commands, settings, policy keys and others.

A page has each part between two comments, so that code hosts show it, too. A test fails if a part
is not what the code says.
"""

import posixpath
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from inspect import getdoc
from pathlib import Path
from typing import Any

import click
import yaml
from aiohttp import web
from click.testing import CliRunner

from backend.served import ROWS
from gateway.cli.commands import cli
from gateway.cli.operator.config import json_schema as settings_schema
from gateway.server.admin.api import Admin
from gateway.server.admin.operations import Operations
from gateway.server.admin.overview import Overview
from gateway.server.admin.policy_editor import PolicyEditor
from gateway.server.admin.semantic_report import SemanticOperations
from gateway.settings import ENVIRONMENT_PREFIX, SECRETS
from gateway.upstream.tries import TABLE
from policies.format.load import json_schema as policy_schema
from policies.format.load import parse_policy
from policies.format.settings import settings_of
from policies.format.units import size_text, time_text

ROOT = Path(__file__).parents[2]
_PART = re.compile(
    r"(?P<begin><!-- generated: (?P<name>[a-z-]+); renew: make reference -->\n)"
    r".*?(?P<end><!-- end of the generated part -->)",
    re.DOTALL,
)

SEE = {
    "upstream": "guides/upstreams.md",
    "upstreams": "guides/upstreams.md",
    "default_model": "guides/upstreams.md#requests-without-a-model",
    "unknown_models": "guides/upstreams.md#models-and-aliases",
    "upstream_routing": "guides/upstreams.md#which-one",
    "upstream_accepts": "guides/upstreams.md#what-the-gateway-adds",
    "upstream_cache_salt": "operations/security.md",
    "upstream_warm_up": "guides/upstreams.md#warm-up",
    "dns_server": "guides/upstreams.md#replicas-that-come-and-go",
    "gateway_keys": "guides/gateway-keys.md",
    "key_limits_fail": "guides/gateway-keys.md#several-workers-and-gateways",
    "ui": "operations/ui.md",
    "data_dir": "operations/deploy.md#data",
    "policy": "guides/policy.md",
    "prices": "operations/usage.md#prices",
    "log_format": "operations/observability.md#log",
    "access_log": "operations/observability.md#access-log",
    "store": "operations/deploy.md#redis",
    "decision_log": "guides/decision-log.md",
    "embeddings_device": "operations/deploy.md#gpu",
    "compress_timeout": "reference/policy/compress.md",
    "verifier_timeout": "concepts/semantic.md",
    "semantic_judge_model": "concepts/semantic.md#what-comparing-answers-can-tell",
    "vectors": "operations/deploy.md#vectors-in-qdrant",
    "first_token_timeout": "guides/upstreams.md#the-first-word",
    "admin_token": "operations/admin.md",
    "encryption_keys": "operations/security.md#encryption",
    "secret": "operations/deploy.md#redis",
    "qdrant_api_key": "operations/deploy.md#vectors-in-qdrant",
    "store_password": "operations/deploy.md#redis",
    "upstream_api_key": "operations/security.md#keys",
    # Of one upstream.
    "preset": "guides/upstreams.md#presets",
    "rename": "guides/upstreams.md#models-and-aliases",
    "api": "guides/messages.md",
    "discover": "guides/upstreams.md#replicas-that-come-and-go",
    "role": "guides/upstreams.md#prefill-apart-from-decode",
    "kv_transfer": "guides/upstreams.md#prefill-apart-from-decode",
    "load_signal": "guides/upstreams.md#load-by-the-engines-own-figures",
    "headers": "guides/upstreams.md#address-and-headers",
    "api_key_env": "operations/security.md#keys",
    "accepts": "guides/upstreams.md#what-the-gateway-adds",
    # Commands.
    "doctor": "operations/troubleshooting.md",
    "warm": "operations/admin.md#fill-the-cache",
    "audit": "operations/admin.md#scan-stored-entries-again",
    "estimate": "start/estimate.md",
    "usage": "operations/usage.md",
    "policy check": "guides/policy.md",
    "policy explain": "guides/policy.md#why-was-that-a-miss",
    "policy replay": "guides/decision-log.md",
    "semantic calibrate": "concepts/semantic.md#calibrating-on-your-own-traffic",
    "semantic report": "concepts/semantic.md",
    "keys add": "guides/gateway-keys.md",
    "prefix report": "guides/prefix-report.md",
}
"""The page below docs/ that says more about a setting or a command."""

POLICY_PAGES = {
    file.read_text(encoding="utf-8")
    .partition("\n")[0]
    .strip("# `"): f"reference/policy/{file.name}"
    for file in (ROOT / "docs" / "reference" / "policy").glob("*.md")
}
"""The page of each policy key, which is its heading."""

_TYPES = {"boolean": "`true`, `false`", "integer": "whole number", "number": "number"}
_WIDTH = 90
_PARTS_OF_ADMIN = {
    "_operations": Operations,
    "_semantic": SemanticOperations,
    "_overview": Overview,
    "_policy": PolicyEditor,
}


def renewed() -> dict[str, str]:
    """Return the pages with a part that is not what the code says, each with its new text."""
    found = {}
    for file in sorted((ROOT / "docs").rglob("*.md")):
        text = file.read_text(encoding="utf-8")
        new = _PART.sub(partial(_replace, file), text)
        if new != text:
            found[str(file.relative_to(ROOT))] = new
    return found


def _replace(file: Path, part: re.Match[str]) -> str:
    here = file.relative_to(ROOT / "docs").parent
    lines = PARTS[part["name"]](lambda target: posixpath.relpath(target, here))
    return "\n".join([part["begin"], *lines, "", part["end"]])


Link = Callable[[str], str]
"""A path below docs/ as the page links it."""

Part = Callable[[Link], Iterator[str]]
"""The lines of a part."""


def _table(*head: str, rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    yield f"| {' | '.join(head)} |"
    yield "|---" * len(head) + "|"
    for row in rows:
        cells = (re.sub(r"\s+", " ", cell).replace("|", "\\|") for cell in row)
        yield f"| {' | '.join(cells)} |"


def _name(name: str, link: Link) -> str:
    return f"[`{name}`]({link(SEE[name])})" if name in SEE else f"`{name}`"


_WRITTEN = {"size": size_text, "time": time_text}


def _kind(key: Mapping[str, Any]) -> str:
    """Return the values of a setting in words."""
    choices = key.get("anyOf", [key])
    types = {each.get("type") for each in choices}
    [first, *_] = choices
    if "anyOf" in first:
        return _kind(first)
    if "enum" in first:
        return ", ".join(f"`{word}`" for word in first["enum"])
    if "minimum" in first and "maximum" in first:
        return f"{first['minimum']} to {first['maximum']}"
    if types >= {"integer", "string"}:
        return "size"
    if types >= {"number", "string"}:
        return "time"
    if "array" in types or first.get("type") == "array":
        return "list"
    if "object" in types:
        return "mapping"
    return _TYPES.get(first.get("type", ""), "path" if first.get("format") == "path" else "text")


def _default(key: Mapping[str, Any]) -> tuple[str, str]:
    """Return the default of a setting, and its meaning without what it says about the default."""
    meaning, _, otherwise = key["description"].partition(_UNSET)
    unset, _, rest = otherwise.partition(". ")
    value = _value(key.get("default"), _kind(key))
    return value or unset.removesuffix("."), f"{meaning} {rest}".strip()


def _value(value: Any, kind: str) -> str:
    if value in (None, [], {}, ""):
        return ""
    if kind in _WRITTEN:
        return f"`{_WRITTEN[kind](value)}`"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{yaml.safe_dump(value, default_flow_style=True).partition(chr(10))[0]}`"


def _settings(link: Link) -> Iterator[str]:
    flags = {each.name: each.opts[0] for each in cli.commands["serve"].params}
    rows = []
    for name, key in settings_schema()["properties"].items():
        # A list of mappings has no form in the environment.
        places = [] if name == "upstreams" else [f"{ENVIRONMENT_PREFIX}{name.upper()}"]
        places += [flags[name]] if name in flags else []
        where = ", ".join(f"`{each}`" for each in places)
        rows.append((_name(name, link), where, _kind(key), *_default(key)))
    return _table("Key", "Variable, flag", "Type", "Default", "Meaning", rows=rows)


def _secrets(link: Link) -> Iterator[str]:
    rows = (
        (f"[`{ENVIRONMENT_PREFIX}{name.upper()}`]({link(SEE[name])})", meaning)
        for name, meaning in SECRETS.items()
    )
    return _table("Variable", "Meaning", rows=rows)


def _upstreams(link: Link) -> Iterator[str]:
    keys = settings_schema()["$defs"]["UpstreamSettings"]["properties"]
    rows = ((_name(name, link), _kind(key), *_default(key)) for name, key in keys.items())
    return _table("Key", "Type", "Default", "Meaning", rows=rows)


def _tries(_link: Link) -> Iterator[str]:
    rows = ((kind.value, *(pays or "never" for pays in row)) for kind, row in TABLE.items())
    head = ("Another upstream", "The same upstream, after a pause", "Without additions")
    return _table("What came of the call", *head, rows=rows)


_BARE_POLICY = """\
version: 1
default: {exact: on, semantic: on, freshness: 1h, scope: tenant, pii: bypass}
"""
_UNSET = " Unset: "
_INHERITED = " Unset: as in the default settings, or else "


def _policy(mapping: str, prefix: str = "", *leave_out: str, linked: bool = True) -> Part:
    """Return the table of a mapping's keys."""

    def table(link: Link) -> Iterator[str]:
        schema = policy_schema()
        found = schema["$defs"].get(mapping, schema)
        unset = settings_of(parse_policy(_BARE_POLICY, "bare").default)
        for key in found.get("required", ()):
            unset.pop(key, None)
        rows = []
        for name, key in found["properties"].items():
            page = POLICY_PAGES.get(prefix + name) if linked else None
            shown = f"[`{prefix}{name}`]({link(page)})" if page else f"`{prefix}{name}`"
            description = key["description"].replace(_INHERITED, _UNSET)
            meaning, _, otherwise = description.partition(_UNSET)
            default = key.get("default", otherwise.strip("`.") or unset.get(name))
            if name in found.get("required", ()):
                cell = "required"
            else:
                cell = "" if default in (None, "") else _yaml(default)
            if name not in leave_out:
                rows.append((shown, ", ".join(map(_yaml, key["examples"])), cell, meaning))
        return _table("Key", "Examples", "Unset", "Meaning", rows=rows)

    return table


def _yaml(value: object) -> str:
    if isinstance(value, bool):
        text = "on" if value else "off"
    elif isinstance(value, str):
        text = re.sub(r"(?<=^[0-9a-f]{4})[0-9a-f]{56}(?=[0-9a-f]{4}$)", "…", value)
    else:
        flow = yaml.safe_dump(value, default_flow_style=True, width=1000, sort_keys=False)
        text = re.sub(r"'(on|off)'", r"\1", flow.removesuffix("...\n").strip())
    return f"`` {text} ``" if "`" in text else f"`{text}`"


def _commands(link: Link) -> Iterator[str]:
    """Yield a table of the commands, and the help of each."""
    leaves = dict(_leaves(cli, ()))
    rows = []
    for words, each in leaves.items():
        name = " ".join(words)
        more = f" ([more]({link(SEE[name])}))" if name in SEE else ""
        anchor = f"#{'-'.join(('refrain', *words))}"
        help_text = each.get_short_help_str(limit=200).removesuffix(".")
        rows.append((f"[`refrain {name}`]({anchor})", f"{help_text}{more}"))
    yield from _table("Command", "What it does", rows=rows)
    for words in leaves:
        yield from ("", f"### refrain {' '.join(words)}", "", "```text")
        yield from _help(words).splitlines()
        yield "```"


def _leaves(
    group: click.Group, words: tuple[str, ...]
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Yield each command that runs something, and its words."""
    context = click.Context(group)
    for name in group.list_commands(context):
        each = group.get_command(context, name)
        if each is not None and not (
            isinstance(each, click.Group) and not each.invoke_without_command
        ):
            yield (*words, name), each
        if isinstance(each, click.Group):
            yield from _leaves(each, (*words, name))


def _help(words: Sequence[str]) -> str:
    asked = CliRunner().invoke(
        cli, [*words, "--help"], prog_name="refrain", terminal_width=_WIDTH, catch_exceptions=False
    )
    return asked.output.rstrip()


def _served(_link: Link) -> Iterator[str]:
    return _table("What", "Served", "Refused", "Not tested", rows=ROWS)


def _operator_api(_link: Link) -> Iterator[str]:
    """Yield a table of the paths below /admin, each with the first sentence of its docstring."""
    admin = _bare(Admin)
    for name, part in _PARTS_OF_ADMIN.items():
        setattr(admin, name, _bare(part))
    app = web.Application()
    admin.add_routes(app)
    rows = []
    for route in app.router.routes():
        if route.method in ("GET", "POST") and route.resource is not None:
            does: Any = route.handler
            while isinstance(does, partial):
                does = does.args[-1]
            sentence = (getdoc(does) or "").partition("\n\n")[0].replace("``", "`")
            sentence = re.sub(r" Raises .*", "", sentence)
            rows.append((f"`{route.method}`", f"`{route.resource.canonical}`", sentence))
    return _table(
        "Method", "Path", "What it does", rows=sorted(rows, key=lambda row: row[1].strip("`"))
    )


def _bare(part: Any) -> Any:
    """Return an instance that has methods, and nothing else."""
    return part.__new__(part)


PARTS: dict[str, Part] = {
    "operator-api": _operator_api,
    "commands": _commands,
    "served": _served,
    "settings": _settings,
    "secrets": _secrets,
    "upstreams": _upstreams,
    "tries": _tries,
    "policy-file": _policy("PolicySpec", "", "pii"),
    "policy-pii": _policy("PiiSpec", "pii."),
    "policy-match": _policy("MatchSpec", "match.", "content"),
    "policy-content": _policy("ContentSpec", "match.content."),
    "policy-settings": _policy("DefaultSpec"),
    "policy-semantic": _policy("SemanticSpec", linked=False),
    "policy-grace": _policy("GraceSpec", linked=False),
    "policy-coalescing": _policy("CoalescingSpec", linked=False),
    "policy-tenants": _policy("TenantSpec", linked=False),
    "policy-prefix": _policy("PrefixSpec", linked=False),
    "policy-volatile": _policy("VolatileSpec", linked=False),
    "policy-documents": _policy("DocumentsSpec", linked=False),
    "policy-compress": _policy("CompressSpec", linked=False),
    "policy-context": _policy("ContextSpec", linked=False),
    "policy-hints": _policy("HintsSpec", linked=False),
}
