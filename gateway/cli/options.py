"""How commands are declared: their class, the types of values, and options that several have.

Law: nothing heavy is imported here, since every command begins with it.
"""

import pkgutil
import re
from collections.abc import Callable
from difflib import get_close_matches
from inspect import cleandoc
from math import inf
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import click
from click import option
from click.core import ParameterSource

FILE = click.Path(path_type=Path)
"""A path that shells complete. Each command says in its own words what it cannot read."""
FILE.name = "file"
FOLDER = click.Path(path_type=Path)

_KEPT = re.compile(r"(?m)(?<=\n\n)(?=\S.*\n  )")
"""The beginning of a paragraph with indented lines, which help keeps as they are."""

F = TypeVar("F", bound=Callable[..., Any])


class Command(click.Command):
    """A command that ``run`` names as module and function of this package.

    Of each pair in ``exclusive`` the command line may have one option.
    """

    def __init__(
        self, *given: Any, run: str = "", exclusive: tuple[tuple[str, str], ...] = (), **named: Any
    ) -> None:
        super().__init__(*given, **named)
        if self.help is not None:
            self.help = _KEPT.sub("\b\n", cleandoc(self.help))
        self.run, self._exclusive = run, exclusive

    def invoke(self, ctx: click.Context) -> Any:
        for pair in self._exclusive:
            sources = [ctx.get_parameter_source(name) for name in pair]
            if sources == [ParameterSource.COMMANDLINE] * 2:
                names = [each.opts[0] for each in self.params if each.name in pair]
                raise click.UsageError(f"{' and '.join(names)} exclude one another.", ctx)
        if not self.run:
            return super().invoke(ctx)
        return pkgutil.resolve_name(f"gateway.cli.{self.run}")(**ctx.params)


class Group(Command, click.Group):
    """Commands, in the order of their declaration."""

    command_class = Command
    group_class = type

    def list_commands(self, _ctx: click.Context) -> list[str]:
        return list(self.commands)


class Choice(click.Choice[str]):
    """One of some words; a message about another word names the nearest."""

    def get_invalid_choice_message(self, value: Any, ctx: click.Context | None) -> str:
        near = get_close_matches(str(value), self.choices, n=1)
        hint = f" Did you mean {near[0]!r}?" if near else ""
        return super().get_invalid_choice_message(value, ctx) + hint


class GatewayUrl(click.ParamType[str]):
    """The address of a running gateway."""

    name = "url"

    def convert(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> str:
        try:
            parts = urlsplit(value)
            usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:
            usable = False
        if not usable:
            self.fail(f"expected a URL such as http://127.0.0.1:8080, got {value!r}", param, ctx)
        return value


class Time(click.ParamType[float]):
    """A time such as 500ms, 30s or 5m within bounds, in seconds; ``bare`` is a number's unit."""

    name = "time"

    def __init__(self, *, bare: str = "s", least: float = 0.0, most: float = inf) -> None:
        self._bare, self._least, self._most = bare, least, most

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        from policies.format.units import read_time, time_text

        try:
            seconds = read_time(value, self._bare)
        except ValueError as error:
            self.fail(f"{error}, got {value!r}", param, ctx)
        if not self._least <= seconds <= self._most:
            bounds = f"{time_text(self._least)} to {time_text(self._most)}"
            self.fail(f"expected a time from {bounds}, got {value!r}", param, ctx)
        return seconds


class ErrorBudget(click.ParamType[float]):
    """A share of hits that may be wrong, such as 1%, as policy files have it."""

    name = "percentage"

    def convert(
        self, value: str, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        # Costs as much to import as all else.
        from policies.format.values import ERROR_BUDGET, UnexpectedValueError

        try:
            return float(ERROR_BUDGET.read(value))
        except UnexpectedValueError as refused:
            self.fail(f"expected {refused}, got {value!r}", param, ctx)


def _together(*options: Callable[[F], F]) -> Callable[[F], F]:
    def add(function: F) -> F:
        for each in reversed(options):
            function = each(function)
        return function

    return add


as_json = option("--json", "as_json", is_flag=True, help="Print JSON.")
policy = option("--policy", type=FILE, help="Policy.  [default: built in]")
config = option("--config", type=FILE, help="Settings.  [default: refrain.yaml if there]")
data_dir = option(
    "--data-dir",
    type=FOLDER,
    metavar="D",
    envvar="REFRAIN_DATA_DIR",
    default=".refrain",
    help="The gateway's data directory.",
)
gateway = option(
    "--gateway",
    "url",
    type=GatewayUrl(),
    default="http://127.0.0.1:8080",
    help="The gateway; its token comes from REFRAIN_ADMIN_TOKEN.",
)
other_gateway = option(
    "--gateway",
    "url",
    type=GatewayUrl(),
    help="Ask a running gateway instead; its token comes from REFRAIN_ADMIN_TOKEN.",
)

# No defaults here: a flag that is given goes before environment and file.
settings_but_upstreams = _together(
    policy,
    config,
    option("--host", metavar="H", help="Address to listen on.  [default: 127.0.0.1]"),
    option("--port", type=int, metavar="P", help="Port to listen on.  [default: 8080]"),
    option("--data-dir", type=FOLDER, metavar="D", help="For entries.  [default: .refrain]"),
    option(
        "--log-level",
        type=Choice(("debug", "info", "warning", "error")),
        help="Least severe lines.  [default: info]",
    ),
    option(
        "--log-format",
        type=Choice(("auto", "text", "json")),
        help="Of lines on stderr; auto: text on a terminal, else JSON.  [default: auto]",
    ),
)
settings = _together(
    option(
        "--upstream",
        multiple=True,
        callback=lambda _ctx, _param, urls: urls or None,
        metavar="URL",
        help="OpenAI-style base URL, mostly ending in /v1; repeated: replicas.",
    ),
    option("--workers", type=int, metavar="N", help="Gateway processes.  [default: 1]"),
    settings_but_upstreams,
)

key_file = _together(
    option("--file", type=FILE, help="File of keys.  [default: gateway_keys of the settings]"),
    config,
)
key_attributes = _together(
    option("--models", metavar="GLOBS", help="Models it may use, such as gpt-4o*,claude-*."),
    option("--expires", metavar="WHEN", help="When it ends: 90d, or 2027-01-31 in UTC."),
    option("--team", help="Keys of a team share answers of scope: team."),
    option("--rpm", metavar="N", help="Most requests a minute, such as 60."),
    option("--tpm", metavar="N", help="Most tokens a minute, such as 100k."),
    option("--concurrency", metavar="N", help="Most requests at a time, in each worker."),
    option(
        "--budget",
        metavar="B",
        help="At its end requests are refused: 5Mtokens/day, 20USD/month, or both with a comma.",
    ),
    option("--soft-budget", metavar="B", help="At its end a warning is logged: 15USD/month."),
    option(
        "--account",
        metavar="A",
        help="Whether it may use paths where the upstream stores: open, or closed (if new).",
    ),
)
