"""Print what `refrain-gateway[EXTRA]` depends on, one requirement a line, from pyproject.toml.

The image installs dependencies from this list before the code is copied, so that an edit of code
does not install them again. Usage: requirements.py PYPROJECT EXTRA
"""
# ruff: noqa: INP001 - a script, not part of a package

import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str]) -> int:
    """Print the requirements; 2 on bad usage."""
    if len(argv) != 2:
        sys.stderr.write("usage: requirements.py PYPROJECT EXTRA\n")
        return 2
    file, extra = argv
    project = tomllib.loads(Path(file).read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    if extra not in extras:
        sys.stderr.write(f"requirements.py: {file} has no extra {extra!r}\n")
        return 2
    sys.stdout.write("\n".join([*project["dependencies"], *extras[extra]]) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
