"""Quality of semantic hits: plain cosine, as most caches serve them, beside cosine and agreement.

    python benchmarks/semantic_quality.py

Reads CheckList, GSM-Plus and a fixed sample of Quora question pairs from $REFRAIN_DATA (default
../shared/data beside the checkout), runs the encoder and the check that the gateway runs, prints a
table and ends with one line of JSON. Nothing is tuned on these sets.
"""

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from embeddings.encoder import EncoderSettings, Vector, load_encoder
from embeddings.messages import Reason
from embeddings.model_files import DEFAULT_MODEL
from embeddings.verify.agreement import agree

DATA = Path(os.environ.get("REFRAIN_DATA", Path(__file__).parents[1].parent / "shared" / "data"))
FILES = ("checklist_pairs.jsonl", "gsm_plus.jsonl", "qqp_pairs.jsonl")
QQP_EVERY = 5
BATCH = 128
PLAIN = (0.85, 0.90, 0.95)
AGREED = (0.85, 0.90, 0.92, 0.95)


@dataclass(frozen=True, slots=True)
class Pair:
    """`asked` was asked while `stored` is stored; `same`: its answer is right for both."""

    asked: str
    stored: str
    same: bool
    group: str

    @property
    def reworded(self) -> bool:
        return self.same and self.asked.strip() != self.stored.strip()


@dataclass(frozen=True, slots=True)
class Scored:
    """A pair with its cosine similarity and the objection of the agreement check."""

    pair: Pair
    similarity: float
    objection: str | None


def main() -> int:
    missing = [name for name in FILES if not (DATA / name).is_file()]
    if missing:
        print(f"skipped: {', '.join(missing)} not found in {DATA} (set REFRAIN_DATA)")
        return 0
    sets = {"checklist": checklist(), "gsm_plus": gsm_plus(), "qqp": qqp()}
    vectors = encoded(
        {text for pairs in sets.values() for p in pairs for text in (p.asked, p.stored)}
    )
    started = time.perf_counter()
    scored = {name: [score(pair, vectors) for pair in pairs] for name, pairs in sets.items()}
    count = sum(map(len, sets.values()))
    per_pair = (time.perf_counter() - started) / count * 1e6

    rules: list[tuple[str, Callable[[Scored], bool]]] = [
        *((f"cosine {t:.2f}", lambda s, t=t: s.similarity >= t) for t in PLAIN),
        *(
            (
                f"cosine {t:.2f} + agreement",
                lambda s, t=t: s.similarity >= t and s.objection is None,
            )
            for t in AGREED
        ),
    ]
    print(f"{'':24}  CheckList                 GSM-Plus                     QQP sample")
    print(f"{'':24}    false   recall  reworded     wrong    hits  rephrased    precision  recall")
    print(f"{'':24}  accepts              recall   of hits              hit")
    results = {}
    for name, accepts in rules:
        row = measure(scored, accepts)
        results[name] = row
        print(f"{name:24}  {line(row)}")
    print(f"pairs: {', '.join(f'{name} {len(pairs)}' for name, pairs in sets.items())}")
    print(f"agreement check: {per_pair:.0f} us a pair")
    print(
        json.dumps({"benchmark": "semantic_quality", "us_per_pair": round(per_pair, 1), **results})
    )
    return 0


def line(row: dict[str, float | None]) -> str:
    def shown(name: str, form: str, width: int) -> str:
        value = row[name]
        return f"{'-' if value is None else format(value, form):>{width}}"

    return "".join(
        (
            shown("checklist_false_accepts", ".1%", 7),
            shown("checklist_recall", ".1%", 9),
            shown("checklist_reworded_recall", ".1%", 10),
            shown("gsm_wrong_of_hits", ".1%", 10),
            shown("gsm_hits", ".0f", 8),
            shown("gsm_rephrased_hit", ".1%", 11),
            shown("qqp_precision", ".3f", 13),
            shown("qqp_recall", ".3f", 8),
        )
    )


def checklist() -> list[Pair]:
    return [
        Pair(row["a"], row["b"], row["label"] == 1, row["test"])
        for row in rows("checklist_pairs.jsonl")
    ]


def gsm_plus() -> list[Pair]:
    return [
        Pair(
            row["question"],
            row["seed_question"],
            row["answer"] == row["seed_answer"],
            row["perturbation_type"],
        )
        for row in rows("gsm_plus.jsonl")
    ]


def qqp() -> list[Pair]:
    sample = rows("qqp_pairs.jsonl")[::QQP_EVERY]
    return [Pair(row["a"], row["b"], row["label"] == 1, "") for row in sample]


def rows(name: str) -> list[dict[str, str | int]]:
    with (DATA / name).open(encoding="utf-8") as file:
        return [json.loads(line) for line in file]


def encoded(texts: set[str]) -> dict[str, Vector]:
    """Return the vectors of the texts that have one; a text without one is never a hit."""
    encoder = load_encoder(EncoderSettings(DEFAULT_MODEL, "auto", threads=1))
    by_length = sorted(texts, key=lambda text: (len(text), text))
    vectors: dict[str, Vector] = {}
    for start in range(0, len(by_length), BATCH):
        batch = by_length[start : start + BATCH]
        results = zip(batch, encoder.encode(batch), strict=True)
        vectors |= {text: vector for text, vector in results if not isinstance(vector, Reason)}
    return vectors


def score(pair: Pair, vectors: dict[str, Vector]) -> Scored:
    asked, stored = vectors.get(pair.asked), vectors.get(pair.stored)
    similarity = -1.0 if asked is None or stored is None else float(asked @ stored)
    return Scored(pair, similarity, agree(pair.asked, pair.stored))


def measure(
    scored: dict[str, list[Scored]], accepts: Callable[[Scored], bool]
) -> dict[str, float | None]:
    check, gsm, quora = scored["checklist"], scored["gsm_plus"], scored["qqp"]
    gsm_hits = [x for x in gsm if accepts(x)]
    rephrased = [x for x in gsm if x.pair.group == "problem understanding"]
    quora_hits = [x for x in quora if accepts(x)]
    return {
        "checklist_false_accepts": share([x for x in check if not x.pair.same], accepts),
        "checklist_recall": share([x for x in check if x.pair.same], accepts),
        # Identical texts are no paraphrases: an exact cache has them already.
        "checklist_reworded_recall": share([x for x in check if x.pair.reworded], accepts),
        "gsm_hits": len(gsm_hits),
        "gsm_wrong_of_hits": share(gsm_hits, lambda x: not x.pair.same),
        "gsm_rephrased_hit": share(rephrased, accepts),
        "qqp_precision": share(quora_hits, lambda x: x.pair.same),
        "qqp_recall": share([x for x in quora if x.pair.same], accepts),
    }


def share(items: Sequence[Scored], holds: Callable[[Scored], bool]) -> float | None:
    """Return the share of items for which `holds`; None when there are none."""
    return round(sum(map(holds, items)) / len(items), 4) if items else None


if __name__ == "__main__":
    sys.exit(main())
