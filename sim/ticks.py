"""Engine time: whole femtoseconds, so that K equal steps are exactly their sum.

Integers leave no rounding to argue about: an arrival lies before, at or after a step
boundary, and jumping K steps lands on the very tick that stepping K times reaches.
A femtosecond resolves the smallest coefficient in use (attention, 1e-10 s per token pair)
to six digits; Python integers have no upper end.
"""

from __future__ import annotations

Tick = int

TICKS_PER_S = 10**15
TICKS_PER_MS = 10**12


def ticks(seconds: float) -> Tick:
    """The whole tick nearest to `seconds`."""
    return round(seconds * TICKS_PER_S)


def seconds(tick: Tick) -> float:
    """`tick` in seconds."""
    return tick / TICKS_PER_S


def ratio(numerator: int, denominator: int) -> float:
    """The float nearest to the quotient. Compiled code must ask for it: its own division rounds twice."""
    return numerator / denominator
