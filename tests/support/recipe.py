"""A recipe of the docs as a test runs it: its commands as one shell script, in the page's order.

A ``sh`` block is run as it stands. The ``text`` block behind it is what one should see: each of its
lines is in the output, in this order, and ``…`` is anything. Only addresses and ports are replaced.
"""

import asyncio
import contextlib
import os
import re
import signal
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from processes import PATIENT

ROOT = Path(__file__).parents[2]
SECONDS = 120
_BLOCK = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_MARK = "=== step"


@dataclass(frozen=True)
class Step:
    """Commands, and lines of what one should see."""

    commands: str
    expected: tuple[str, ...]


@dataclass(frozen=True)
class Ran:
    """The output of each step that was run, and what the shell and its jobs wrote beside."""

    outputs: tuple[str, ...]
    errors: str

    def of(self, word: str) -> str:
        """Return the output of the only step whose output has a word."""
        (found,) = [output for output in self.outputs if word in output]
        return found


def steps_of(text: str) -> list[Step]:
    """Return the steps of a page."""
    steps: list[Step] = []
    for language, block in _BLOCK.findall(text):
        if language == "sh":
            steps.append(Step(block, ()))
        else:
            steps[-1] = Step(steps[-1].commands, (*steps[-1].expected, *block.splitlines()))
    return steps


def unseen(expected: tuple[str, ...], output: str) -> list[str]:
    """Return the expected lines that the output does not have in this order."""
    lines, missing = iter(output.splitlines()), []
    for line in expected:
        pattern = re.compile(".*".join(map(re.escape, line.strip().split("…"))))
        if not any(pattern.fullmatch(each.strip()) for each in lines):
            missing.append(line)
    return missing


def command(folder: Path, name: str, *argv: str) -> None:
    """Make a command of this name that runs Python with these arguments."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    words = " ".join(f"'{each}'" for each in (sys.executable, *argv))
    file.write_text(f'#!/bin/sh\nexec {words} "$@"\n')
    file.chmod(0o755)


async def run_recipe(
    page: str, folder: Path, replaced: Mapping[str, str], *, without: str | None = None
) -> Ran:
    """Run a page in a folder, whose ``bin`` holds commands; check what one should see.

    A step that begins with ``without`` is left out.
    """
    text = (ROOT / page).read_text()
    for old, new in replaced.items():
        assert old in text, old
        text = text.replace(old, new)
    steps = [
        step for step in steps_of(text) if without is None or not step.commands.startswith(without)
    ]
    command(folder / "bin", "refrain", "-m", "gateway.cli")
    script = "".join(f"echo '{_MARK}'\n{step.commands}" for step in steps)
    # The last step stops what was started, so the shell has nothing to wait for.
    output, errors = await bash(f"{script}wait\n", folder)
    outputs = tuple(output.split(f"{_MARK}\n")[1:])
    assert len(outputs) == len(steps), errors
    for step, shown in zip(steps, outputs, strict=True):
        assert unseen(step.expected, shown) == [], (step.commands, shown, errors, _logs(folder))
    return Ran(outputs, errors)


def _logs(folder: Path) -> str:
    return "\n".join(f"{file.name}: {file.read_text()}" for file in folder.glob("*.log"))


async def bash(script: str, folder: Path) -> tuple[str, str]:
    """Run a script in a folder whose ``bin`` holds commands; return output and errors."""
    inherited = {name: text for name, text in os.environ.items() if "proxy" not in name.lower()}
    environment = {
        **inherited,
        **PATIENT,
        "PATH": f"{folder / 'bin'}:{os.environ['PATH']}",
        "PYTHONPATH": f"{ROOT}:{ROOT / 'tests' / 'support'}:{ROOT / 'tests'}",
    }
    shell = await asyncio.create_subprocess_exec(
        *("bash", "-c", script),
        cwd=folder,
        env=environment,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        start_new_session=True,
    )
    try:
        output, errors = await asyncio.wait_for(shell.communicate(), SECONDS)
    except TimeoutError:
        raise AssertionError(f"not done in {SECONDS} s: {_logs(folder)}") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(shell.pid, signal.SIGKILL)
        await shell.wait()
    return output.decode(), errors.decode()
