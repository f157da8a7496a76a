"""How much the outputs of a level's requests differ: sd of the logarithm of their lengths.

Time per token is a mean over requests, each with its own outputs: where prompts of others interrupt them, a
short output is lengthened many times, a long one as the average. So the spread of outputs tells apart what
TPOT and token rates say of contended levels. Where lengths were counted in buckets, they say it; the
simulation is read in the same buckets, so that what coarse edges and cut requests take off is the same on
both sides.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from replicast.calibration.buckets import token_edges
from replicast.calibration.sweep import Histogram

LEAST_COUNTED = 20  # requests, to say anything
EDGES = np.array(token_edges())


def log_sd(edges: Sequence[float], counts: Sequence[float]) -> float:
    """Sd of the logarithm of what is counted, each bucket at its geometric middle; NaN of nothing.

    >>> round(log_sd((1, 10, 100, 1000), (0, 0, 5, 5, 0)), 3) == round(math.log(10) / 2, 3)
    True
    """
    number = np.array(counts, dtype=float)
    if not number.sum() > 0:
        return math.nan
    ends = np.log(np.maximum(edges, 1.0))
    middles = np.concatenate([ends[:1], (ends[:-1] + ends[1:]) / 2, ends[-1:]])
    mean = number @ middles / number.sum()
    return math.sqrt(number @ (middles - mean) ** 2 / number.sum())


def counted_log_sd(lengths: Histogram | None) -> float | None:
    """The same of a measured histogram; None where too few are counted, or none in buckets."""
    if lengths is None or not lengths.edges or sum(lengths.counts) < LEAST_COUNTED:
        return None
    return log_sd(lengths.edges, lengths.counts) or None


def log_sd_of(lengths: NDArray[np.int64]) -> float:
    """The same of lengths known one by one, as vLLM would have counted them."""
    counts = np.bincount(np.searchsorted(EDGES, lengths), minlength=len(EDGES) + 1)
    return log_sd(EDGES.tolist(), counts.tolist())
