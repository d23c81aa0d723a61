"""What a network learns from: two questions, and how surely one answer fits both."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Labelled:
    """A pair to learn.

    `target` is 0 or 1, or a probability; `part` names the part of the mixture, for reports;
    `weight` is that of its loss.
    """

    a: str
    b: str
    target: float
    part: str = "groups"
    weight: float = 1.0
