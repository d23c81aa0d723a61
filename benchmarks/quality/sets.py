"""The evaluation data as trials. Public sets are read in place (shared/data/README.md).

The groups in ``data`` were written for evaluation and set aside before training.
"""

import json
import os
import random
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from quality.lookalikes import lookalikes
from quality.trial import SEED, Message, Request, Trial, pairs
from tools.verifier.material.people import Pair, People, PeopleError, read_people
from tools.verifier.material.rewordings import read_rewordings

QQP_EVERY = 5
PEOPLE_MOST = 300
"""Pairs of a source and label."""
HELD_OUT = Path(__file__).parent / "data"
REWORDINGS = Path(__file__).parents[2] / "tools" / "verifier" / "written" / "rewordings"
DATA = Path(os.environ.get("REFRAIN_DATA", Path(__file__).parents[2].parent / "shared" / "data"))


class Group(NamedTuple):
    """One answer fits the seed and its rewordings, and no near miss."""

    seed: str
    rewordings: tuple[str, ...]
    misses: tuple[str, ...]


class MissingDataError(Exception):
    """A file of the evaluation data is not there; the message says which."""


def checklist(data: Path) -> Trial:
    """Minimal pairs, each by itself; grouped by capability and test."""
    return pairs(
        "checklist",
        (
            (row["a"], row["b"], row["label"] == 1, f"{row['capability']}: {row['test']}")
            for row in _rows(data, "checklist_pairs.jsonl")
        ),
    )


def gsm_plus(data: Path) -> Trial:
    """All seed problems stored, variants asked; right is the own seed with an equal answer.

    A seed has the number of the first row that it stands in.
    """
    seeds: dict[str, Request] = {}
    asked = []
    for place, row in enumerate(_rows(data, "gsm_plus.jsonl")):
        seed = row["seed_question"]
        number = len(seeds) if seed not in seeds else int(seeds[seed].group)
        answer = f"{number}: {row['seed_answer']}"
        seeds.setdefault(seed, Request(seed, answer, str(number), row=place))
        answer = f"{number}: {row['answer']}"
        asked.append(Request(row["question"], answer, row["perturbation_type"], row=place))
    return Trial("gsm_plus", tuple(seeds.values()), tuple(asked))


def qqp(data: Path) -> Trial:
    """Every fifth pair of Quora's questions, each by itself."""
    rows = _rows(data, "qqp_pairs.jsonl")[::QQP_EVERY]
    return pairs("qqp", ((row["a"], row["b"], row["label"] == 1, "") for row in rows))


def clinc150(data: Path) -> Trial:
    """6,000 train texts stored, 2,000 others asked, and all that is out of scope."""
    rows = _rows(data, "clinc150.jsonl")
    train = [(n, row) for n, row in enumerate(rows) if row["split"] == "train"]
    trial = _intents("clinc150", train, stored=6000, asked=2000)
    outside = tuple(Request(row["text"], None, "oos") for row in rows if row["intent"] == "oos")
    return Trial(trial.name, trial.stored, trial.asked + outside)


def banking77(data: Path) -> Trial:
    """5,000 questions stored, 2,000 others asked."""
    rows = _rows(data, "banking77.jsonl")
    return _intents("banking77", list(enumerate(rows)), stored=5000, asked=2000)


