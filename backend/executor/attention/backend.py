"""The seam between the model runner and a way to attend: plan once a step, then forward a layer.

A backend lays out its own numbers on the host first (``layout``), so that they travel to the device
in the one copy of the step (``input_batch``); ``plan`` then gets them as tensors.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from backend.models.attention import Attention
from backend.scheduler.batch import Row

Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class HostRows:
    """The rows of a step on the host: single tokens first, then spans of several.

    ``slots``, ``starts`` and ``counts`` are int32 [rows]. ``tables`` is [slots, blocks], the block
    table of every slot. Single tokens are padded to ``num_padded`` rows by rows of nobody.
    """

    slots: Ints
    starts: Ints
    counts: Ints
    num_singles: int
    num_padded: int
    tables: Ints


@dataclass(frozen=True, slots=True)
class StepTensors:
    """What of a step lies on the device; all int32.

    ``slot_mapping`` [tokens] says where each token's KV goes: block * 16 + place in the block.
    ``tables`` is the block tables of all slots, end to end; that of a single token begins at
    ``table_starts`` [padded singles], and the token sees ``lengths`` keys, 0 in padding.
    ``parts`` is what ``AttentionBackend.layout`` returned; ``places`` is ``slot_mapping`` on the
    host.
    """

    positions: Tensor
    slot_mapping: Tensor
    lengths: Tensor
    table_starts: Tensor
    tables: Tensor
    parts: Sequence[Tensor]
    places: Ints


class AttentionBackend(Attention, Protocol):
    """One way to attend; owned by the model runner, used by one thread."""

    def start(self, slots: Sequence[int]) -> None:
        """Forget what is known of ``slots``: other sequences have them now."""
        ...

    def arrange(self, rows: Sequence[Row], singles: list[int], tables: Ints) -> list[int]:
        """Return ``singles``, places in ``rows``, in the order that suits the backend.

        ``tables`` is that of ``HostRows``.
        """
        ...

    def layout(self, rows: HostRows) -> list[Ints]:
        """Return what else the device is to know of a step."""
        ...

    def plan(self, rows: HostRows, tensors: StepTensors) -> None:
        """Prepare ``forward`` for a step; it must not wait for the device."""
        ...

    def release(self) -> None:
        """Give back memory that it keeps for speed; nobody is computed."""
        ...
