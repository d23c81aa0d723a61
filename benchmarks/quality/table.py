"""The figures as text. Pure."""

from collections.abc import Mapping, Sequence

from quality.intervals import Share
from quality.kept_budget import Promise
from quality.outcomes import Outcome, grouped, hits, wrong_among_hits
from quality.rows import Row

_LABEL, _CELL, _GOAL = 36, 22, 14


def cell(share: Share) -> str:
    """Return `12.3% (11.8-12.9)`, or what stands for no share at all."""
    if share.value is None:
        return "no hits"
    low, high = share.interval
    return f"{share.value:.1%} ({100 * low:.1f}-{100 * high:.1f})"


def table(figures: Mapping[Row, Mapping[str, Share]], judged: str) -> list[str]:
    """Return the lines of the table; `judged` is the system whose figures have a goal."""
    systems = list(dict.fromkeys(name for row in figures.values() for name in row))
    lines = [
        "".join((" " * _LABEL, *(f"{name:>{_CELL}}" for name in systems), f"{'goal':>{_GOAL}}"))
    ]
    for row, shares in figures.items():
        cells = "".join(
            f"{cell(shares[name]) if name in shares else '':>{_CELL}}" for name in systems
        )
        met = row.met(shares[judged]) if judged in shares else None
        mark = {None: "", True: " met", False: " MISSED"}[met]
        lines.append(f"{row.name:{_LABEL}}{cells}{row.goal:>{_GOAL}}{mark}")
    return lines


def markdown(figures: Mapping[Row, Mapping[str, Share]]) -> list[str]:
    """Return the table for a document."""
    systems = list(dict.fromkeys(name for row in figures.values() for name in row))
    lines = [f"| | {' | '.join(systems)} | goal |", "|" + "---|" * (len(systems) + 2)]
    for row, shares in figures.items():
        cells = [cell(shares[name]) if name in shares else "" for name in systems]
        lines.append(f"| {' | '.join((row.name.strip(), *cells, row.goal))} |")
    return lines


def breakdown(outcomes: Mapping[str, Sequence[Outcome]], *, most: str | None = None) -> list[str]:
    """Return hits and wrong ones among them for each group and system."""
    systems = list(outcomes)
    lines = [
        "".join((f"{'hits, wrong among them':{_LABEL + 30}}", *(f"{name:>16}" for name in systems)))
    ]
    by_system = {name: grouped(outcomes[name], most=most) for name in systems}
    for group in sorted(by_system[systems[0]]):
        cells = []
        for name in systems:
            found = by_system[name][group]
            wrong = wrong_among_hits(found)
            cells.append(f"{hits(found).part:>9},{wrong.part:>6}")
        count = len(by_system[systems[0]][group])
        lines.append(f"{group[: _LABEL + 20]:{_LABEL + 22}}{count:>8}" + "".join(cells))
    return lines


def promised(promises: Sequence[Promise]) -> list[str]:
    """Return a line for each budget."""
    broken = "broken in (5 % at most)"
    lines = [f"{'budget':>8}{broken:>26}{'no threshold':>14}{'wrong':>9}{'hit rate':>10}"]
    for each in promises:
        wrong = "-" if each.wrong is None else f"{each.wrong:.2%}"
        rate = "-" if each.hit_rate is None else f"{each.hit_rate:.1%}"
        none = f"{each.none} draws"
        lines.append(f"{each.budget:>8.1%}{cell(each.broken):>26}{none:>14}{wrong:>9}{rate:>10}")
    return lines


def as_json(figures: Mapping[Row, Mapping[str, Share]]) -> dict[str, dict[str, list[float | None]]]:
    """Return by row and system: part, whole, share, both ends of the interval."""
    return {
        row.name.strip(): {
            name: [
                share.part,
                share.whole,
                *(
                    None if each is None else round(each, 5)
                    for each in (share.value, *share.interval)
                ),
            ]
            for name, share in shares.items()
        }
        for row, shares in figures.items()
    }
