"""Steps that are not alike: how long the first so many take, and which boundary an arrival meets."""

from __future__ import annotations

from bisect import bisect_left

from replicast.sim.engine.step_run import StepRun
from replicast.sim.ticks import Tick


class StepList(StepRun):
    """A few steps; `ends` are the ticks that the first, the first two, … take together."""

    __slots__ = ("ends",)

    def __init__(self, ends: list[Tick]) -> None:
        super().__init__(0, 0)
        self.ends = ends

    def ticks(self, k: int) -> Tick:
        return self.ends[k - 1] if k else 0

    def steps_until(self, elapsed: Tick) -> int:
        return bisect_left(self.ends, elapsed) + 1 if elapsed > 0 else 0
