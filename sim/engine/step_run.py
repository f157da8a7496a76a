"""How long K like steps take, and which of their boundaries an arrival meets.

K like steps (the same decodes, a chunk of the same size) load both sides affinely: step i costs
max(m + i dm, c + i dc). Two lines cross at most once, so their K steps sum to at most two
arithmetic series, and "which step boundary is the first at or after this arrival" is the root of a
quadratic, in floats to within a step and then exactly. Nothing here iterates over steps.
"""

from __future__ import annotations

from math import sqrt

from replicast.sim.ticks import Tick


class StepRun:
    """Durations of like steps: `first + i * slope` before step `crossing`, the second line from there on.

    `crossing` is None where one side leads for ever.
    """

    __slots__ = ("crossing", "first", "second", "second_slope", "slope")

    def __init__(
        self,
        first: Tick,
        slope: Tick,
        crossing: int | None = None,
        second: Tick = 0,
        second_slope: Tick = 0,
    ) -> None:
        self.first = first
        self.slope = slope
        self.crossing = crossing
        self.second = second
        self.second_slope = second_slope

    def ticks(self, k: int) -> Tick:
        """Ticks of the first `k` steps together."""
        x = self.crossing
        if x is None or k <= x:
            return k * self.first + self.slope * (k * (k - 1) // 2)
        head = x * self.first + self.slope * (x * (x - 1) // 2)
        return head + (k - x) * self.second + self.second_slope * ((k * (k - 1) - x * (x - 1)) // 2)

    def last(self, k: int) -> Tick:
        """Ticks of step number `k`, counted from 1."""
        x = self.crossing
        if x is None or k <= x:
            return self.first + (k - 1) * self.slope
        return self.second + (k - 1) * self.second_slope

    def steps_until(self, elapsed: Tick) -> int:
        """The fewest steps that together take at least `elapsed` ticks."""
        if elapsed <= 0:
            return 0
        x = self.crossing
        if x is not None:
            head = x * self.first + self.slope * (x * (x - 1) // 2)
            if elapsed > head:
                start = self.second + x * self.second_slope
                return x + _steps(start, self.second_slope, elapsed - head)
        return _steps(self.first, self.slope, elapsed)


def _steps(first: Tick, slope: Tick, elapsed: Tick) -> int:
    """Smallest i with i first + slope i (i - 1) / 2 >= elapsed."""
    p = 2 * first - slope
    root = sqrt(float(p) * p + 8.0 * slope * elapsed)
    i = int(4.0 * elapsed / (root + p) if p > 0 else (root - p) / (2.0 * slope))
    while i * (slope * i + p) < 2 * elapsed:
        i += 1
    while (i - 1) * (slope * (i - 1) + p) >= 2 * elapsed:
        i -= 1
    return i


def like_steps(memory: Tick, memory_slope: Tick, compute: Tick, compute_slope: Tick) -> StepRun:
    """Steps of max(memory + i memory_slope, compute + i compute_slope) ticks, i = 0, 1, …

    The side that leads at step 0 leads until the other has overtaken it. A step of nothing still
    takes 1 tick; both sides must be at least 0 at the start and slopes at least 0.
    """
    if memory >= compute:
        gap, first, slope, second, second_slope = (
            memory - compute,
            memory,
            memory_slope,
            compute,
            compute_slope,
        )
    else:
        gap, first, slope, second, second_slope = (
            compute - memory,
            compute,
            compute_slope,
            memory,
            memory_slope,
        )
    if first == 0:
        return _from_nothing(slope, second_slope)
    if second_slope <= slope:
        return StepRun(first, slope)
    return StepRun(first, slope, gap // (second_slope - slope) + 1, second, second_slope)


def _from_nothing(slope: Tick, other: Tick) -> StepRun:
    """Like steps whose first takes nothing, hence 1 tick; then the steeper side leads."""
    steeper = max(slope, other)
    return StepRun(1, 0, 1, 0, steeper) if steeper else StepRun(1, 0)
