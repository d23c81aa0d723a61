"""Whether copies of a shared store's entries may still be used: what was told of changes, and when.

The store numbers its changes and announces them in order; a beat, which goes the same way, says
the latest number. Law: a copy is used only while nothing was missed before a beat that set out less
than ``PROVEN_SECONDS`` ago. So it outlives a change made elsewhere by no more than that, even where
the way of the messages is cut and nobody is told; while messages arrive, by their delay.
"""

from dataclasses import dataclass, replace

PROVEN_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class Following:
    """All changes up to ``seq`` were told; a beat that set out at ``proved`` said the same.

    ``epoch`` is the store's word for one count of changes; another one after it lost everything.
    """

    epoch: bytes
    seq: int
    proved: float


@dataclass(frozen=True, slots=True)
class Astray:
    """Nothing is known of changes: nobody listens, or some were missed."""


Hearing = Following | Astray

ASTRAY = Astray()


def changed(hearing: Hearing, epoch: bytes, seq: int) -> Hearing:
    """Return the state after the change of that number was told."""
    if isinstance(hearing, Following) and (hearing.epoch, hearing.seq + 1) == (epoch, seq):
        return replace(hearing, seq=seq)
    return ASTRAY


def beat(hearing: Hearing, epoch: bytes, seq: int, sent: float) -> Hearing:
    """Return the state after a beat that set out at ``sent``.

    Where it is ``Following`` and was not before, or follows another count, copies made before are
    of no use; so they are where it is ``Astray``.
    """
    if isinstance(hearing, Astray):
        return Following(epoch, seq, sent)
    if (hearing.epoch, hearing.seq) == (epoch, seq):
        return replace(hearing, proved=max(hearing.proved, sent))
    return ASTRAY


def proven(hearing: Hearing, now: float) -> bool:
    """Tell whether copies may be used."""
    return isinstance(hearing, Following) and now - hearing.proved <= PROVEN_SECONDS
