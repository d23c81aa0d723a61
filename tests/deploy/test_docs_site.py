"""The docs as a site: it builds without a warning, reads as on a code host, and loads nothing."""

import os
import re
import subprocess
import sys
from collections import Counter
from html.parser import HTMLParser
from pathlib import Path

import pytest

pytest.importorskip("mkdocs", reason="mkdocs-material is not installed: make setup installs it")

from markdown_it import MarkdownIt

from tools.docs.hook import PAGES

ROOT = Path(__file__).parents[2]
SHAPES = {"h1", "h2", "h3", "h4", "li", "ol", "ul", "pre", "table", "tr", "img", "blockquote"}
BROUGHT_BY = {"img": "src", "script": "src", "link": "href", "source": "src", "iframe": "src"}
SOURCES = {
    **{str(page.relative_to(ROOT / "docs")): page for page in (ROOT / "docs").rglob("*.md")},
    **{page: ROOT / file for file, page in PAGES.items() if file.endswith(".md") and page != file},
}


class Tags(HTMLParser):
    """The tags of a page: all, those of its article, and what a browser would load."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.shape: Counter[str] = Counter()
        self.loads: list[str] = []
        self._inside = "<article" not in text
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        found = dict(attrs)
        self._inside = self._inside or tag == "article"
        if self._inside and tag in SHAPES:
            self.shape[tag] += 1
        if tag in BROUGHT_BY and found.get("rel") not in ("canonical", "next", "prev"):
            self.loads.append(found.get(BROUGHT_BY[tag]) or "")

    def handle_endtag(self, tag):
        self._inside = self._inside and tag != "article"


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config)]
    return subprocess.run(
        [*command, "--site-dir", str(site)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    folder = tmp_path_factory.mktemp("site")
    done = build(ROOT / "mkdocs.yml", folder)
    assert (done.returncode, "WARNING" in done.stderr) == (0, False), done.stderr
    return folder


def html(site: Path, page: str) -> str:
    name = re.sub(r"(^|/)README\.md$", r"\1index.md", page)
    return (site / name).with_suffix(".html").read_text()


def test_each_page_has_the_shape_that_a_code_host_shows(site):
    markdown = MarkdownIt("commonmark").enable("table")
    differing = {}
    for page, source in SOURCES.items():
        there = Tags(markdown.render(source.read_text())).shape
        here = Tags(html(site, page)).shape
        if there != here:
            tags = (there - here) | (here - there)
            differing[page] = {tag: (there[tag], here[tag]) for tag in tags}
    assert differing == {}


def test_the_first_sentence_of_each_page_says_what_it_has():
    keys = ROOT / "docs" / "reference" / "policy"
    pages = [page for page in (ROOT / "docs").rglob("*.md") if page.parent != keys]
    firsts = {page: page.read_text().split("\n\n")[1] for page in pages}
    assert [page for page, first in firsts.items() if not first.startswith("This page ")] == []


def test_no_page_loads_anything_from_elsewhere(site):
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(SOURCES)
    for page in pages:
        elsewhere = [url for url in Tags(page.read_text()).loads if re.match(r"(\w+:)?//", url)]
        assert elsewhere == [], page
    for style in site.rglob("*.css"):
        assert not re.search(r"(@import|url\()\s*[\"']?(\w+:)?//", style.read_text()), style


def test_the_search_finds_a_word_of_each_part(site):
    index = (site / "search" / "search_index.json").read_text()
    for word in ("error budget", "REFRAIN_STORE_BYTES", "stale-while-revalidate", "paged KV"):
        assert word in index


def test_dead_links_end_the_build(tmp_path):
    links = ["absent-1.md", "#absent-2", "../gateway/absent-3.md", "other.md#absent-4"]
    docs = tmp_path / "docs"
    docs.mkdir()
    (docs / "README.md").write_text("# Page\n\n" + "\n".join(f"[a]({link})" for link in links))
    (docs / "other.md").write_text("# Other\n")
    settings = (ROOT / "mkdocs.yml").read_text().partition("\nnav:")[0]
    settings = settings.replace("tools/docs/hook.py", str(ROOT / "tools" / "docs" / "hook.py"))
    (tmp_path / "mkdocs.yml").write_text(settings)
    done = build(tmp_path / "mkdocs.yml", tmp_path / "site")
    assert done.returncode != 0
    assert set(re.findall(r"absent-\d", done.stderr)) == {f"absent-{n}" for n in (1, 2, 3, 4)}
