"""``refrain config``: are the settings right, which are in force, and the schema of refrain.yaml.

Law: no secret is printed: no password or query of a URL, no value of a header or of a secret.
"""

import ast
import inspect
import itertools
import json
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

import orjson

from gateway.cli.process.plan import (
    find_faults,
    read_settings,
    setting_flags,
    settings_file,
    unpriced_budgets,
)
from gateway.cli.terminal import CommandError, say
from gateway.settings import ENVIRONMENT_PREFIX, SECRETS, Settings, origins
from gateway.upstream.settings import UpstreamSettings

MASK = "***"


def check(**flags: Any) -> int:
    """Tell whether `refrain serve` would take the settings and the files that they name."""
    settings = read_settings(flags)
    file = settings_file(flags)
    if faults := find_faults(settings, file):
        raise CommandError("\n".join(faults))
    for line in unpriced_budgets(settings):
        say(f"warning: {line}")
    count = len(setting_flags(flags) | origins({}, os.environ, file))
    where = f"{file}: valid" if file else "valid, without a file of settings"
    what = "1 setting" if count == 1 else f"{count} settings"
    print(f"{where}; {what} given, the others have their defaults")
    return 0


def show(*, as_json: bool, **flags: Any) -> int:
    """Print every setting in force, and where it comes from."""
    settings = read_settings(flags)
    given = origins(setting_flags(flags), os.environ, settings_file(flags))
    shown = {
        name: {"value": value, "from": given.get(name, "default")}
        for name, value in visible(settings).items()
    } | dict(_secrets(os.environ))
    print(orjson.dumps(shown).decode() if as_json else "\n".join(_table(shown)))
    return 0


def schema() -> int:
    """Print the JSON schema of refrain.yaml."""
    print(json.dumps(json_schema(), indent=2))
    return 0


def visible(settings: Settings) -> dict[str, Any]:
    """Return the settings as JSON has them, with a mask for each secret."""
    values = settings.model_dump(mode="json", exclude={"upstreams"})
    values["upstreams"] = [
        _upstream(one.model_dump(mode="json", exclude_defaults=True)) for one in settings.upstreams
    ]
    values["upstream"] = [_masked(url) for url in values["upstream"]]
    return {
        name: _masked(values[name]) if name in ("store", "vectors") else values[name]
        for name in Settings.model_fields
    }


def _upstream(values: dict[str, Any]) -> dict[str, Any]:
    for name in ("query", "headers"):
        if name in values:
            values[name] = dict.fromkeys(values[name], MASK)
    # A key may stand there by mistake; the name of a variable that is set is none.
    if values.get("api_key_env", "") not in os.environ:
        values.pop("api_key_env", None)
    return values


def _masked(url: str) -> str:
    """Return a URL without its password, and without the values of its query."""
    parts = urlsplit(url)
    user, at, place = parts.netloc.rpartition("@")
    name, colon, _ = user.partition(":")
    user = (f"{name}:{MASK}" if colon else MASK) if at else ""
    query = re.sub(r"=[^&]*", f"={MASK}", parts.query)
    return parts._replace(netloc=f"{user}{at}{place}", query=query).geturl()


def _secrets(environment: Mapping[str, str]) -> Iterator[tuple[str, dict[str, str]]]:
    for name in SECRETS:
        variable = ENVIRONMENT_PREFIX + name.upper()
        for each in (variable, f"{variable}_FILE"):
            if environment.get(each):
                yield name, {"value": MASK, "from": each}


def _table(shown: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    rows = [(name, _text(each["value"]), each["from"]) for name, each in shown.items()]
    widths = [min(max(len(row[column]) for row in rows), 48) for column in (0, 1)]
    for name, value, source in rows:
        yield f"{name:<{widths[0]}}  {value:<{widths[1]}}  {source}"


def _text(value: Any) -> str:
    if value is None or value == []:
        return "none"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, list) and all(isinstance(each, str) for each in value):
        return " ".join(value)
    return value if isinstance(value, str) else orjson.dumps(value).decode()


def json_schema() -> dict[str, Any]:
    """Return the JSON schema of refrain.yaml, for editors."""
    found: dict[str, Any] = _for_editors(Settings.model_json_schema())
    upstream = found["$defs"][UpstreamSettings.__name__]
    for settings, mapping in ((Settings, found), (UpstreamSettings, upstream)):
        for name, meaning in _meanings(settings).items():
            mapping["properties"][name]["description"] = meaning
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **found}


def _meanings(settings: type) -> dict[str, str]:
    """Return what stands below each field of a class in its source."""
    [definition] = ast.parse(inspect.getsource(settings)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    return {
        field.target.id: " ".join(ast.literal_eval(text.value).split())
        for field, text in itertools.pairwise(body)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
    }


def _for_editors(node: Any) -> Any:
    """Return a part of the library's schema with the choices of a pattern as a list."""
    if isinstance(node, list):
        return [_for_editors(each) for each in node]
    if not isinstance(node, dict):
        return node
    pattern = node.get("pattern")
    if isinstance(pattern, str) and (words := re.fullmatch(r"\^\(([a-z|-]+)\)\$", pattern)):
        node = {name: each for name, each in node.items() if name != "pattern"}
        node["enum"] = words[1].split("|")
    if "gt" in node:  # the library leaves its own word where a text may stand for the number
        node = {("exclusiveMinimum" if name == "gt" else name): each for name, each in node.items()}
    return {
        name: _for_editors(each)
        for name, each in node.items()
        if name != "title" or not isinstance(each, str)
    }
