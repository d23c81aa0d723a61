"""Precision against hit rate as the threshold loosens, as an SVG that a browser shows. Pure.

One panel a trial: along the share of requests answered by meaning, how many of these answers were
right. Bands are the 95 % intervals.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from svg import FONT, GRID, INK, MUTED, line, text

from policies.format.settings import DEFAULT_MAX_WRONG_HITS
from quality.curves import Point, by_meaning, point, sweep, thinned
from quality.measuring import COSINES, Measured

_WIDTH, _PANEL, _PLOT_WIDTH, _PLOT_HEIGHT = 960, 480, 372, 190
_LEFT, _TOP, _STEP = 84, 164, 310
_COSINE, _WHOLE = "#98a0ad", "#1d5fd1"
_TICKS = 4
_BUDGET = f"budget {100 * DEFAULT_MAX_WRONG_HITS:g} %"
_POINTS = 48
_FEWEST = 20
"""Hits below which a share of them says nothing."""
_SUBTITLE = "against the share of requests answered by meaning, as the threshold loosens"


DRAWN = {
    "checklist": ("CheckList", "minimal pairs: negation, numbers, names, roles, order"),
    "gsm_plus": ("GSM-Plus", "variants of stored maths problems"),
    "clinc150": ("CLINC150", "2,000 commands of 150 intents, 6,000 others stored"),
    "banking77": ("BANKING77", "2,000 support questions of 77 intents, 5,000 others stored"),
}


@dataclass(frozen=True, slots=True)
class Panel:
    """`marked` are points of a curve with what is written at them."""

    title: str
    asked: str
    cosine: Sequence[Point]
    whole: Sequence[Point]
    cosine_marked: Mapping[str, Point]
    whole_marked: Mapping[str, Point]


@dataclass(frozen=True, slots=True)
class _Axes:
    left: float
    top: float
    widest: float
    least: float

    def x(self, share: float) -> float:
        return self.left + _PLOT_WIDTH * min(1.0, share / self.widest)

    def y(self, share: float) -> float:
        height = (max(share, self.least) - self.least) / (1 - self.least)
        return self.top + _PLOT_HEIGHT * (1 - height)


def panel(measured: Measured, system: str, threshold: float | None) -> Panel:
    """Return the curves of plain cosine and of a system, with the latter's default marked."""
    title, asked = DRAWN[measured.name]
    looked_up = measured.judged[system]
    cosine, whole = by_meaning(measured.nearest, looked_up), by_meaning(looked_up)
    return Panel(
        title,
        asked,
        thinned(sweep(cosine), _POINTS),
        thinned(sweep(whole), _POINTS),
        {f"{at:.2f}": point(cosine, at) for at in COSINES},
        {} if threshold is None else {_BUDGET: point(whole, threshold)},
    )


def drawn(panels: Sequence[Panel]) -> str:
    """Return the picture."""
    height = _TOP + _STEP * math.ceil(len(panels) / 2) - 50
    inside = [
        *_heading(),
        *(line for place, each in enumerate(panels) for line in _panel(place, each)),
    ]
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="{FONT}" font-size="12" role="img" '
        'aria-label="Right answers among semantic hits against the share of requests hit">'
    )
    sheet = f'<rect width="{_WIDTH}" height="{height}" rx="6" fill="#ffffff"/>'
    return "\n".join((head, sheet, *inside, "</svg>\n"))


def _heading() -> Iterator[str]:
    yield text(_LEFT, 42, "Right answers among semantic hits", size=20, weight=600)
    yield text(
        _LEFT,
        64,
        _SUBTITLE,
        fill=MUTED,
        size=13,
    )
    for x, colour, name in (
        (_LEFT, _WHOLE, "Refrain"),
        (_LEFT + 96, _COSINE, "plain cosine, with its thresholds"),
    ):
        yield f'<line x1="{x}" y1="86" x2="{x + 22}" y2="86" stroke="{colour}" stroke-width="3"/>'
        yield text(x + 29, 90, name)


