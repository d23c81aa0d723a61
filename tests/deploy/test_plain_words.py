"""Words for people: no long sentence, no turn that needs two readings, and no dead link."""

import io
import re
import tokenize
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
READMES = ("backend/README.md", "embeddings/README.md", "CHANGELOG.md")
"""Pages that have long sentences, but no hard turns."""
SOURCES = sorted(
    str(path.relative_to(ROOT))
    for folder in ("gateway", "policies")
    for path in (ROOT / folder).rglob("*.py")
)

TURN = re.compile(
    r"\b(?:those (?:of|that|who|which)|that of|(?:is|are) told|go(?:es)? by"
    r"|of (?:its|their|our|your|his|her) own|as far as known|what is no(?:ne)?|whoever)\b",
    re.IGNORECASE,
)
"""Turns that leave out a noun, or put the subject last: say the noun."""
MARKS = re.compile(r"^#:?|^[rbfu]{0,2}[\"']+|[\"']+$", re.IGNORECASE)
"""What begins and ends a comment or a string."""
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


def hard_turns(text: str) -> list[str]:
    """Return the turns of a page, tables included, that leave out a noun."""
    text = CODE.sub("code", without_code(text))
    return TURN.findall(" ".join(LINK.sub(r"\1", text).split()))


def comments(source: str) -> str:
    """Return the comments and strings of a module, docstrings and messages among them."""
    kinds = {tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", None)}
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    found = (MARKS.sub("", token.string) for token in tokens if token.type in kinds)
    return " ".join(" ".join(found).split())


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


@pytest.mark.parametrize("page", [*PAGES, *READMES])
def test_sentences_say_their_nouns(page):
    assert hard_turns((ROOT / page).read_text()) == []


def test_comments_and_messages_say_their_nouns():
    assert len(SOURCES) > 100
    found = {path: TURN.findall(comments((ROOT / path).read_text())) for path in SOURCES}
    assert {path: turns for path, turns in found.items() if turns} == {}


@pytest.mark.parametrize("page", [*PAGES, *READMES])
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
    "text",
    [
        "The figures are those of the page.",
        "A worker\nis told to leave.",
        "- each key has a cache of its\n  own",
        "| the key | that of the request |",
        "Those who ask [go by](page.md) it.",
        "It stores, as far as known, what is no text.",
    ],
)
def test_a_hard_turn_is_found(text):
    assert hard_turns(f"# Page\n\n{text}\n") != []


@pytest.mark.parametrize(
    "text",
    [
        "Each key has its own cache, and tells that often.",
        "Read `those of` in the log.",
        "```text\nthose of the policy\n```",
        "The gateway was told to stop. So those may go. By then it ends.",
    ],
)
def test_plain_turns_and_code_are_let_through(text):
    assert hard_turns(f"# Page\n\n{text}\n") == []


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ('"""Those\nof the page."""\n', 1),
        ("x = 1\n# a process of\n# its own\n", 1),
        ('raise ValueError("expected one "\n    f"of its own {x}")\n', 1),
        ("those, of = 1, 2\nis_told = those\n", 0),
    ],
)
def test_a_hard_turn_of_a_source_is_found(source, count):
    assert len(TURN.findall(comments(source))) == count


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
