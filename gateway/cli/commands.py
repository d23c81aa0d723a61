"""The commands of `refrain`: their options and help.

Law: nothing heavy is imported here. The code of a command is imported when it runs, so that help
and completion are quick.
"""

import click
from click import argument, option

from gateway.cli import options
from gateway.cli.options import FILE, FOLDER, Choice, ErrorBudget, Group, Time


class Root(Group):
    """All commands. The engine declares its command, which is imported when it is used."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name == "backend":
            from backend.__main__ import cli as backend

            return backend
        return super().get_command(ctx, name)


@click.group(
    cls=Root, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}
)
@click.version_option(package_name="refrain-gateway", message="refrain %(version)s")
def cli() -> None:
    """Run and watch a caching gateway in front of LLM inference.

    examples:
      refrain demo                                        everything here, on real parts
      refrain serve --upstream https://api.openai.com/v1  the gateway alone
      refrain backend --model Qwen/Qwen3-0.6B             the engine alone
      refrain policy check policy.yaml                    is this file right?

    exit codes: 0 done, 1 failed, 2 bad usage or invalid file
    """


@cli.command(run="process.launch:run_gateway")
@options.settings
def serve() -> None:
    """Run the gateway in front of an upstream.

    No file is needed: --upstream alone gives the defaults.

    examples:
      refrain serve --upstream http://127.0.0.1:8000/v1
      refrain serve --upstream https://api.openai.com/v1 --policy policy.yaml --port 9000
      REFRAIN_PORT=9000 refrain serve --config refrain.yaml
    """


@cli.command(run="process.launch:run_demo")
@options.settings_but_upstreams
def demo() -> None:
    """Run the gateway with the bundled engine and model.

    The whole product runs on this machine: gateway, encoder, bundled engine and its small demo
    model. Ctrl-C stops everything.
    """


@cli.command(run="operator.status:status")
@options.gateway
@options.as_json
def status() -> None:
    """Show whether a running gateway is ready, and what it does.

    One screen: ready or why not, version, uptime, requests by kind, upstreams, store, policy,
    semantic lookup. The exit code is 1 if the gateway is not ready or does not answer.

    examples:
      refrain status
      refrain status --gateway http://127.0.0.1:8080 --json
    """


@cli.command(run="operator.top:top")
@options.gateway
@option("--interval", type=Time(least=0.1, most=3600), default="2s", help="Between looks.")
@option("--once", is_flag=True, help="Print one frame and end, as without a terminal.")
def top() -> None:
    """Watch a running gateway: requests, savings, upstreams, rules.

    Live in the terminal until q or Ctrl-C: requests a second, hits by kind, savings, time to first
    token, upstreams with their state, queue and KV use of engines, error budgets by rule.

    examples:
      refrain top --gateway http://127.0.0.1:8080 --interval 500ms
    """


@cli.command(run="operator.doctor:doctor")
@options.settings
@options.as_json
def doctor() -> None:
    """Try what refrain serve would use, and say what to do.

    Tried are the settings, data directory, disk, port, store, vectors, upstreams, proxies, clock,
    encoder and verifier, GPU. Nothing is changed, and every wait has a bound.

    examples:
      refrain doctor
      refrain doctor --upstream http://127.0.0.1:8000/v1 --json

    exit codes: 0 no fault, 1 a fault
    """


@cli.command(run="operator.admin_api:warm")
@argument("file", type=FILE, help="Known questions, JSON lines.")
@option("--model", metavar="M", help="Model of bare questions.")
@option("--system", metavar="TEXT", help="System message of bare questions.")
@option("--concurrency", type=click.IntRange(1, 256), default=4, help="At a time.")
@options.gateway
def warm() -> None:
    """Load or generate answers to known questions.

    A line of the file is {"question": ..., "answer": ...} or {"request": {...}}. Without an answer
    the upstream is asked.

    The entries belong to the tenant whose key OPENAI_API_KEY holds (without one: to clients that
    send none). Loading answers needs the operator's token in REFRAIN_ADMIN_TOKEN, if the gateway
    has one.

    examples:
      refrain warm faq.jsonl --model gpt-4o
      refrain warm faq.jsonl --model gpt-4o --system "You help customers of Acme."
    """


@cli.command(run="operator.admin_api:audit")
@option("--purge", is_flag=True, help="Remove what is found.")
@options.as_json
@options.gateway
def audit() -> None:
    """Scan what is stored with today's detectors of personal data.

    The exit code is 1 when personal data is found and stays.
    """


@cli.command(run="offline.estimate.command:estimate")
@argument("log", type=FILE, help="Exported requests; - is standard input.")
@options.policy
@option(
    "--format",
    "log_format",
    type=Choice(("openai", "litellm", "helicone", "refrain")),
    help="Form of the log.  [default: recognised line by line]",
)
@option(
    "--risk",
    type=ErrorBudget(),
    metavar="R",
    help="Share of answers by meaning that may be wrong; without it none are looked for.",
)
@option(
    "--prefix-minutes",
    "prefix_seconds",
    type=Time(bare="m", least=6, most=604_800),
    default="10m",
    help="How long a prompt stays in a prefix cache; a number is of minutes.",
)
@option("--prices", type=FILE, help="Your prices, by model.  [default: the shipped table]")
@options.data_dir
@option("--html", type=FILE, help="Also write a page with plots.")
@options.as_json
def estimate() -> None:
    """Tell from a log what the cache would have saved.

    Nothing has to be installed in front of traffic. The estimate has exact hits, hits by meaning,
    calls that others would have joined, and what a prefix cache could find. The gateway's own code
    decides on each request, in the order of their start.

    A LOG holds JSON lines, and may be gzip (.gz). Its form is recognised: requests beside their
    answers or alone, and OpenAI's batch files (openai); LiteLLM's standard logging (litellm);
    Helicone's export with bodies (helicone); a gateway's decision log with requests (refrain).
    --data-dir names a gateway's data directory, whose calibration is then used.

    examples:
      refrain estimate log.jsonl
      refrain estimate --policy policy.yaml --html savings.html log.jsonl.gz
      refrain estimate --risk 1% log.jsonl    also answers by meaning, at most 1 % wrong

    exit codes: 0 done, 1 failed, 2 bad usage, invalid file or no request in the log
    """


@cli.command(run="operator.usage:usage", exclusive=(("as_csv", "as_json"), ("url", "data_dir")))
@option(
    "--by",
    type=Choice(("model", "holder", "team", "rule", "upstream", "day")),
    default="model",
    help="What a row is.",
)
@option("--since", metavar="DAY", help="First day, or a number of days such as 7d.  [default: 30d]")
@option("--team", metavar="TEAM", help="Only holders of keys of this team ('': of none).")
@option("--csv", "as_csv", is_flag=True, help="Print CSV.")
@options.as_json
@options.other_gateway
@options.data_dir
def usage() -> None:
    """Show what was used and saved, in tokens, money and time.

    Used is what upstreams were paid for; exact and semantic hits, shared calls, prefix caches and
    compression save. Dollars are of models whose price is known.

    examples:
      refrain usage --by team --since 7d
      refrain usage --by holder --team search
      refrain usage --gateway http://127.0.0.1:8080 --by day --csv > usage.csv
    """


cli.add_command(click.Command("backend"))  # in its place; see Root


@cli.command()
@argument("shell", type=Choice(("bash", "zsh", "fish")))
def completion(shell: str) -> int:
    """Print the script that completes commands in a shell.

    examples:
      eval "$(refrain completion bash)"    in ~/.bashrc
      eval "$(refrain completion zsh)"     in ~/.zshrc
      refrain completion fish > ~/.config/fish/completions/refrain.fish
    """
    from click.shell_completion import get_completion_class

    if script := get_completion_class(shell):
        click.echo(script(cli, {}, "refrain", "_REFRAIN_COMPLETE").source())
    return 0


@cli.group()
def config() -> None:
    """Check and show settings."""


@config.command("check", run="operator.config:check")
@options.settings
def config_check() -> None:
    """Tell whether refrain serve would take the settings.

    Checked are file, environment and flags, and the files that they name: policy, keys, prices,
    TLS. Nothing is started. Each fault is one line with file and key.

    examples:
      refrain config check
      refrain config check --config refrain.yaml --policy policy.yaml

    exit codes: 0 valid, 2 not valid
    """


@config.command("show", run="operator.config:show")
@options.settings
@options.as_json
def config_show() -> None:
    """Print the settings in force, and where each comes from.

    That is a flag, a variable, a line of the file or the default. Secrets are masked.
    """


@config.command("schema", run="operator.config:schema")
def config_schema() -> None:
    """Print the JSON schema of refrain.yaml, for editors."""


@cli.group()
def policy() -> None:
    """Check a policy, explain a request, replay a log."""


@policy.command("check", run="offline.policy:check")
@argument("files", nargs=-1, required=True, type=FILE)
def policy_check() -> None:
    """Tell whether files are valid policies (exit code 2: not)."""


@policy.command("schema", run="offline.policy:schema")
def policy_schema() -> None:
    """Print the JSON schema of policy files, for editors."""


@policy.command("explain", run="offline.explain:explain")
@argument("request", type=click.Path(), help="JSON file; - is standard input.")
@options.policy
@option("--data-dir", type=FOLDER, metavar="D", help="Look into the store there.")
@options.config
@option(
    "--upstream", metavar="URL", help="The upstream of the keys.  [default: the entries' upstream]"
)
@option("--gateway", "url", type=options.GatewayUrl(), help="Ask a running gateway.")
@option("--token", metavar="T", help="Its admin token.  [default: REFRAIN_ADMIN_TOKEN]")
@options.as_json
def policy_explain() -> None:
    """Tell what would become of a request, and why.

    One rule decides on a request. With --data-dir or --gateway the answer also tells whether the
    request would hit, and if not, what differs from the nearest entry.

    REQUEST is the JSON of a request's body, or {"endpoint": ..., "headers": {...}, "body": {...}},
    or a line of a decision log that has the request.

    examples:
      refrain policy explain --policy policy.yaml --data-dir .refrain request.json
      refrain policy explain --gateway http://127.0.0.1:8080 - < request.json
      head -n 1 log.jsonl | refrain policy explain --policy policy.yaml -
    """


@policy.command("replay", run="offline.policy:replay")
@option("--policy", type=FILE, required=True, help="Edited policy.")
@option("--data-dir", type=FOLDER, metavar="D", help="Of the gateway whose calibration is used.")
@options.as_json
@argument("log", type=FILE, metavar="LOG.jsonl", help="Decision log; - is standard input.")
def policy_replay() -> None:
    """Tell what an edited policy would change, from a log.

    The log's decisions and the policy's are both simulated on a cache without bounds.
    Record a log with: refrain serve with decision_log set.
    """


@cli.group()
def semantic() -> None:
    """Calibrate and watch answers by meaning."""


@semantic.command(run="offline.calibrate:calibrate")
@argument("log", nargs=-1, type=FILE, help="Comparisons or labelled pairs.")
@option(
    "--confidence",
    type=click.FloatRange(0.5, 0.999999),
    default=0.95,
    metavar="C",
    help="How sure it is that the budget is kept.",
)
@option(
    "--budget",
    type=ErrorBudget(),
    multiple=True,
    default=("0.1%", "0.5%", "1%", "2%", "5%"),
    metavar="B",
    help="Share of hits that may be wrong; repeated: several.",
)
@option(
    "--socket",
    type=FILE,
    metavar="S",
    help="Embeddings service to score pairs with.  [default: one is started for it]",
)
@option("--write", is_flag=True, help="Write semantic-calibration.json in the data directory.")
@options.data_dir
def calibrate() -> None:
    """Work out thresholds for error budgets from your own traffic.

    A threshold says how sure a semantic hit must be so that an error budget is kept. A table has
    the wrong hits from the surest down, what each budget would serve, and how many judgements are
    missing. What is unsure counts as wrong. A LOG holds JSON lines: comparisons that the gateway
    has made in shadow mode or by sampling (by default semantic-checks.jsonl in the data directory),
    or pairs labelled by hand, which are scored here.

    a pair:
      {"asked": "reset my password", "stored": "How do I reset my password?", "same": true}

    examples:
      refrain semantic calibrate pairs.jsonl --budget 0.5% --budget 1%
      refrain semantic calibrate pairs.jsonl --data-dir .refrain --write

    A running gateway takes what is written without a restart.

    exit codes: 0 done, 1 no budget is kept or no scores are to be had, 2 bad usage or no usable
    line
    """


@semantic.command(run="operator.admin_api:semantic_report", exclusive=(("url", "data_dir"),))
@options.as_json
@options.other_gateway
@options.data_dir
def report() -> None:
    """Tell how often answers by meaning were wrong, by rule.

    The comparisons of shadow mode and sampling show it: how many answers found by meaning were
    the same as the upstream's, how many were wrong, with an interval of 95 % that has room for the
    unsure ones, and the budget that this rate would meet.
    """


@cli.group()
def keys() -> None:
    """Make, list, revoke and rotate gateway keys."""


@keys.command("add", run="operator.keys:add")
@argument("name", help="The holder.")
@options.key_attributes
@options.key_file
def keys_add() -> None:
    """Make a key for a new holder, and show it once.

    Its line is added to the file of gateway keys. Standard output has the key alone.

    examples:
      refrain keys add shop --file keys
      refrain keys add shop --models 'gpt-4o*,text-embedding-*' --expires 90d
    """


@keys.command("list", run="operator.keys:list_keys")
@options.as_json
@options.key_file
def keys_list() -> None:
    """List the keys of the file, without their secrets."""


@keys.command("revoke", run="operator.keys:revoke")
@argument("name", help="The holder.")
@options.key_file
def keys_revoke() -> None:
    """Remove every key of a holder; takes effect within a second."""


@keys.command("rotate", run="operator.keys:rotate")
@argument("name", help="The holder.")
@options.key_attributes
@option(
    "--overlap",
    type=Time(),
    default="0",
    metavar="TIME",
    help="How long old keys stay valid, such as 1d; a number is of seconds.",
)
@options.key_file
def keys_rotate() -> None:
    """Make a new key for a holder; the old one ends.

    The new one has the attributes of the holder's newest. The old keys end at once, or after
    --overlap.

    examples:
      refrain keys rotate shop --overlap 1d
    """


@cli.group()
def prefix() -> None:
    """See why prefix caches miss, and mend it."""


@prefix.command("report", run="offline.prefix_report:run_report")
@argument("log", type=FILE, help="Recorded requests; - is standard input.")
@option(
    "--limit",
    type=click.IntRange(2, 1_000_000),
    default=2000,
    help="Requests looked at of a route.",
)
@options.as_json
def prefix_report() -> None:
    """Tell where recorded prompts part, and what would mend it.

    What would mend it are settings of a policy: the report has the bytes that they change and the
    YAML to paste. They are tried on the requests themselves, in a cache without bounds.

    A LOG holds JSON lines: a gateway's decision log with whole requests (decision_log_requests:
    true), {"body": {...}} as in OpenAI's batch files, or the bodies alone.

    examples:
      refrain prefix report log.jsonl
      refrain prefix report --json log.jsonl

    exit codes: 0 done, 2 bad usage or no request in the log
    """
