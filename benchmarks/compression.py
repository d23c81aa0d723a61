"""Compression of declared context: tokens saved, and evidence and answers that are still there.

Distractor sets from the evaluation data, read in place, from the part of it that no setting was
chosen on (``--part tuned`` is the other one), over several seeds: a question, documents with the
evidence, others. What is declined is sent whole, counts as kept, and its share is told. Beside the
gateway's plan two floors keep as many characters of the same passages: chosen at random, and by
plain cosine similarity. Key-value retrieval is synthetic: every value of a table must still be
there. Figures of a set without its file are left out.
"""

import argparse
import json
import os
import random
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np
import orjson
from compressing.cases import PARTS, SETS, Case, Data, key_values

from embeddings.encoder.encoder import EncoderSettings, Vector, load_encoder
from embeddings.encoder.model_files import DEFAULT_MODEL
from embeddings.messages import Reason
from gateway.prompts.compress.compress import begin
from gateway.prompts.compress.passages import passages_of
from gateway.prompts.compress.relevance import readable
from gateway.prompts.outcome import NotRewrittenError
from gateway.protocol.tokens import BYTES_A_TOKEN
from policies.decision import CompressSettings, DocumentSettings, Endpoint

DATA = Path(os.environ.get("REFRAIN_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
AIM = 0.98
DECLINED = 0.95
"""Share of the characters that are left, from which on nothing was gained."""
BEGIN, END = "<document>", "</document>"


@dataclass(frozen=True, slots=True)
class Kept:
    """What one way left of one case."""

    came: int
    now: int
    evidence: bool
    answers: bool
    declined: bool


class Encoder:
    """The encoder that the embeddings process runs; each text is encoded once."""

    def __init__(self) -> None:
        self._encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "auto", threads=1))
        self._known: dict[str, Vector] = {}

    def vectors(self, texts: Sequence[str]) -> list[Vector]:
        """Return the vector of each text."""
        missing = sorted(set(texts) - self._known.keys(), key=len)
        for start in range(0, len(missing), 32):
            batch = missing[start : start + 32]
            for text, vector in zip(batch, self._encoder.encode(batch), strict=True):
                if isinstance(vector, Reason):
                    raise SystemExit(f"no vector: {vector}")
                self._known[text] = vector
        return [self._known[text] for text in texts]


def main() -> int:
    """Run; print a table and one line of JSON."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=10, help="a seed (default %(default)s)")
    parser.add_argument("--seeds", type=int, default=10, help="(default %(default)s)")
    parser.add_argument("--part", choices=PARTS, default=PARTS[1], help="(default %(default)s)")
    parser.add_argument("--sets", default="", help="names of sets that begin so; all by default")
    parser.add_argument("--keep", type=float, default=0.5, help="share (default %(default)s)")
    options = parser.parse_args()
    if not DATA.is_dir():
        print(f"skipped: no evaluation data in {DATA} (REFRAIN_DATA says where it is)")
        return 0
    settings = CompressSettings(
        enabled=True, documents=DocumentSettings(BEGIN, END), keep=options.keep
    )
    encoder = Encoder()
    data = Data(DATA, options.part)
    figures: dict[str, dict[str, dict[str, float]]] = {}
    print(
        f"{'set':<20}{'way':<15}{'times fewer':>12}{'with declined':>14}{'declined':>9}"
        f"{'evidence':>9}{'worst seed':>11}{'answers':>8}{'cases':>6}"
    )
    for name, build in SETS.items():
        if not name.startswith(options.sets):
            continue
        try:
            seeds = [
                list(islice(build(data, random.Random(f"{seed} {name}")), options.cases))
                for seed in range(options.seeds)
            ]
        except FileNotFoundError as error:
            print(f"{name:<20}skipped: no {error.filename}")
            continue
        figures[name] = _measured(name, seeds, settings, encoder)
    cases = list(key_values(random.Random(options.seeds)))
    harmless = [_kept(case, _plan(case, settings, encoder)) for case in cases]
    figures["key-value"] = {
        "plan": _row("key-value", "plan", [harmless]),
        "floor: cosine": _row(
            "key-value", "floor: cosine", [_halved(cases, options.keep, encoder)]
        ),
    }
    figures["cost"] = {"plan": _cost(cases, settings, encoder)}
    told = {"benchmark": "compression", "keep": options.keep, "part": options.part}
    print(json.dumps({**told, "seeds": options.seeds, "figures": figures}))
    return 0


def _measured(
    name: str, seeds: Sequence[Sequence[Case]], settings: CompressSettings, encoder: Encoder
) -> dict[str, dict[str, float]]:
    chance = random.Random(name)
    ways: dict[str, list[list[Kept]]] = {"plan": [], "floor: cosine": [], "floor: random": []}
    for cases in seeds:
        for kept in ways.values():
            kept.append([])
        for case in cases:
            documents = _plan(case, settings, encoder)
            room = sum(map(len, documents))
            ways["plan"][-1].append(_kept(case, documents))
            passages = _passages(case)
            asked, *given = encoder.vectors(
                [readable(text) for text in (case.question, *(text for _, text in passages))]
            )
            near = sorted(range(len(passages)), key=lambda i: -float(np.dot(asked, given[i])))
            ways["floor: cosine"][-1].append(_kept(case, _within(case, passages, near, room)))
            any_order = chance.sample(range(len(passages)), len(passages))
            ways["floor: random"][-1].append(_kept(case, _within(case, passages, any_order, room)))
    return {way: _row(name, way, kept) for way, kept in ways.items()}


def _halved(cases: Sequence[Case], keep: float, encoder: Encoder) -> list[Kept]:
    """Keep the lines nearest to the question, which a table's other keys do not outlive."""
    found = []
    for case in cases:
        lines = [(0, line + "\n") for line in case.documents[0].splitlines()]
        asked, *given = encoder.vectors(
            [readable(t) for t in (case.question, *(x for _, x in lines))]
        )
        near = sorted(range(len(lines)), key=lambda i: -float(np.dot(asked, given[i])))
        room = int(keep * len(case.documents[0]))
        found.append(_kept(case, _within(case, lines, near, room)))
    return found


