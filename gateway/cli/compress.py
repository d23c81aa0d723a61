"""``refrain compress``: what operators do before they let prompts be compressed."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from pydantic_core import PydanticCustomError

from gateway.cli.terminal import RECORDED_LOG, add_recorded_log, gateway_url, number_from
from policies.format.values import PERCENT

_VALIDATE = """\
Ask the upstream recorded requests whole, whole again, and compressed as their rule says, all at
temperature 0, and compare the answers: at most 2 % may change. What is unsure counts as changed.
Requests that are not answered the same twice are left out, and told.
"""
_VALIDATE_EPILOG = f"""\
{RECORDED_LOG}
The rule is the one recorded, else what the body alone matches. REFRAIN_UPSTREAM_API_KEY is the
upstream's key. Take requests that the settings were not made for.

examples:
  refrain compress validate held-out.jsonl --policy policy.yaml --upstream https://api.openai.com/v1
  refrain compress validate log.jsonl --policy policy.yaml --upstream http://127.0.0.1:8000/v1 \\
      --limit 200 --json

exit codes: 0 no more answers changed than may, 1 more did, too few were compared for --sure or none
could be, 2 bad usage, invalid file or no request in the log
"""


def main(argv: Sequence[str]) -> int:
    """Run ``refrain compress`` with the arguments behind these words; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="refrain compress", description="See whether compressed prompts are answered the same."
    )
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    check = commands.add_parser(
        "validate",
        help="ask recorded requests whole and compressed, and compare the answers",
        description=_VALIDATE,
        epilog=_VALIDATE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_recorded_log(check, limit=500, least=1, of="requests")
    check.add_argument("--policy", type=Path, required=True, metavar="FILE", help="its rules")
    check.add_argument(
        "--upstream", type=gateway_url, required=True, metavar="URL", help="ends in /v1"
    )
    check.add_argument(
        "--most-changed",
        type=_share,
        default=0.02,
        metavar="SHARE",
        help="of the answers that may change (default: 2%%)",
    )
    check.add_argument(
        "--sure",
        action="store_true",
        help="pass only if so few changed that with 95%% confidence no more do (149 of which none)",
    )
    check.add_argument(
        "--timeout",
        type=number_from(1),
        default=120,
        metavar="SECONDS",
        help="for one answer (default: %(default)s)",
    )
    check.add_argument(
        "--socket",
        type=Path,
        metavar="S",
        help="of an embeddings service (default: one is started for it)",
    )
    check.add_argument("--json", action="store_true", help="print JSON")
    check.set_defaults(run=_validate)
    options = parser.parse_args(argv)
    code: int = options.run(options)
    return code


def _share(text: str) -> float:
    try:
        return float(PERCENT.read(text))
    except PydanticCustomError as error:
        raise argparse.ArgumentTypeError(f"expected {error.message()}") from None


def _validate(options: argparse.Namespace) -> int:
    from gateway.cli.compress_validating import Options, validate

    return validate(
        Options(
            log=options.log,
            policy=options.policy,
            upstream=options.upstream,
            limit=options.limit,
            most=options.most_changed,
            seconds=float(options.timeout),
            socket=options.socket,
            as_json=options.json,
            sure=options.sure,
        )
    )
