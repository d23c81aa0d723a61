"""``python -m tools.verifier.templates --show`` prints a few pairs of each family."""

import argparse
from collections import defaultdict
from random import Random

from tools.verifier.templates.generation import Pair, families, generate


def main() -> None:
    """Print pairs: ``=`` for the same question, ``!`` for another."""
    parser = argparse.ArgumentParser(prog="python -m tools.verifier.templates")
    parser.add_argument("--show", type=int, nargs="?", const=5, default=5, help="pairs a family")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", action="append", choices=families())
    options = parser.parse_args()
    of: dict[str, list[Pair]] = defaultdict(list)
    for pair in generate(Random(options.seed), options.show * len(families())):
        of[pair.family].append(pair)
    for family in options.family or families():
        print(f"\n{family}")
        for pair in of[family]:
            print(f"  {'=' if pair.same else '!'} {pair.a}\n    {pair.b}")


if __name__ == "__main__":
    main()
