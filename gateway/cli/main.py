"""The `refrain` command: arguments in, an exit code out (0 done, 1 failed, 2 bad usage or file)."""

import argparse
import importlib.metadata
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gateway.cli.terminal import CommandError, add_command, gateway_url, run_command, say

if TYPE_CHECKING:
    from gateway.settings import Settings

_SERVE_EXAMPLES = """\
examples:
  refrain serve --upstream http://127.0.0.1:8000/v1
  refrain serve --upstream https://api.openai.com/v1 --policy policy.yaml --port 9000
  REFRAIN_PORT=9000 refrain serve --config refrain.yaml
"""
_WARM_EPILOG = """\
The entries belong to the tenant whose key OPENAI_API_KEY holds (without one: to clients that send
none). Loading answers needs the operator's token in REFRAIN_ADMIN_TOKEN, if the gateway has one.

examples:
  refrain warm faq.jsonl --model gpt-4o
  refrain warm faq.jsonl --model gpt-4o --system "You help customers of Acme." --url http://gw:8080
"""
_MAIN_EXAMPLES = """\
examples:
  refrain demo                                          everything on this machine, on real parts
  refrain serve --upstream https://api.openai.com/v1    the gateway alone
  refrain backend --model Qwen/Qwen3-0.6B               the engine alone
  refrain policy check policy.yaml                      is this file right?

exit codes: 0 done, 1 failed, 2 bad usage or invalid file
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        return _run(arguments)
    except KeyboardInterrupt:  # where no supervisor took over the signal
        return 130
    except BrokenPipeError:  # whoever reads has read enough; Python would complain at its exit
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1


def _run(arguments: list[str]) -> int:
    match arguments:  # these have parsers of their own, which are only imported when asked for
        case ["backend", *rest]:
            from backend.__main__ import main as backend

            return backend(rest)
        case ["policy", *rest]:
            from gateway.cli.policy import main as policy

            return policy(rest)
        case ["semantic", *rest]:
            from gateway.cli.semantic import main as semantic

            return semantic(rest)
        case ["prefix", *rest]:
            from gateway.cli.prefix import main as prefix

            return prefix(rest)
    return run_command(_parser(), arguments)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="refrain",
        description="A caching gateway in front of LLM inference.",
        epilog=_MAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    version = importlib.metadata.version("refrain")
    parser.add_argument("--version", action="version", version=f"refrain {version}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND")

    serve = add_command(
        commands,
        "serve",
        _serve,
        summary="run the gateway in front of an upstream",
        description="Run the gateway. No file is needed: --upstream alone gives the defaults.",
        epilog=_SERVE_EXAMPLES,
    )
    serve.add_argument(
        "--upstream",
        action="append",
        metavar="URL",
        help="OpenAI-style base URL that ends in /v1; repeated: replicas",
    )
    serve.add_argument("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    serve.add_argument("--workers", type=int, metavar="N", help="gateway processes (default: 1)")
    _add_shared(serve)

    demo = add_command(
        commands,
        "demo",
        _demo,
        summary="run the gateway with the bundled engine and model",
        description="Run the whole product on this machine: gateway, encoder, bundled engine and\n"
        "its small demo model. Ctrl-C stops everything.",
    )
    demo.add_argument("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    _add_shared(demo)

    warm = add_command(
        commands,
        "warm",
        _warm,
        summary="load or generate answers to known questions",
        description="Fill a running gateway's cache from a file of known questions, a JSON object\n"
        'a line: {"question": ..., "answer": ...} or {"request": {...}}. Without an answer the\n'
        "upstream is asked.",
        epilog=_WARM_EPILOG,
    )
    warm.add_argument("file", type=Path, metavar="FILE", help="known questions, JSON lines")
    warm.add_argument("--model", metavar="M", help="model of bare questions")
    warm.add_argument("--system", metavar="TEXT", help="system message of bare questions")
    warm.add_argument(
        "--concurrency", type=_whole, default=4, metavar="N", help="at a time (default: 4)"
    )
    _add_url(warm)

    audit = add_command(
        commands,
        "audit",
        _audit,
        summary="scan what is stored with today's detectors of personal data",
        description="Scan every stored answer of a running gateway again. Exit code 1 when "
        "personal\ndata is found and stays.",
    )
    audit.add_argument("--purge", action="store_true", help="remove what is found")
    audit.add_argument("--json", action="store_true", help="print JSON")
    _add_url(audit)

    commands.add_parser("backend", help="run the engine alone (refrain backend --help)")
    commands.add_parser(
        "policy", help="check a policy, explain a request, replay a log (refrain policy --help)"
    )
    commands.add_parser(
        "semantic", help="calibrate and watch answers by meaning (refrain semantic --help)"
    )
    commands.add_parser(
        "prefix", help="see why prefix caches miss, and mend it (refrain prefix --help)"
    )
    return parser


def _add_shared(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="settings (default: refrain.yaml if there)"
    )
    parser.add_argument("--host", metavar="H", help="address to listen on (default: 127.0.0.1)")
    parser.add_argument("--port", type=int, metavar="P", help="port to listen on (default: 8080)")
    parser.add_argument(
        "--data-dir", type=Path, metavar="D", help="entries, vectors, secret (default: .refrain)"
    )
    parser.add_argument(
        "--log-level", choices=("debug", "info", "warning", "error"), help="default: info"
    )


def _add_url(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--url",
        type=gateway_url,
        default="http://127.0.0.1:8080",
        metavar="URL",
        help="the gateway (default: %(default)s); its token comes from REFRAIN_ADMIN_TOKEN",
    )


def _whole(text: str) -> int:
    number = int(text)
    if not 1 <= number <= 256:
        raise argparse.ArgumentTypeError("expected a number from 1 to 256")
    return number


def _warm(options: argparse.Namespace) -> int:
    from gateway.cli.operator import warm

    return warm(
        options.file,
        url=options.url,
        model=options.model,
        system=options.system,
        concurrency=options.concurrency,
    )


def _audit(options: argparse.Namespace) -> int:
    from gateway.cli.operator import audit

    return audit(url=options.url, purge=options.purge, as_json=options.json)


def _flags(options: argparse.Namespace) -> dict[str, Any]:
    names = ("upstream", "policy", "workers", "host", "port", "data_dir", "log_level")
    given = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in given.items() if value is not None}


def _serve(options: argparse.Namespace) -> int:
    from gateway.cli.launch import run_gateway

    settings = _settings(options)
    if not settings.all_upstreams:
        hint = "give --upstream URL, REFRAIN_UPSTREAM, or upstream: in refrain.yaml"
        raise CommandError(f"no upstream: {hint}")
    return run_gateway(settings)


def _demo(options: argparse.Namespace) -> int:
    from gateway.cli.launch import run_demo

    return run_demo(_settings(options))


def _settings(options: argparse.Namespace) -> "Settings":
    from gateway.settings import SettingsError, load_settings, unknown_variables

    config = options.config
    if config is None and Path("refrain.yaml").is_file():
        config = Path("refrain.yaml")
    for problem in unknown_variables(os.environ):
        say(f"warning: {problem}")
    try:
        return load_settings(_flags(options), os.environ, config)
    except SettingsError as error:
        raise CommandError(str(error)) from None
