"""The options that a command line of `refrain` gives."""

from collections.abc import Sequence
from types import SimpleNamespace

import click

from backend.__main__ import cli as engine
from backend.settings import Settings
from gateway.cli.main import cli


def parsed(words: Sequence[str]) -> SimpleNamespace:
    """Return the options of a command; the first word is its name. Raises click.UsageError."""
    command, *arguments = words
    above = click.Context(cli, info_name="refrain", **cli.context_settings)
    context = cli.commands[command].make_context(command, arguments, parent=above)
    return SimpleNamespace(**context.params)


def parsed_backend(words: Sequence[str]) -> Settings:
    """Return the settings of an engine; ``words`` are without its name."""
    return Settings(**engine.make_context("backend", list(words)).params)
