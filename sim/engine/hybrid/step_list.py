"""Steps that are not alike: how long the first so many take, and which boundary an arrival meets."""

from __future__ import annotations

from bisect import bisect_left

from replicast.sim.engine.step_run import StepRun
from replicast.sim.ticks import Tick


class StepList(StepRun):
    """A few steps, then those of `after`; `ends` are the ticks of the first, the first two, … together."""

    __slots__ = ("after", "ends")

    def __init__(self, ends: list[Tick], after: StepRun | None) -> None:
        super().__init__(0, 0)
        self.ends = ends
        self.after = after

    def ticks(self, k: int) -> Tick:
        number = len(self.ends)
        if self.after is None or k <= number:
            return self.ends[k - 1] if k else 0
        return self.ends[-1] + self.after.ticks(k - number)

    def steps_until(self, elapsed: Tick) -> int:
        if self.after is None or elapsed <= self.ends[-1]:
            return bisect_left(self.ends, elapsed) + 1 if elapsed > 0 else 0
        return len(self.ends) + self.after.steps_until(elapsed - self.ends[-1])
