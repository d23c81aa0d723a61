"""Print what `refrain-gateway[EXTRAS]` depends on, one requirement a line, from pyproject.toml.

The image installs dependencies from this list before the code is copied, so that an edit of code
does not install them again. The image builds `refrain-verifier` itself, so it is left out.
Usage: requirements.py PYPROJECT EXTRA[,EXTRA…]
"""
# ruff: noqa: INP001 - a script, not part of a package

import re
import sys
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

BUILT = "refrain-verifier=="


def main(argv: Sequence[str]) -> int:
    """Print the requirements; 2 on bad usage."""
    if len(argv) != 2:
        sys.stderr.write("usage: requirements.py PYPROJECT EXTRA[,EXTRA...]\n")
        return 2
    file, names = argv
    project = tomllib.loads(Path(file).read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    if unknown := set(names.split(",")) - set(extras):
        sys.stderr.write(f"requirements.py: {file} has no extra {', '.join(sorted(unknown))}\n")
        return 2
    own = re.compile(rf"{project['name']}\[(?P<extras>[\w,-]+)\]")
    wanted = [*project["dependencies"], *_requirements(names, extras, own)]
    sys.stdout.write("\n".join(dict.fromkeys(wanted)) + "\n")
    return 0


def _requirements(
    names: str, extras: Mapping[str, Sequence[str]], own: re.Pattern[str]
) -> Iterator[str]:
    """Yield what the extras need, with those that they name."""
    for name in names.split(","):
        for line in extras[name]:
            if found := own.fullmatch(line):
                yield from _requirements(found["extras"], extras, own)
            elif not line.startswith(BUILT):
                yield line


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