def _plan(case: Case, settings: CompressSettings, encoder: Encoder) -> list[str]:
    context = "\n".join(f"{BEGIN}{text}{END}" for text in case.documents)
    body = {"messages": [{"role": "user", "content": f"{context}\n\n{case.question}"}]}
    begun = begin(Endpoint.CHAT, body, orjson.dumps(body), settings)
    if begun is None:
        return list(case.documents)
    try:
        sent = begun.next([vector.tolist() for vector in encoder.vectors(begun.texts)])
    except NotRewrittenError:
        return list(case.documents)
    text = sent.body["messages"][0]["content"]
    return [piece.split(END)[0] for piece in text.split(BEGIN)[1:]]


def _passages(case: Case) -> list[tuple[int, str]]:
    return [
        (index, passage.text)
        for index, text in enumerate(case.documents)
        for passage in passages_of(text, minify=False)
    ]


def _within(
    case: Case, passages: Sequence[tuple[int, str]], order: Sequence[int], room: int
) -> list[str]:
    """Return the documents with only so many passages, the first ones of ``order``, as fit."""
    chosen = set[int]()
    for index in order:
        size = len(passages[index][1])
        if size <= room or not chosen:
            chosen.add(index)
            room -= size
    return [
        "".join(text for i, (of, text) in enumerate(passages) if of == index and i in chosen)
        for index in range(len(case.documents))
    ]


def _kept(case: Case, documents: Sequence[str]) -> Kept:
    now = " ".join(" ".join(documents).split())
    came, left = (sum(len(text.encode()) for text in of) for of in (case.documents, documents))
    return Kept(
        came,
        max(1, left),
        all(" ".join(text.split()) in now for text in case.evidence),
        all(" ".join(answer.split()) in now for answer in case.answers),
        declined=left > DECLINED * came,
    )


def _row(name: str, way: str, seeds: Sequence[Sequence[Kept]]) -> dict[str, float]:
    """Print what one way kept; evidence and answers of all, tokens of what was compressed, too."""
    kept = [each for seed in seeds for each in seed]
    shorter = [each for each in kept if not each.declined]
    fewer, with_declined = (
        sum(each.came for each in of) / max(1, sum(each.now for each in of))
        for of in (shorter, kept)
    )
    evidence = statistics.mean(each.evidence for each in kept)
    worst = min(statistics.mean(each.evidence for each in seed) for seed in seeds)
    answers = statistics.mean(each.answers for each in kept)
    declined = 1 - len(shorter) / len(kept)
    missed = way == "plan" and min(evidence, answers) < AIM
    note = f"  below the aim of {AIM:.0%}" if missed else ""
    print(
        f"{name:<20}{way:<15}{fewer:>11.2f}x{with_declined:>13.2f}x{declined:>9.0%}"
        f"{evidence:>9.1%}{worst:>11.1%}{answers:>8.1%}{len(kept):>6}{note}",
        flush=True,
    )
    return {
        "times_fewer": round(fewer, 3),
        "with_declined": round(with_declined, 3),
        "declined": round(declined, 3),
        "evidence": round(evidence, 4),
        "worst_seed": round(worst, 4),
        "answers": round(answers, 4),
    }


def _cost(cases: Sequence[Case], settings: CompressSettings, encoder: Encoder) -> dict[str, float]:
    """Time the plan without the encoder, whose vectors are known by now."""
    seconds = sorted(_timed(case, settings, encoder) for case in cases for _ in range(5))
    size = statistics.mean(sum(map(len, case.documents)) for case in cases)
    middle = seconds[len(seconds) // 2]
    tokens = size / BYTES_A_TOKEN
    print(f"without the encoder: {middle * 1000:.2f} ms p50 for {tokens:,.0f} tokens of context")
    return {"p50_ms": round(middle * 1000, 3), "tokens": round(tokens)}


def _timed(case: Case, settings: CompressSettings, encoder: Encoder) -> float:
    started = time.perf_counter()
    _plan(case, settings, encoder)
    return time.perf_counter() - started


if __name__ == "__main__":
    sys.exit(main())