def _panel(place: int, panel: Panel) -> Iterator[str]:
    points = [*panel.cosine, *panel.whole]
    widest = _nice(max((each.hits.value or 0 for each in points), default=0.0) or 1.0)
    axes = _Axes(_LEFT + _PANEL * (place % 2), _TOP + _STEP * (place // 2), widest, _least(points))
    yield text(axes.left, axes.top - 42, panel.title, size=14, weight=600)
    yield text(axes.left, axes.top - 25, panel.asked, fill=MUTED)
    yield from _grid(axes)
    for curve, colour in ((panel.cosine, _COSINE), (panel.whole, _WHOLE)):
        yield from _curve(axes, curve, colour)
    yield from _marks(axes, panel.cosine_marked, _COSINE, below=True)
    yield from _marks(axes, panel.whole_marked, _WHOLE, below=False)


def _least(points: Sequence[Point]) -> float:
    """Return where the axis begins: below what the curves come to once they have some hits."""
    values = [each.right.value or 0.0 for each in points if each.hits.part >= _FEWEST]
    lowest = min(values, default=0.0)
    for step in (0.95, 0.9, 0.8, 0.5):
        if lowest >= step + 0.004:
            return step
    return 0.0


def _nice(widest: float) -> float:
    return next((step for step in (0.1, 0.2, 0.4, 0.6, 0.8) if widest <= step), 1.0)


def _grid(axes: _Axes) -> Iterator[str]:
    right, bottom = axes.left + _PLOT_WIDTH, axes.top + _PLOT_HEIGHT
    for step in range(_TICKS + 1):
        share = axes.least + (1 - axes.least) * step / _TICKS
        y = axes.y(share)
        yield line(axes.left, y, right, y, GRID)
        yield text(axes.left - 8, y + 4, _percent(share), fill=MUTED, anchor="end")
        share = axes.widest * step / _TICKS
        x = axes.x(share)
        yield line(x, bottom, x, bottom + 4, MUTED)
        yield text(x, bottom + 18, _percent(share), fill=MUTED, anchor="middle")
    yield line(axes.left, bottom, right, bottom, MUTED)
    yield text(
        right, bottom + 34, "requests answered by meaning", fill=MUTED, anchor="end", size=11
    )
    turned = f"rotate(-90 {axes.left - 56:.1f} {axes.top:.1f})"
    told = text(axes.left - 56, axes.top, "right among them", fill=MUTED, anchor="end", size=11)
    yield f'<g transform="{turned}">{told}</g>'


def _curve(axes: _Axes, points: Sequence[Point], colour: str) -> Iterator[str]:
    shown = [each for each in points if each.hits.part >= _FEWEST]
    if not shown:
        return
    upper = [(axes.x(each.hits.value or 0), axes.y(each.right.interval[1])) for each in shown]
    lower = [(axes.x(each.hits.value or 0), axes.y(each.right.interval[0])) for each in shown]
    band = " ".join(f"{x:.1f},{y:.1f}" for x, y in (*upper, *reversed(lower)))
    line = " ".join(
        f"{axes.x(each.hits.value or 0):.1f},{axes.y(each.right.value or 0):.1f}" for each in shown
    )
    yield f'<polygon points="{band}" fill="{colour}" fill-opacity="0.13"/>'
    yield (
        f'<polyline points="{line}" fill="none" stroke="{colour}" stroke-width="2.5" '
        'stroke-linejoin="round"/>'
    )


def _marks(axes: _Axes, marked: Mapping[str, Point], colour: str, *, below: bool) -> Iterator[str]:
    for name, at in marked.items():
        if not at.hits.part:
            continue
        x, y = axes.x(at.hits.value or 0), axes.y(at.right.value or 0)
        yield (
            f'<circle cx="{x:.1f}" cy="{y:.1f}" r="4.5" fill="{colour}" stroke="#ffffff" '
            'stroke-width="1.5"/>'
        )
        yield text(x, y + (19 if below else -9), name, fill=INK, anchor="middle", size=11)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}".removesuffix(".0") + " %"
