"""How long a turn waits after the replies that it depends on."""

from __future__ import annotations

from replicast.sim.workload import Seconds, Turn


def capped_delay(turn: Turn, cap_s: Seconds | None) -> tuple[Seconds, bool]:
    """Delay of a turn with its human part at most `cap_s`, and whether the cap cut it.

    Where a trace does not tell tools from humans, the whole delay is taken as human.
    """
    think_s = turn.think_s
    if think_s is None:
        think_s = turn.delay_s - (turn.tool_s or 0.0)
    if cap_s is None or think_s <= cap_s:
        return turn.delay_s, False
    return max(turn.delay_s - (think_s - cap_s), 0.0), True
