"""Smaller steps for a while after one had no memory.

Pure. A step's activations grow with its tokens, so prefill is cut in half until it fits, and grows
again once that has gone well for some time.
"""

from backend.scheduler.pacing import Allowance, Pacing

_LEAST_TOKENS = 32
_STEPS_TO_DOUBLE = 256


class MemoryCap:
    """A ``Pacing`` in front of another."""

    def __init__(self, pacing: Pacing) -> None:
        """Allow what ``pacing`` does until ``shrink`` is called."""
        self._pacing = pacing
        self._max_tokens: int | None = None
        self._steps = 0

    def allow(self, num_decodes: int) -> Allowance:
        allowance = self._pacing.allow(num_decodes)
        if self._max_tokens is None:
            return allowance
        if self._max_tokens >= allowance.max_tokens:
            self._max_tokens = None
            return allowance
        return Allowance(max(self._max_tokens, num_decodes + 1), allowance.max_num_seqs)

    def observe(self, num_decode_tokens: int, num_prefill_tokens: int, seconds: float) -> None:
        self._pacing.observe(num_decode_tokens, num_prefill_tokens, seconds)
        self._steps += 1
        if self._max_tokens is not None and self._steps >= _STEPS_TO_DOUBLE:
            self._steps = 0
            self._max_tokens *= 2

    def shrink(self, num_tokens: int, num_sequences: int) -> bool:
        """Allow half of what a step had that found no memory; False: it cannot be made smaller."""
        if num_tokens <= max(_LEAST_TOKENS, num_sequences):
            return False
        self._max_tokens = num_tokens // 2
        self._steps = 0
        return True
