"""Pages for people: no long sentence in prose, and no link to a file or heading that is absent."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
MOST_WORDS = 25
PAGES = sorted(
    str(page.relative_to(ROOT))
    for page in (
        *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
        *(ROOT / name / "README.md" for name in ("gateway", "policies")),
        *(ROOT / "docs").rglob("*.md"),
    )
)

FENCE = re.compile(r"^( *)(```+|~~~+).*?^ *\2[ \t]*$", re.MULTILINE | re.DOTALL)
ITEM = re.compile(r"^( *)(?:[-*+]|\d+[.)])( +)")
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*<?([^\s)>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
REFERENCE = re.compile(r"^ {0,3}\[[^\]]+\]:\s*(\S+)", re.MULTILINE)
SOURCE = re.compile(r"<[^>]*\b(?:src|srcset|href)=\"([^\"]+)\"")
CODE = re.compile(r"(`+)(.+?)\1", re.DOTALL)
SENTENCE_END = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+")


def without_code(text: str) -> str:
    """Return the page without its code blocks: fenced, or indented behind a blank line."""
    lines: list[str] = []
    item, blank, code = 0, True, False
    for line in FENCE.sub("", text).splitlines():
        indent = len(line) - len(line.lstrip())
        if line.strip():
            code = indent >= item + 4 and (blank or code)
            if not code:
                found = ITEM.match(line)
                if found:
                    item = len(found[0])
                elif blank and indent == 0:
                    item = 0
        blank = not line.strip()
        lines.append("" if code else line)
    return "\n".join(lines)


def prose(text: str) -> Iterator[str]:
    """Yield each paragraph, heading and list item, a piece of code being one word."""
    text = re.sub(r"<!--.*?-->|<[a-zA-Z/][^>]*>", " ", without_code(text), flags=re.DOTALL)
    text = LINK.sub(lambda link: "" if link[0][0] == "!" else link[1], CODE.sub("code", text))
    block: list[str] = []
    for line in [*text.splitlines(), ""]:
        bare = line.strip()
        starts = not bare or bare[0] in "|#" or ITEM.match(line)
        if starts and block:
            yield " ".join(block)
            block = []
        if bare and bare[0] != "|":
            block.append(ITEM.sub("", line).strip().lstrip("#> "))
        if bare.startswith("#"):
            yield " ".join(block)
            block = []


def long_sentences(text: str) -> list[str]:
    """Return the sentences of more than ``MOST_WORDS`` words."""
    sentences = (each for block in prose(text) for each in SENTENCE_END.split(block))
    return [each for each in sentences if len(re.findall(r"[^\s]*\w[^\s]*", each)) > MOST_WORDS]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#{1,6} +(.+?) *#*$", without_code(text), re.MULTILINE):
        words = re.sub(r"[^\w\- ]", "", LINK.sub(r"\1", heading).lower()).replace(" ", "-")
        number, anchor = 0, words
        while anchor in found:
            number += 1
            anchor = f"{words}-{number}"
        found.add(anchor)
    return found


def dead_links(page: Path) -> list[str]:
    """Return the page's links to a file or heading that does not exist."""
    text = CODE.sub("", without_code(page.read_text()))
    targets = [url for _, url in LINK.findall(text)]
    dead = []
    for target in [*targets, *REFERENCE.findall(text), *SOURCE.findall(text)]:
        if re.match(r"[a-z][a-z0-9+.-]*:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (
            anchor and (file.is_dir() or anchor not in anchors(file.read_text()))
        ):
            dead.append(target)
    return dead


@pytest.mark.parametrize("page", PAGES)
def test_sentences_are_short(page):
    assert long_sentences((ROOT / page).read_text()) == []


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page):
    assert dead_links(ROOT / page) == []


def test_the_house_names_only_files_that_exist():
    house = ROOT / "gateway"
    rooms = [house, ROOT, *(path for path in house.rglob("*") if path.is_dir())]
    page = (house / "README.md").read_text()
    named = set(re.findall(r"[a-z_]+(?:/[a-z_]+)*\.py|[a-z_]+(?:/[a-z_]+)*/(?=[\s`,])", page))
    assert "server/pipeline.py" in named
    absent = {name for name in named if not any((room / name).exists() for room in rooms)}
    assert absent == set()


LONG = " ".join(["word"] * 26)


@pytest.mark.parametrize(
    "text",
    [
        f"{LONG}.",
        f"A short one. {LONG}.",
        f"- an item\n- {LONG}",
        f"## {LONG}",
        f"> {LONG}",
        LONG.replace(" ", "\n"),
        "[" + LONG + "](page.md)",
        "`one` " + LONG.removeprefix("word "),
        f"- an item\n\n    {LONG}",
    ],
)
def test_a_long_sentence_is_found(text):
    assert len(long_sentences(f"# Page\n\n{text}\n\nThe end.\n")) == 1


@pytest.mark.parametrize(
    "text",
    [
        f"```text\n{LONG}\n```",
        f"For example:\n\n    {LONG}\n\n    {LONG}",
        f"- an item\n\n      {LONG}",
        f"| {LONG} | {LONG} |",
        f"![{LONG}](picture.svg)",
        f"Run `{LONG}` now.",
        f"<!-- {LONG} -->",
        LONG.removesuffix(" word word") + " [word](a.md#b-c-d) — ! " + LONG.removesuffix(" word"),
        "\n".join(f"- {LONG[:60]}" for _ in range(5)),
    ],
)
def test_code_tables_and_addresses_are_no_sentences(text):
    assert long_sentences(f"# Page\n\n{text}\n") == []


@pytest.mark.parametrize(
    ("link", "dead"),
    [
        ("[a](missing.md)", ["missing.md"]),
        ("[a](other.md#missing)", ["other.md#missing"]),
        ("[a](#missing)", ["#missing"]),
        ("![a](missing.svg)", ["missing.svg"]),
        ('<img src="missing.svg">', ["missing.svg"]),
        ("[a][b]\n\n[b]: missing.md", ["missing.md"]),
        ("[a](other.md#what-is-it-1) [b](other.md) [c](#the-page) [d](other.md#a-b--c)", []),
        ("[a](https://example.com/missing) `[a](missing.md)`", []),
        ("```\n[a](missing.md)\n```", []),
    ],
)
def test_a_dead_link_is_found(link, dead, tmp_path):
    (tmp_path / "other.md").write_text("# What is it?\n\n## What is it?\n\n## `a-b` & c\n")
    page = tmp_path / "page.md"
    page.write_text(f"# The page\n\n{link}\n")
    assert dead_links(page) == dead