def canard(data: Path) -> Trial:
    """Half of the dialogues stored, with each question as it was put and as its own sentence.

    Asked are the same words in conversations of the other half, both ways: no answer is right. And,
    to see that something can hit, each question's own sentence in its own conversation.
    """
    rows = _rows(data, "canard_multiturn.jsonl")
    titles = sorted({tuple(row["history"][:2]) for row in rows})
    random.Random(SEED).shuffle(titles)
    kept = set(titles[: len(titles) // 2])
    inside = [row for row in rows if tuple(row["history"][:2]) in kept]
    outside = [row for row in rows if tuple(row["history"][:2]) not in kept]
    stored, asked = [], []
    for number, row in enumerate(inside):
        history, other = _turns(row), _turns(outside[number % len(outside)])
        stored.append(Request(row["question"], str(number), history=history))
        asked += [
            Request(row["question"], None, "same words", history=other),
            Request(row["rewrite"], None, "own sentence", history=other),
            Request(row["rewrite"], str(number), "same conversation", history=history),
        ]
        # A realm of their own: in the first the same conversation would hold both.
        stored.append(Request(row["rewrite"], str(number), realm=1, history=history))
        asked += [
            Request(row["rewrite"], None, "own sentence", realm=1, history=other),
            Request(row["question"], str(number), "same conversation", realm=1, history=history),
        ]
    asked += [Request(row["question"], None, "as it came", history=_turns(row)) for row in outside]
    return Trial("canard", tuple(stored), tuple(asked))


def verbs(_: Path) -> Trial:
    """All seeds stored; asked are rewordings, and near misses that turn on a verb."""
    stored, asked = [], []
    for group in groups("support_verbs"):
        stored.append(Request(group.seed, group.seed, "seed"))
        asked += [Request(text, group.seed, "rewording") for text in group.rewordings]
        asked += [Request(text, None, "near miss") for text in group.misses]
    return Trial("verbs", tuple(stored), tuple(asked))


def people(data: Path) -> Trial:
    """Pairs of many sources that were held out of training, each by itself; grouped by source.

    Of each source and label at most 300 are drawn.
    """
    kinds: dict[tuple[str, bool], list[Pair]] = defaultdict(list)
    for pair in _people(data).held_out:
        kinds[pair.source, pair.same].append(pair)
    draw = random.Random(SEED)
    drawn = [
        pair
        for _, kind in sorted(kinds.items())
        for pair in draw.sample(kind, min(len(kind), PEOPLE_MOST))
    ]
    return pairs("people", ((pair.a, pair.b, pair.same, pair.source) for pair in drawn))


def rewordings(data: Path, directory: Path = REWORDINGS) -> Trial:
    """Other people's questions stored, each by itself; asked are a rewording and a near miss.

    They are the tenth that was held out of training.
    """
    kept = [each for each in read_rewordings(directory, _people(data).texts) if each.held_out]
    if not kept:
        raise MissingDataError(f"{directory} has no held-out rewording of a question in {data}")
    stored, asked = [], []
    for realm, each in enumerate(kept):
        stored.append(Request(each.question, "its", "seed", realm))
        asked.append(Request(each.same, "its", "rewording", realm))
        asked.append(Request(each.miss, None, "near miss", realm))
    return Trial("rewordings", tuple(stored), tuple(asked))


def groups(name: str) -> list[Group]:
    """Return the groups of a file that was set aside for evaluation."""
    blocks = (HELD_OUT / f"{name}.txt").read_text(encoding="utf-8").strip().split("\n\n")
    return [
        Group(
            seed,
            tuple(line[2:] for line in lines if line.startswith("= ")),
            tuple(line[2:] for line in lines if line.startswith("! ")),
        )
        for seed, *lines in (block.splitlines() for block in blocks)
    ]


TRIALS: Mapping[str, Callable[[Path], Trial]] = {
    "checklist": checklist,
    "gsm_plus": gsm_plus,
    "canard": canard,
    "clinc150": clinc150,
    "banking77": banking77,
    "qqp": qqp,
    "people": people,
    "rewordings": rewordings,
    "verbs": verbs,
    "lookalikes": lambda _: lookalikes("lookalikes", HELD_OUT / "lookalikes.txt"),
    "lookalikes_held_out": lambda _: lookalikes(
        "lookalikes_held_out", HELD_OUT / "lookalikes_held_out.txt"
    ),
}


def _intents(
    name: str, rows: list[tuple[int, dict[str, Any]]], *, stored: int, asked: int
) -> Trial:
    """Draw which are stored and which are asked."""
    drawn = random.Random(SEED).sample(rows, stored + asked)
    requests = [Request(row["text"], row["intent"], row["intent"], row=n) for n, row in drawn]
    return Trial(name, tuple(requests[:stored]), tuple(requests[stored:]))


def _people(data: Path) -> People:
    try:
        return read_people(data / "train")
    except PeopleError as error:
        raise MissingDataError(f"{error} (--data or REFRAIN_DATA)") from error


def _turns(row: dict[str, Any]) -> tuple[Message, ...]:
    """Return a dialogue's title and section as the system message, then its turns."""
    title, section, *turns = row["history"]
    told = ("user", "assistant")
    return (
        ("system", f"{title}\n{section}"),
        *((told[place % 2], turn) for place, turn in enumerate(turns)),
    )


def _rows(data: Path, name: str) -> list[dict[str, Any]]:
    try:
        with (data / name).open(encoding="utf-8") as lines:
            return [json.loads(line) for line in lines]
    except FileNotFoundError:
        raise MissingDataError(f"{data / name} is not there (--data or REFRAIN_DATA)") from None
