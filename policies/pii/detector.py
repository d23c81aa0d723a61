"""The record of a detector: what finds one kind of personal data, and what surely holds none."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

Find = Callable[[str], Iterator[tuple[int, int]]]
"""Finds one kind in text: (start, end) of each finding; they may overlap."""


@dataclass(frozen=True, slots=True)
class Detector:
    """All that the scan knows of one kind. Signs are patterns of RE2, for text in normal form.

    ``find`` and ``form`` take the regions whose national phone numbers count. A text without any of
    the ``signs`` and ``sign_apart`` holds nothing of this kind. One search has the signs of all
    kinds; a sign apart has its own, since one pattern of all would make RE2 slow. One more search
    has all ``rare`` signs: without one, a text holds nothing of the kinds that have some.
    ``form`` yields the canonical forms of what a finding may be. None: allow lists have patterns.
    """

    kind: str
    find: Callable[[Sequence[str]], Find]
    signs: tuple[str, ...]
    form: Callable[[str, Sequence[str]], Iterable[str]] | None
    rare: tuple[str, ...] = ()
    sign_apart: str | None = None

    def __post_init__(self) -> None:
        if not self.signs:
            raise ValueError(f"without a sign, no text would reach the detector of {self.kind}")
