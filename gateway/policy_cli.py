"""``refrain policy``: what needs more than a policy joins ``check`` and ``schema``."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from gateway.arguments import gateway_url
from policies.cli import Commands
from policies.cli import main as policy

_EXPLAIN_EXAMPLES = """\
REQUEST is the JSON of a request's body, or {"endpoint": ..., "headers": {...}, "body": {...}}, or a
line of a decision log that has the request.

examples:
  refrain policy explain --policy policy.yaml request.json
  refrain policy explain --policy policy.yaml --data-dir .refrain request.json
  refrain policy explain --gateway http://127.0.0.1:8080 - < request.json
  head -n 1 log.jsonl | refrain policy explain --policy policy.yaml -
"""


def main(argv: Sequence[str]) -> int:
    """Run ``refrain policy`` with the arguments behind these words; return the exit code."""
    if argv[:1] == ["replay"]:  # has a parser of its own
        from gateway.replaying import main as replay

        return replay(argv[1:])
    return policy(argv, more=_add)


def _add(commands: Commands) -> None:
    explain = commands.add_parser(
        "explain",
        help="tell what would become of a request, and why",
        description="Tell which rule decides on a request and what it decides; with --data-dir or\n"
        "--gateway also whether it would hit, and if not, what differs from the nearest entry.",
        epilog=_EXPLAIN_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    explain.add_argument("request", metavar="REQUEST", help="JSON file; - is standard input")
    explain.add_argument("--policy", type=Path, metavar="FILE", help="policy (default: built in)")
    explain.add_argument("--data-dir", type=Path, metavar="D", help="look into the store there")
    explain.add_argument(
        "--config", type=Path, metavar="FILE", help="settings of the gateway whose store it is"
    )
    explain.add_argument(
        "--upstream", metavar="URL", help="the upstream of the keys (default: that of the entries)"
    )
    explain.add_argument(
        "--gateway", type=gateway_url, metavar="URL", help="ask a running gateway instead"
    )
    explain.add_argument(
        "--token", metavar="T", help="its admin token (default: REFRAIN_ADMIN_TOKEN)"
    )
    explain.add_argument("--json", action="store_true", help="print JSON")
    explain.set_defaults(run=_explain)
    commands.add_parser("replay", help="tell what an edited policy would change, from a log")


def _explain(options: argparse.Namespace) -> int:
    from gateway.policy_commands import explain

    return explain(options)
