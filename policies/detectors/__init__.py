"""Detectors of structured personal data and secrets, one file a kind.

Each reads text in normal form (``normal.normalise``), is asked only when the text holds the digits
that it needs (``digits.digits_in``), and validates what its patterns propose: checksums, issued
ranges, context. Patterns take linear time: they run on RE2, or leave nothing to backtrack into.
"""

from collections.abc import Iterator, Sequence
from typing import Protocol

from policies.detectors.card import CardDetector
from policies.detectors.digits import Digits
from policies.detectors.email import EmailDetector
from policies.detectors.iban import IbanDetector
from policies.detectors.ip import IpDetector
from policies.detectors.phone import PhoneDetector
from policies.detectors.secret import SecretDetector
from policies.detectors.ssn import SsnDetector


class Detector(Protocol):
    """Finds one kind of personal data."""

    @property
    def kind(self) -> str:
        """The word for it in headers, metrics and logs."""
        ...

    @property
    def needs(self) -> Digits:
        """What text must hold for anything to be found in it."""
        ...

    def find(self, text: str) -> Iterator[tuple[int, int]]:
        """Yield (start, end) of each finding in normalised text; they may overlap."""
        ...


def detectors(regions: Sequence[str]) -> tuple[Detector, ...]:
    """Return all detectors, the more telling ones first.

    Raises ValueError for a region that has no phone numbers.
    """
    return (
        # A URL with a password in it reads like an email address.
        SecretDetector(),
        EmailDetector(),
        IbanDetector(),
        CardDetector(),
        SsnDetector(),
        IpDetector(),
        PhoneDetector(regions),
    )
