"""The generated parts of the docs are what the code says."""

import re
from difflib import unified_diff

import pytest

from gateway.cli.operator.config import json_schema
from gateway.settings import SECRETS, Settings
from gateway.upstream.tries import MOST_CALLS
from tools.docs import reference
from tools.docs.reference import PARTS, ROOT, renewed


def test_no_generated_part_is_out_of_date():
    changes = [
        line
        for page, text in renewed().items()
        for line in unified_diff((ROOT / page).read_text().splitlines(), text.splitlines(), page)
    ]
    assert "\n".join(changes) == "", "run: make reference"


def test_each_part_stands_on_a_page():
    pages = "".join(page.read_text() for page in (ROOT / "docs").rglob("*.md"))
    assert sorted(re.findall(r"<!-- generated: ([a-z-]+); renew: make", pages)) == sorted(PARTS)


def test_a_part_that_was_edited_is_found(tmp_path, monkeypatch):
    monkeypatch.setattr(reference, "ROOT", tmp_path)
    page = tmp_path / "docs" / "operations" / "page.md"
    page.parent.mkdir(parents=True)
    begin = "<!-- generated: secrets; renew: make reference -->"
    page.write_text(f"# Page\n\n{begin}\nold\n<!-- end of the generated part -->\n\nThe end.\n")
    [(name, text)] = renewed().items()
    assert name == "docs/operations/page.md"
    assert "old" not in text
    assert text.endswith("<!-- end of the generated part -->\n\nThe end.\n")
    assert "| [`REFRAIN_SECRET`](deploy.md#redis) |" in text
    page.write_text(text)
    assert renewed() == {}


def test_each_setting_and_each_secret_is_explained():
    schema = json_schema()
    for keys in (schema, schema["$defs"]["UpstreamSettings"]):
        for name, key in keys["properties"].items():
            assert key["description"].endswith("."), name
    assert all(SECRETS.values())


@pytest.mark.parametrize(
    ("setting", "row"),
    [
        ("port", r"`REFRAIN_PORT`, `--port` \| 0 to 65535 \| `8080` \| Port to listen on."),
        ("store_bytes", r"`REFRAIN_STORE_BYTES` \| size \| `1GiB` \| "),
        ("vectors_timeout", r"`REFRAIN_VECTORS_TIMEOUT` \| time \| `50ms` \| "),
        (
            "log_format",
            r"`REFRAIN_LOG_FORMAT`, `--log-format` \| `auto`, `text`, `json` \| `auto` \| ",
        ),
        ("dns_server", r"`REFRAIN_DNS_SERVER` \| text \| the name servers of /etc/resolv.conf \| "),
    ],
)
def test_a_row_has_type_default_and_meaning(setting, row):
    rows = [line for line in PARTS["settings"](lambda page: page) if f"`{setting}`" in line]
    assert re.search(row, rows[0]), rows


def test_every_setting_has_a_row():
    rows = list(PARTS["settings"](lambda page: page))[2:]
    assert [re.search(r"`(\w+)`", row)[1] for row in rows] == list(Settings.model_fields)


def test_every_command_has_its_help():
    lines = "\n".join(PARTS["commands"](lambda page: page))
    for command in ("serve", "policy explain", "keys rotate", "backend", "backend check"):
        assert f"| [`refrain {command}`](#refrain-{command.replace(' ', '-')}) |" in lines
        assert f"### refrain {command}\n\n```text\nUsage: refrain {command} " in lines


def test_every_path_of_the_operators_api_says_what_it_does():
    rows = list(PARTS["operator-api"](lambda page: page))[2:]
    assert all(
        re.fullmatch(r"\| `(GET|POST)` \| `/admin/\S+` \| [A-Z].+\. \|", row) for row in rows
    )
    assert any("`/admin/policy/replay`" in row for row in rows)


def test_the_bound_of_calls_is_the_one_of_the_code():
    page = (ROOT / "docs" / "guides" / "upstreams.md").read_text(encoding="utf-8")
    assert f"makes at most {MOST_CALLS} calls to upstreams" in page
