"""How long a step takes: ``base + per_decode * decodes + per_prefill * prefill tokens`` seconds.

Fitted to what was observed. One slow step (another process, a page fault) must not change much, and
a thousand steps of one kind must not make it forget the others. So observations are kept by kind,
by powers of two of both counts, a few for each; the median of each kind is one point of a least
squares fit of relative errors.
"""

from collections import deque
from statistics import median_low

_KEPT_OF_A_KIND = 7
_FORGOTTEN_AFTER = 4096  # steps
_STEPS_BETWEEN_FITS = 16
_RIDGE = 1e-9
_CHOICES = ((0, 1, 2), (0, 1), (0, 2), (1, 2), (0,), (1,), (2,))

_Fit = tuple[float, float, float]


class StepTimeModel:
    """Learns from steps; a coefficient is 0 until something was seen of it."""

    def __init__(self) -> None:
        self.base = 0.0
        self.per_decode = 0.0
        self.per_prefill = 0.0
        self.most_decodes = 0
        """The most that one step was seen to have."""
        self.most_prefill = 0
        self._kinds: dict[tuple[int, int], deque[tuple[float, int, int, int]]] = {}
        self._steps = 0
        self._next_fit = 1

    def observe(self, decodes: int, prefill: int, seconds: float) -> None:
        """Take in one step; what makes no sense is ignored."""
        if seconds <= 0 or decodes < 0 or prefill < 0 or decodes + prefill == 0:
            return
        self._steps += 1
        self.most_decodes = max(self.most_decodes, decodes)
        self.most_prefill = max(self.most_prefill, prefill)
        kind = decodes.bit_length(), prefill.bit_length()
        kept = self._kinds.get(kind)
        if kept is None:
            kept = self._kinds[kind] = deque(maxlen=_KEPT_OF_A_KIND)
            self._next_fit = self._steps  # something new
        kept.append((seconds, decodes, prefill, self._steps))
        if self._steps >= self._next_fit:
            self._next_fit = self._steps + _STEPS_BETWEEN_FITS
            self._fit()

    def predict(self, decodes: int, prefill: int) -> float:
        """Return the seconds of such a step."""
        return self.base + self.per_decode * decodes + self.per_prefill * prefill

    def _fit(self) -> None:
        oldest = self._steps - _FORGOTTEN_AFTER
        self._kinds = {kind: kept for kind, kept in self._kinds.items() if kept[-1][3] > oldest}
        points = map(median_low, self._kinds.values())
        # Each row times the coefficients is to be 1: that makes errors relative.
        fit = _fit_non_negative(
            [(1 / each[0], each[1] / each[0], each[2] / each[0]) for each in points]
        )
        if fit is not None:
            self.base, self.per_decode, self.per_prefill = fit


def _fit_non_negative(rows: list[tuple[float, float, float]]) -> _Fit | None:
    """Return the least squares fit whose coefficients are not negative, for times are not."""
    sums = [sum(row[i] for row in rows) for i in range(3)]
    products = [[sum(row[i] * row[j] for row in rows) for j in range(3)] for i in range(3)]
    best, least = None, float("inf")
    for used in _CHOICES:
        fit = _solve(products, sums, used)
        if fit is None or min(fit) < 0:
            continue
        error = sum(
            fit[i] * (sum(products[i][j] * fit[j] for j in range(3)) - 2 * sums[i])
            for i in range(3)
        )
        if error < least:
            best, least = fit, error
        if len(used) == 3:
            break  # nothing fits better
    return best


def _solve(products: list[list[float]], sums: list[float], used: tuple[int, ...]) -> _Fit | None:
    """Solve for the coefficients in ``used``, the others being 0; None: they cannot be told."""
    scales = [products[i][i] ** 0.5 for i in used]
    if min(scales) == 0:
        return None
    size = len(used)
    matrix = [
        [products[i][j] / a / b + _RIDGE * (i == j) for j, b in zip(used, scales, strict=True)]
        + [sums[i] / a]
        for i, a in zip(used, scales, strict=True)
    ]
    for i in range(size):
        # The matrix is positive definite, so that its pivots stand on the diagonal.
        if matrix[i][i] < 2 * _RIDGE:
            return None
        for k in range(size):
            if k != i:
                factor = matrix[k][i] / matrix[i][i]
                matrix[k] = [a - factor * b for a, b in zip(matrix[k], matrix[i], strict=True)]
    fit = [0.0, 0.0, 0.0]
    for i, (column, scale) in enumerate(zip(used, scales, strict=True)):
        fit[column] = matrix[i][size] / matrix[i][i] / scale
    return fit[0], fit[1], fit[2]
