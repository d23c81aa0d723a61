"""What eligibility costs a miss, and what it says of questions that lean on their conversation.

    python benchmarks/eligibility.py [--shares FILE]

Times are beside a floor: lower-casing a question and splitting it at white space. CANARD
(canard_multiturn.jsonl of the evaluation data, read in place; path by REFRAIN_DATA) is asked as
conversations through the gateway's own plan: a question may meet another one only where both are
looked for under the same fingerprint. `--shares` tells of a file of questions, one a line, what
share is ineligible, by reason.
"""

import argparse
import json
import os
import timeit
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

from gateway.cache.key import ANONYMOUS
from gateway.cache.plan import Plan, plan_request
from gateway.semantic.eligibility import ineligible
from policies.decision import Decision, Endpoint, PiiAction, Scope
from policies.freshness import Directives

DATA = Path(os.environ.get("REFRAIN_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
TIMED = {
    "15 words": "What is the best way to get a refund for a flight that the airline cancelled?",
    "15 words, after turns": "What is the best way to get a refund for a train that was late?",
    "60 words": "On Friday the big hall of the theatre had twelve rows of fourteen seats each, "
    "and nine of them stayed empty all evening. Every guest paid 9 euros at the door, but children "
    "under ten, of whom there were 21, paid only a third of that. How much money did the owner "
    "take at the door that night, once 45 euros had gone to the cleaner?",
    "1,000 characters": "Could you tell me how the fee for card payments abroad is worked out? "
    * 14,
    "1,000 brackets": "([{<" * 250,
    "1,000 of a(": "a(" * 500,
    "100,000 characters": "how do I pay " * 8000,
}
DECISION = Decision(
    rule="default",
    exact=True,
    semantic=True,
    min_similarity=0.75,
    lifetime=3600.0,
    scope=Scope.TENANT,
    pii=PiiAction.ALLOW,
    generation=1,
)


def microseconds(text: str, *, follows: bool) -> tuple[float, float]:
    """Return the least time of many runs, of the judgement and of the floor."""

    def least(run: Any) -> float:
        return min(timeit.repeat(run, number=20, repeat=50)) / 20 * 1e6

    return least(lambda: ineligible(text, follows=follows)), least(lambda: text.lower().split())


def times() -> dict[str, float]:
    """Print what a judgement takes."""
    print(f"{'text':24}{'us':>10}{'floor us':>10}  verdict")
    found = {}
    for name, text in TIMED.items():
        follows = "after" in name
        taken, floor = microseconds(text, follows=follows)
        verdict = ineligible(text, follows=follows)
        print(f"{name:24}{taken:10.1f}{floor:10.1f}  {verdict.value if verdict else 'eligible'}")
        found[name] = round(taken, 1)
    return found


def plan_of(turns: list[str], question: str) -> Plan:
    """Plan the last turn of a conversation."""
    roles = ("user", "assistant")
    messages = [{"role": roles[at % 2], "content": turn} for at, turn in enumerate(turns)]
    plan = plan_request(
        {"model": "m", "messages": [*messages, {"role": "user", "content": question}]},
        endpoint=Endpoint.CHAT,
        upstream="http://upstream/v1",
        query="",
        tenant=ANONYMOUS,
        secret=bytes(32),
        decision=DECISION,
        pii_identity="allow",
        directives=Directives(),
    )
    if not isinstance(plan, Plan):
        raise TypeError(plan)
    return plan


def conversations(file: Path) -> dict[str, Any]:
    """Ask every question in its conversation, and count meetings under another one."""
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    under: defaultdict[bytes, set[str]] = defaultdict(set)
    same_words: Counter[str] = Counter()
    leaning = whole = 0
    for row in rows:
        plan = plan_of(row["history"], row["question"])
        same_words[row["question"]] += 1
        leaning += plan.question is None
        whole += plan_of(row["history"], row["rewrite"]).question is not None
        if plan.question is not None:
            under[plan.fingerprint].add(json.dumps(row["history"]))
    repeated = sum(count for count in same_words.values() if count > 1)
    meetings = sum(len(histories) - 1 for histories in under.values())
    print(f"\nCANARD, {len(rows)} questions, {repeated} of them in words asked elsewhere, too")
    print(f"could meet a question of another conversation: {meetings}")
    print(f"exact only, as asked: {leaning / len(rows):.1%}; may be found, rewritten to stand")
    print(f"by itself: {whole / len(rows):.1%}")
    return {"canard": len(rows), "meetings": meetings, "leaning": leaning, "whole": whole}


def shares(file: Path) -> dict[str, Any]:
    """Print what share of a file's lines is ineligible."""
    lines = [line for line in file.read_text().splitlines() if line.strip()]
    found = Counter(reason.value for line in lines if (reason := ineligible(line)) is not None)
    print(f"\n{file}: {len(lines)} lines, {found.total() / len(lines):.2%} ineligible")
    for name, count in found.most_common():
        print(f"  {name:18}{count:8}{count / len(lines):8.2%}")
    return {"lines": len(lines), "ineligible": found.total()}


def main() -> None:
    """Run what there is data for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--shares", type=Path)
    given = parser.parse_args()
    told: dict[str, Any] = {"benchmark": "eligibility", "us": times()}
    file = DATA / "canard_multiturn.jsonl"
    if file.exists():
        told |= conversations(file)
    else:
        print(f"\n{file} is not there: CANARD left out")
    if given.shares:
        told |= shares(given.shares)
    print(json.dumps(told))


if __name__ == "__main__":
    main()
