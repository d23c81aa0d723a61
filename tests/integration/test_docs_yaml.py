"""Every YAML that the docs show is taken by a running gateway.

A block is whole, or a part by one of these rules: keys of a policy's top level get a ``version``
and a ``default``; settings of a rule become the default's; a list is the policy's ``rules``. A
settings file without an upstream gets one. A first line such as ``# compose.override.yaml`` names
the file of another program. Anything else is a mistake of the page.
"""

import asyncio
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import indent
from typing import Any

import pytest
import yaml

from gateway.app import default_policy
from gateway.cli.process.plan import find_faults
from gateway.settings import Settings, load_settings
from policies.format.load import json_schema

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
UPSTREAM = "http://127.0.0.1:9/v1"
SECONDS = 60

_FENCED = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_INDENTED = re.compile(r"(?<=\n\n)((?:    .*\n(?:\n+(?=    ))?)+)")
_SCHEMA = json_schema()
_POLICY = set(_SCHEMA["properties"])
_RULE = set(_SCHEMA["$defs"]["DefaultSpec"]["properties"])
_OTHER_FILE = re.compile(r"# (?!refrain\b|policy\b)\S+\.ya?ml\n")
_KEY = re.compile(r"[a-z][a-z_]*:(?: |$)", re.MULTILINE)


@dataclass(frozen=True)
class Block:
    """A YAML block: the settings, or the text of a policy, that it stands for."""

    place: str
    settings: dict[str, Any] | None = None
    policy: str | None = None
    fault: str | None = None


def blocks_of(name: str, page: str) -> Iterator[Block]:
    """Yield the YAML blocks of a page: fenced as such, or indented and like a mapping."""
    for found in _FENCED.finditer(page):
        if found[1] in ("yaml", "yml") and not _OTHER_FILE.match(found[2]):
            yield complete(f"{name}:{page.count(chr(10), 0, found.start()) + 1}", found[2])
    bare = _FENCED.sub(lambda found: "-\n" * found[0].count("\n") + "-", page)
    for found in _INDENTED.finditer(bare):
        text = re.sub(r"^    ", "", found[1], flags=re.MULTILINE).strip() + "\n"
        code = re.sub(r"^#.*\n", "", text, flags=re.MULTILINE)
        if _KEY.match(code) and not _OTHER_FILE.match(text):
            yield complete(f"{name}:{bare.count(chr(10), 0, found.start()) + 1}", text)


def complete(place: str, text: str) -> Block:
    """Return the whole file for a block, by the rules above."""
    try:
        parsed = yaml.safe_load(text)
    except yaml.YAMLError as error:
        return Block(place, fault=str(error))
    default = yaml.safe_load(default_policy().read_text())["default"]
    if isinstance(parsed, list):
        parsed, text = {"rules": parsed}, "rules:\n" + indent(text, "  ")
    parsed = {} if parsed is None else parsed  # a comment for the top of a policy
    if not isinstance(parsed, dict):
        return Block(place, fault="neither a mapping nor a list")
    keys = set(parsed)
    if "version" in keys:
        return Block(place, policy=text)
    if keys and keys <= set(Settings.model_fields):
        return Block(place, settings=parsed)
    if keys <= _POLICY:
        rest = {"version": 1, "default": default}
        missing = {key: value for key, value in rest.items() if key not in keys}
        return Block(place, policy=text + yaml.safe_dump(missing))
    if keys <= _RULE:
        whole = {"version": 1, "default": {**default, **parsed}}
        return Block(place, policy=yaml.safe_dump(whole))
    known = set(Settings.model_fields) | _POLICY | _RULE
    unknown = ", ".join(sorted(keys - known)) or "they belong to different files"
    return Block(place, fault=f"no file has these keys together: {unknown}")


BLOCKS = [
    block for page in PAGES for block in blocks_of(str(page.relative_to(ROOT)), page.read_text())
]
SETTINGS = [block for block in BLOCKS if block.settings is not None]
POLICIES = [block for block in BLOCKS if block.policy is not None]


def test_the_docs_show_settings_and_policies():
    assert "docs/guides/upstreams.md" in {block.place.partition(":")[0] for block in SETTINGS}
    assert len(POLICIES) > 20
    assert [block for block in BLOCKS if block.fault] == []


@pytest.mark.parametrize("block", SETTINGS, ids=lambda block: block.place)
async def test_settings_of_the_docs_serve(block: Block, tmp_path, start_gateway, monkeypatch):
    settings = block.settings or {}
    complete = {"data_dir": str(tmp_path / "data"), **settings}
    if not {"upstream", "upstreams"} & set(settings):
        complete["upstream"] = UPSTREAM
    keys = tmp_path / "keys"
    keys.write_text(f"team {'ab' * 32}\n")
    if "gateway_keys" in complete:
        complete["gateway_keys"] = str(keys)
    for upstream in settings.get("upstreams", ()):
        if name := upstream.get("api_key_env"):
            monkeypatch.setenv(name, "a-key")
            complete["gateway_keys"] = str(keys)
        if isinstance(upstream.get("discover"), dict):
            replicas = tmp_path / "replicas.txt"
            replicas.write_text("127.0.0.1:9\n")
            upstream["discover"] = {"file": str(replicas)}
        for value in upstream.get("headers", {}).values():
            if isinstance(value, dict):
                monkeypatch.setenv(value["env"], "a-value")
    file = tmp_path / "refrain.yaml"
    file.write_text(yaml.safe_dump(complete))
    read = load_settings({}, {}, file)
    assert find_faults(read) == []
    gateway = await start_gateway(**dict(read))
    assert "status" in (await gateway.get("/readyz")).json


async def test_one_gateway_serves_each_policy_of_the_docs_in_turn(tmp_path, start_gateway, caplog):
    file = tmp_path / "policy.yaml"
    file.write_text(POLICIES[0].policy or "")
    gateway = await start_gateway(policy=file)
    caplog.set_level("INFO")
    for block in POLICIES[1:]:
        caplog.clear()
        new = tmp_path / "new.yaml"
        new.write_text(f"{block.policy}# {block.place}\n")
        new.replace(file)
        async with asyncio.timeout(SECONDS):
            while "policy: " not in caplog.text:
                state = (await gateway.get("/readyz")).json
        assert f"policy: {file} reloaded" in caplog.text, block.place
    state = (await gateway.get("/readyz")).json
    assert state["policy"]["problem"] is None


def test_a_part_is_completed_and_what_no_file_has_is_a_fault():
    page = (
        "# Page\n\n```yaml\ngrace: 1h\n```\n\n    upstreem: http://a/v1\n\n"
        "```yaml\n- {name: a, exact: off}\n```\n\n```yaml\ntenants: {}\n```\n\n"
        "    # refrain.yaml\n    port: 9000\n\n```yaml\na: [\n```\n\n    refrain serve\n\n"
        '```json\n{"a": 1}\n```\n\n    {"upstream": 1}\n\n```yaml\nport: 1\nscope: user\n```\n'
    )
    found = {block.place: block for block in blocks_of("page", page)}
    assert {place: block.fault is not None for place, block in found.items()} == {
        "page:3": False,
        "page:7": True,
        "page:9": False,
        "page:13": False,
        "page:17": False,
        "page:20": True,
        "page:32": True,
    }
    assert found["page:17"].settings == {"port": 9000}
    assert yaml.safe_load(found["page:9"].policy or "")["rules"] == [{"name": "a", "exact": False}]
    assert yaml.safe_load(found["page:3"].policy or "")["default"]["grace"] == "1h"
    assert yaml.safe_load(found["page:13"].policy or "").keys() == {"version", "tenants", "default"}
