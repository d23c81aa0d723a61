"""Every key of the format has its page, and every example of a page is a valid policy."""

import re
from pathlib import Path

import pytest

import policies
from gateway.cli.main import main
from policies.format.load import json_schema

DOCS = Path(policies.__file__).parents[1] / "docs"
REFERENCE = DOCS / "reference" / "policy"
GUIDE = DOCS / "guides" / "policy.md"
PAGES = {
    page.read_text().splitlines()[0].removeprefix("# ").strip("`"): page
    for page in sorted(REFERENCE.glob("*.md"))
    if page.name != "README.md"
}
INDEX = (REFERENCE / "README.md").read_text()
KEYS = {mapping: set(body["properties"]) for mapping, body in json_schema()["$defs"].items()}


def expected_pages():
    return (
        (set(json_schema()["properties"]) - {"pii"})
        | {f"pii.{key}" for key in KEYS["PiiSpec"]}
        | {f"match.{key}" for key in KEYS["MatchSpec"] - {"content"}}
        | {f"match.content.{key}" for key in KEYS["ContentSpec"]}
        | KEYS["DefaultSpec"]
    )


def examples(page):
    return re.findall(r"^```yaml\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE)


def test_every_key_has_its_page_and_every_page_its_key():
    assert set(PAGES) == expected_pages()


def test_the_index_names_every_page():
    for key, page in PAGES.items():
        assert f"| [`{key}`]({page.name}) |" in INDEX


@pytest.mark.parametrize(
    ("mapping", "page"),
    [
        ("SemanticSpec", "semantic"),
        ("GraceSpec", "grace"),
        ("CoalescingSpec", "coalescing"),
        ("PrefixSpec", "prefix"),
        ("VolatileSpec", "prefix"),
        ("DocumentsSpec", "prefix"),
        ("CompressSpec", "compress"),
        ("HintsSpec", "hints"),
        ("TenantSpec", "tenants"),
    ],
)
def test_the_keys_of_a_mapping_stand_on_its_page(mapping, page):
    for key in KEYS[mapping]:
        assert f"`{key}`" in PAGES[page].read_text(), key


def test_a_rule_is_a_name_a_match_and_settings():
    assert KEYS["RuleSpec"] - KEYS["DefaultSpec"] == {"name", "match"}
    assert all(f"`{key}`" in PAGES["rules"].read_text() for key in ("name", "match"))


@pytest.mark.parametrize("key", PAGES)
def test_the_examples_of_a_page_pass_the_check_and_use_its_key(key, tmp_path, capsys):
    found = examples(PAGES[key])
    assert found
    last = key.split(".")[-1]
    for number, example in enumerate(found):
        file = tmp_path / f"{number}.yaml"
        file.write_text(example)
        assert main(["policy", "check", str(file)]) == 0, capsys.readouterr().err
        assert re.search(rf"\b{last}:", example)


@pytest.mark.parametrize("page", [*PAGES.values(), GUIDE], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), target
