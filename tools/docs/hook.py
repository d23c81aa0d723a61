"""Hook of mkdocs.yml: files outside docs/, such as CONTRIBUTING.md, are pages of the site.

Links stay as code hosts read them, from file to file. Here a link to another file of the repository
becomes a link to its page on the site, or plain text if it has none.
"""

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
PAGES = {
    "README.md": "README.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "CHANGELOG.md": "project/changelog.md",
    "SECURITY.md": "project/security.md",
    "gateway/README.md": "project/gateway.md",
    "policies/README.md": "project/policies.md",
    "embeddings/README.md": "project/embeddings.md",
    "backend/README.md": "project/backend.md",
    "tools/demo_model/README.md": "project/demo-model.md",
    "benchmarks/LOG.md": "project/benchmark-log.md",
    "policies/default.yaml": "project/policy-files.md",
    "policies/examples": "project/policy-files.md",
}
"""The page on the site of a file of the repository. The README is the site's first page."""

_LAST_IN_SEARCH = "---\nsearch:\n  boost: 0.2\n---\n"
_FILES = {page: file for file, page in PAGES.items() if page != "README.md"}
_CODE_OR_LINK = re.compile(
    r"^ *```.*?^ *```[ \t]*$|`[^`\n]*`"
    r"|(?P<mark>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\(\s*<?(?P<target>[^\s)>]+)>?\s*\)",
    re.MULTILINE | re.DOTALL,
)


def on_files(files: Files, config: Any) -> Files:
    """Add the pages that stand outside docs/."""
    for page, file in _FILES.items():
        text = policy_files() if page == "project/policy-files.md" else (ROOT / file).read_text()
        files.append(File.generated(config, page, content=_LAST_IN_SEARCH + text))
    return files


def policy_files() -> str:
    """Return a page with the shipped policy files."""
    shipped = [ROOT / "policies" / "default.yaml", *(ROOT / "policies" / "examples").glob("*.yaml")]
    blocks = [
        f"## {path.relative_to(ROOT / 'policies')}\n\n```yaml\n{path.read_text()}```\n"
        for path in shipped
    ]
    return "# Policy files\n\nComplete policy files to start from.\n\n" + "\n".join(blocks)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:
    """Rewrite the links of a page, outside code."""
    uri = page.file.src_uri
    return _CODE_OR_LINK.sub(
        lambda found: found[0] if found["target"] is None else rewrite(found, uri), markdown
    )


def rewrite(link: re.Match[str], uri: str) -> str:
    """Return a link of the page ``uri`` as the site needs it. MkDocs warns of dead ones."""
    path, _, anchor = link["target"].partition("#")
    if not path or re.match(r"[a-z][a-z0-9+.-]*:", path):
        return link[0]
    here = posixpath.dirname(_FILES.get(uri, f"docs/{uri}"))
    file = posixpath.normpath(posixpath.join(here, path))
    if file.startswith("docs/"):
        place = file.removeprefix("docs/")
    elif file in PAGES:
        place = PAGES[file]
    else:
        return link["text"] if (ROOT / file).exists() else link[0]
    if (ROOT / "docs" / place).is_dir():
        place += "/README.md"
    if anchor and file != "README.md":
        place += f"#{anchor}"
    relative = posixpath.relpath(place, posixpath.dirname(uri) or ".")
    return f"{link['mark']}[{link['text']}]({relative})"


def on_post_page(output: str, **_: Any) -> str:
    """Name the theme's search for screen readers."""
    return output.replace(' role="dialog">', ' role="dialog" aria-label="Search">')
