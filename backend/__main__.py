"""`refrain backend`: serve a model over OpenAI's HTTP API; `check` proves the kernels instead.

Exit codes: 0 stopped by a signal, 1 could not run, 2 bad usage.
"""

import asyncio
import os
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.util import find_spec
from typing import Any

import click

from backend.served import summary
from backend.settings import Settings, seconds, seconds_from_zero

_INSTALL = "pip install 'refrain-gateway[cpu]', or [gpu]"
_EPILOG = f"""\
\b
examples:
  refrain backend --model ./my-model
      a directory in Hugging Face layout: config.json, *.safetensors, tokenizer.json
  refrain backend --model Qwen/Qwen3-0.6B --served-model-name assistant
      a model of the hub, downloaded when it is not in the local cache
  refrain backend --model ./my-model --device cuda --dtype bfloat16 --max-num-seqs 64 --port 9000
  refrain backend --model ./my-model --max-model-len 2048 --kv-bytes 512MiB --threads 2
  refrain backend --model ./my-model --target-itl-ms 50 --max-waiting 200 --queue-timeout 20

\b
before the first use of a GPU:
  refrain backend check                    are the kernels right here, and how fast is it

\b
then:
  curl http://127.0.0.1:8000/v1/models
  curl http://127.0.0.1:8000/readyz        503 with the reason until the model is loaded

\b
what it serves:
{summary()}
"""


_CHECK_EPILOG = """\
\b
examples:
  refrain backend check
  refrain backend check --model Qwen/Qwen3-0.6B --kv-dtype fp8
  refrain backend check | tail -n 1 > check.json

exit codes: 0 all kernels pass, or none was compared because no GPU is used ("passed": null);
1 one differs or fails, or the check could not run ("error" says why); 2 bad usage, without JSON.
What differs here is replaced by PyTorch when the engine starts.
"""
_CHECK_FLAGS = (
    "device",
    "dtype",
    "quantization",
    "kv_dtype",
    "attention",
    "max_model_len",
    "log_format",
)


class _Read(click.ParamType[Any]):
    """A value that a function of ``settings`` reads; it raises ValueError."""

    def __init__(self, read: Any) -> None:
        self._read, self.name = read, read.__name__

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value; a default is one already."""
        try:
            return self._read(value) if isinstance(value, str) else value
        except ValueError as error:
            self.fail(str(error), param, ctx)


def options(only: Collection[str] | None = None) -> Iterator[click.Option]:
    """Yield an option for each setting; ``only`` names those that get one, None: all."""
    for each in fields(Settings):
        if "flag" not in each.metadata or (only is not None and each.name not in only):
            continue
        flag, default = each.metadata["flag"], each.default
        name = f"--{flag['name'] or each.name.replace('_', '-')}"
        is_switch = isinstance(default, bool)
        kind = click.Choice(flag["choices"]) if flag["choices"] else _Read(flag["read"])
        yield click.Option(
            [f"{name}/--no-{name[2:]}" if default is True else name, each.name],
            is_flag=is_switch,
            type=click.BOOL if is_switch else kind,
            default=None if default is MISSING else default,
            multiple=isinstance(default, tuple),
            metavar=flag["metavar"],
            help=_help(flag, default),
            show_default=False,
        )


def _help(flag: Mapping[str, Any], default: Any) -> str:
    """Return the help of an option, with the default that it has or tells of."""
    text, _, told = flag["help"].partition(" [default: ")
    told = told.removesuffix("]")
    if not told and default not in (None, MISSING, ()) and not isinstance(default, bool):
        is_time = flag["read"] in (seconds, seconds_from_zero)
        told = f"{default:g}s" if is_time else str(default)
    return f"{text[0].upper()}{text[1:]}." + (f"  [default: {told}]" if told else "")


@click.pass_context
def _run(ctx: click.Context, /, **given: Any) -> int:
    if ctx.invoked_subcommand is not None:
        return 0
    if given["model"] is None:
        model = next(each for each in ctx.command.params if each.name == "model")
        raise click.MissingParameter(ctx=ctx, param=model)
    return _with_torch(Settings(**given), _serve)


def _check(**given: Any) -> int:
    def check(settings: Settings) -> int:
        from backend.check import run

        return run(settings)

    return _with_torch(Settings(**given), check)


def _with_torch(settings: Settings, run: Callable[[Settings], int]) -> int:
    from backend.process import configure_logging

    configure_logging(settings.log_format)
    if find_spec("torch") is None:
        print(f"refrain backend: torch is not installed: {_INSTALL}", file=sys.stderr)
        return 1
    return run(settings)


_HELP_NAMES = {"help_option_names": ["-h", "--help"]}
_MODEL = "Whose shapes and weights to take.  [default: the bundled model, and random weights of "
cli = click.Group(
    "backend",
    callback=_run,
    params=list(options()),
    invoke_without_command=True,
    context_settings=_HELP_NAMES,
    help="Serve a causal language model in Hugging Face layout over OpenAI's HTTP API.",
    short_help="Run the engine alone.",
    epilog=_EPILOG,
)
cli.add_command(
    click.Command(
        "check",
        callback=_check,
        params=[
            click.Option(
                ["--model"],
                default="",
                show_default=False,
                metavar="DIR_OR_HUB_ID",
                help=f"{_MODEL}Qwen3-0.6B's shape]",
            ),
            *options(_CHECK_FLAGS),
        ],
        help="Compare every kernel with its reference on this machine's GPU, and measure memory "
        "bandwidth and decode steps. The last line is JSON, whatever comes of it.",
        short_help="Compare every kernel with its reference on this machine's GPU.",
        epilog=_CHECK_EPILOG,
    )
)


def main(argv: Sequence[str]) -> int:
    """Run the command with ``argv``, which is without the program's name. Returns the exit code."""
    try:
        return int(cli.main(argv, prog_name="refrain backend", standalone_mode=False) or 0)
    except click.ClickException as error:
        error.show()
        return error.exit_code


def _serve(settings: Settings) -> int:
    import uvloop

    from backend.app import create_app
    from backend.models.config import ModelLoadError
    from backend.process import is_left_behind
    from backend.server.app import StartError, serve

    app = create_app(settings)
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(
                serve(
                    app,
                    settings.host,
                    settings.port,
                    drain_delay=settings.drain_delay,
                    drain_timeout=settings.drain_timeout,
                )
            )
    except (ModelLoadError, StartError, OSError) as error:
        print(f"refrain backend: {' '.join(str(error).split())}", file=sys.stderr)
        return 1
    if is_left_behind():
        # It may be inside of C++ code, and an orderly end of the interpreter would make it crash.
        sys.stderr.flush()
        os._exit(0)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
