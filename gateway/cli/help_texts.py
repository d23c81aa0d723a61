"""Help of each command: its line in the list, its text and its examples."""

SERVE = """\
run the gateway in front of an upstream

Run the gateway. No file is needed: --upstream alone gives the defaults.

examples:
  refrain serve --upstream http://127.0.0.1:8000/v1
  refrain serve --upstream https://api.openai.com/v1 --policy policy.yaml --port 9000
  REFRAIN_PORT=9000 refrain serve --config refrain.yaml
"""
DEMO = """\
run the gateway with the bundled engine and model

Run the whole product on this machine: gateway, encoder, bundled engine and
its small demo model. Ctrl-C stops everything.
"""
WARM = """\
load or generate answers to known questions

Fill a running gateway's cache from a file of known questions, a JSON object
a line: {"question": ..., "answer": ...} or {"request": {...}}. Without an answer the
upstream is asked.

The entries belong to the tenant whose key OPENAI_API_KEY holds (without one: to clients that send
none). Loading answers needs the operator's token in REFRAIN_ADMIN_TOKEN, if the gateway has one.

examples:
  refrain warm faq.jsonl --model gpt-4o
  refrain warm faq.jsonl --model gpt-4o --system "You help customers of Acme." --gateway http://gw:8080
"""
AUDIT = """\
scan what is stored with today's detectors of personal data

Scan every stored answer of a running gateway again. Exit code 1 when personal
data is found and stays.
"""
USAGE = """\
show what was used and what was saved, in tokens, money and time

Show requests, tokens, dollars and seconds: what upstreams were paid for, and
what exact and semantic hits, shared calls, prefix caches and compression
saved. Dollars are of models whose price is known.

examples:
  refrain usage
  refrain usage --by team --since 7d
  refrain usage --by holder --team search
  refrain usage --gateway http://127.0.0.1:8080 --by day --csv > usage.csv
"""
CHECK = "tell whether files are valid policies; exit code 2 when one is not"
SCHEMA = "print the JSON schema of policy files, for editors"
EXPLAIN = """\
tell what would become of a request, and why

Tell which rule decides on a request and what it decides; with --data-dir or
--gateway also whether it would hit, and if not, what differs from the nearest entry.

REQUEST is the JSON of a request's body, or {"endpoint": ..., "headers": {...}, "body": {...}}, or a
line of a decision log that has the request.

examples:
  refrain policy explain --policy policy.yaml request.json
  refrain policy explain --policy policy.yaml --data-dir .refrain request.json
  refrain policy explain --gateway http://127.0.0.1:8080 - < request.json
  head -n 1 log.jsonl | refrain policy explain --policy policy.yaml -
"""
REPLAY = """\
tell what an edited policy would change, from a log

Run a recorded decision log against an edited policy and print what would
change. Both the decisions of then and those of the policy are simulated on a
cache without bounds. Record with: refrain serve with decision_log set.
"""
CALIBRATE = """\
work out thresholds for error budgets from your own traffic

Work out how sure a semantic hit must be so that an error budget is kept, from would-be hits of your
own traffic. A LOG holds JSON lines: comparisons that the gateway has made in shadow mode or by
sampling (semantic-checks.jsonl in the data directory), or pairs labelled by hand, which are scored
here:
  {"asked": "how can I reset my password", "stored": "How do I reset my password?", "same": true}
What is unsure counts as wrong.

examples:
  refrain semantic calibrate                                         what the gateway has compared
  refrain semantic calibrate pairs.jsonl --budget 0.5% 1% 2%
  refrain semantic calibrate pairs.jsonl --data-dir .refrain --write
  a running gateway takes what is written without a restart

exit codes: 0 done, 1 no budget is kept or no scores are to be had, 2 bad usage or no usable line
"""
REPORT = """\
how often answers by meaning were wrong, by rule

Print what the comparisons of shadow mode and sampling have shown, rule by rule: how many answers
found by meaning were those of the upstream, how many were wrong, with an interval of 95 % that has
room for the unsure ones, and the budget that this rate would meet.
"""
PREFIX_REPORT = """\
tell where recorded prompts part, and what would mend it

Tell of recorded requests where their prompts part, which settings of a policy would let a prefix
cache find more, which bytes these change, and the YAML to paste. Settings are tried on the requests
themselves, so what is told is what would have been found, in a cache without bounds.

A LOG holds JSON lines: a gateway's decision log with whole requests (decision_log_requests: true),
{"body": {...}} as in OpenAI's batch files, or the bodies alone. - is standard input.

examples:
  REFRAIN_DECISION_LOG=log.jsonl REFRAIN_DECISION_LOG_REQUESTS=true refrain serve --upstream URL
  refrain prefix report log.jsonl
  refrain prefix report --json log.jsonl

exit codes: 0 done, 2 bad usage or no request in the log
"""
KEYS_ADD = """\
make a key for a new holder, and show it once

Make a key and add its line to the file of gateway keys. Standard output has the key alone.

examples:
  refrain keys add shop --file keys
  refrain keys add shop --models 'gpt-4o*,text-embedding-*' --expires 90d
"""
KEYS_LIST = "list the keys of the file, without their secrets"
KEYS_REVOKE = "remove every key of a holder; a running gateway takes it within a second"
KEYS_ROTATE = """\
make a new key for a holder; the old one ends

Make a new key with the attributes of the holder's newest one. The old keys end at once, or
after --overlap.

examples:
  refrain keys rotate shop
  refrain keys rotate shop --overlap 1d
"""
ESTIMATE = """\
tell from a log what the cache would have saved

Tell what would have been saved of the requests of an exported log, before anything is installed in
front of traffic: exact hits, hits by meaning, calls that others would have joined, and what a
prefix cache could find. The gateway's own code decides on each request, in the order of their
start.

A LOG holds JSON lines, and may be gzip (.gz). Its form is recognised: requests beside their answers
or alone, and OpenAI's batch files (openai); LiteLLM's standard logging (litellm); Helicone's export
with bodies (helicone); a gateway's decision log with requests (refrain). - is standard input.

examples:
  refrain estimate log.jsonl
  refrain estimate --policy policy.yaml --html savings.html log.jsonl.gz
  refrain estimate --risk 1% log.jsonl         also answers by meaning, at most 1 % of them wrong

exit codes: 0 done, 1 failed, 2 bad usage, invalid file or no request in the log
"""
CONFIG_CHECK = """\
tell whether refrain serve would take the settings

Check the settings of file, environment and flags, and the files that they name: policy, keys,
prices, TLS. Nothing is started. Each fault is one line with file and key.

examples:
  refrain config check
  refrain config check --config refrain.yaml --policy policy.yaml

exit codes: 0 valid, 2 not valid
"""
CONFIG_SHOW = """\
print the settings in force, and where each comes from

Print every setting, its value, and where it comes from: a flag, a variable, a line of the file or
the default. Secrets are masked.
"""
CONFIG_SCHEMA = "print the JSON schema of refrain.yaml, for editors"
STATUS = """\
show whether a running gateway is ready, and what it does

Show on one screen: ready or why not, version, uptime, requests by kind, upstreams, store, policy,
semantic lookup. The exit code is 1 if the gateway is not ready or does not answer.

examples:
  refrain status
  refrain status --gateway http://127.0.0.1:8080 --json
"""
DOCTOR = """\
try what refrain serve would use, and say what to do

Check the settings, then try what they name: data directory, disk, port, store, vectors, upstreams,
proxies, clock, encoder and verifier, GPU. Each line is ok, a warning or a fault with what to do.
Nothing is changed, and every wait has a bound.

examples:
  refrain doctor
  refrain doctor --upstream http://127.0.0.1:8000/v1 --json

exit codes: 0 no fault, 1 a fault
"""
