"""MSER-5: how many first observations a mean should do without (White 1997).

Observations are averaged in fives; cutting d of n averages leaves the others with a standard error of
about sqrt(z(d)), z(d) = sum of squares around their mean / (n - d)^2. The d with the least z, among the
first half, is the cut: what is dropped is worth less than the bias that it brings.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

_BATCH = 5
_MIN_BATCHES = 20


def mser5(observations: NDArray[np.float64]) -> int | None:
    """Number of first observations to drop; None if there are fewer than 100 to judge from.

    >>> mser5(np.concatenate([np.full(50, 9.0), np.tile(np.repeat([1.0, 3.0], 5), 30)]))
    50
    """
    n = len(observations) // _BATCH
    if n < _MIN_BATCHES:
        return None
    means = observations[: n * _BATCH].reshape(n, _BATCH).mean(axis=1)
    left = np.arange(n, 0, -1)
    total = np.cumsum(means[::-1])[::-1]
    squares = np.cumsum(means[::-1] ** 2)[::-1]
    z = np.maximum(squares - total**2 / left, 0.0) / left**2
    return int(np.argmin(z[: n // 2 + 1])) * _BATCH
