"""What encoder and verifier are good for in other languages, and what eligibility keeps from them.

    python benchmarks/languages.py [--verifier DIRECTORY] [--threshold SCORE] [--slips N]

The groups were written for evaluation and set aside before training. A pair is a question and its
group's own. `--slips` prints questions of other languages that are looked up by meaning. Ends with
one line of JSON.
"""

import argparse
import asyncio
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from quality.kept import Kept, default_directory
from quality.models import vectors_of
from quality.outcomes import Outcome, Share, Try, grouped
from quality.sets import groups
from quality.systems import WHOLE, System, guards_in, system
from quality.table import cell
from quality.trial import Request

from embeddings.encoder.encoder import Vector
from embeddings.encoder.model_files import VERIFIER_DIRECTORY, ModelError
from embeddings.verify.calibration import CalibrationError
from gateway.semantic.eligibility import ineligible, is_english
from gateway.semantic.ports import Verification
from policies.format.settings import DEFAULT_MIN_SIMILARITY

LANGUAGES = {
    "en": "support_verbs",
    **{name: name for name in ("de", "fr", "es", "it", "pt", "nl")},
}
COLUMNS = (
    "other language",
    "looked up",
    "found",
    "accepted, no guards",
    "accepted",
    "wrong, no guards",
    "wrong",
    "wrong if looked up",
)


@dataclass(frozen=True, slots=True)
class Language:
    """Figures by column, and the questions that are looked up by meaning."""

    figures: dict[str, Share]
    looked_up: list[str]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--verifier", type=Path, default=VERIFIER_DIRECTORY, help="its weights")
    parser.add_argument("--threshold", type=float, help="in place of the default budget's")
    parser.add_argument("--cache", type=Path, default=default_directory(), help="kept scores")
    parser.add_argument("--slips", type=int, default=0, metavar="N", help="print so many of each")
    options = parser.parse_args()
    with Kept(options.cache) as kept:
        try:
            whole = system(WHOLE, options.verifier, kept, options.cache, options.threshold)
        except (ModelError, CalibrationError) as error:
            parser.error(str(error))
        if whole.threshold() is None:
            parser.error("no score keeps the default budget; give a --threshold")
        found = asyncio.run(all_languages(whole, kept))
    print(f"{'':4}{'questions':>10}", *(f"{name:>22}" for name in COLUMNS), sep="")
    for name, language in found.items():
        questions = language.figures["looked up"].whole
        shares = (language.figures[column] for column in COLUMNS)
        cells = (f"{cell(each) if each.whole else 'none looked up':>22}" for each in shares)
        print(f"{name:4}{questions:>10}", *cells, sep="")
    for name, language in found.items():
        if name != "en" and options.slips:
            print(
                "", f"{name}: looked up by meaning", *language.looked_up[: options.slips], sep="\n"
            )
    counts = {
        name: {column: [share.part, share.whole] for column, share in language.figures.items()}
        for name, language in found.items()
    }
    print(json.dumps({"benchmark": "languages", "languages": counts}))


async def all_languages(whole: System, kept: Kept) -> dict[str, Language]:
    return {name: await measure(file, whole, kept) for name, file in LANGUAGES.items()}


async def measure(file: str, whole: System, kept: Kept) -> Language:
    """Return the figures of one language, from its file of groups."""
    listed = groups(file)
    texts = [text for group in listed for text in (group.seed, *group.rewordings, *group.misses)]
    vectors = vectors_of(texts, kept)
    pairs = [
        pair(text, group.seed, kind, vectors)
        for group in listed
        for kind, asked in (("same", group.rewordings), ("other", group.misses))
        for text in asked
    ]
    judged = await whole.judged(pairs, label=file, refused_too=True)
    kinds, threshold, every = grouped(judged), whole.threshold(), guards_in(judged)

    def accepted(kind: str, without: Iterable[str] = ()) -> Share:
        return Share.of(each.at(threshold, without=set(without)).hit for each in kinds[kind])

    seeds = [group.seed for group in listed]
    looked_up = [text for text in texts if ineligible(text) is None]
    met, seed_of = set(looked_up), {text: each.seed for each in listed for text in each.misses}
    served = [
        each.at(threshold).hit
        for each in kinds["other"]
        if {each.request.text, seed_of[each.request.text]} <= met
    ]
    figures = {
        "other language": Share.of(not is_english(text) for text in texts),
        "looked up": Share(len(looked_up), len(texts)),
        "found": Share.of(
            nearest(text, seeds, vectors) == group.seed
            for group in listed
            for text in group.rewordings
        ),
        "accepted, no guards": accepted("same", every),
        "accepted": accepted("same"),
        "wrong, no guards": accepted("other", every),
        "wrong": accepted("other"),
        "wrong if looked up": Share.of(served),
    }
    return Language(figures, looked_up)


def pair(text: str, seed: str, kind: str, vectors: Mapping[str, Vector]) -> Outcome:
    """Return a question with its group's own as the candidate, where that is near enough."""
    similarity = cosine(text, seed, vectors)
    near = similarity >= DEFAULT_MIN_SIMILARITY
    tries = (Try(seed, seed, similarity, Verification(0.0)),) if near else ()
    return Outcome(Request(text, seed if kind == "same" else None, kind), None, "miss", tries)


def nearest(text: str, seeds: Sequence[str], vectors: Mapping[str, Vector]) -> str | None:
    """Return the seed that the gateway would try first, None where none is near enough."""
    best = max(seeds, key=lambda seed: cosine(text, seed, vectors))
    return best if cosine(text, best, vectors) >= DEFAULT_MIN_SIMILARITY else None


def cosine(one: str, other: str, vectors: Mapping[str, Vector]) -> float:
    """Return the cosine of two texts, 0 where one has no vector."""
    known = one in vectors and other in vectors
    return float(vectors[one] @ vectors[other]) if known else 0.0


if __name__ == "__main__":
    main()
