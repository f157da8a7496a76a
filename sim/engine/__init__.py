"""ONE replica: no clock, no files, no random numbers, no SimPy.

`Engine` is all that a fleet knows of it. The fleet owns the clock and calls, at each tick,
in this order: `complete` (the step that ends now), then replies and arrivals of the same tick
(`submit`), then `begin` (the next step). So a freed seat, a reply and an arrival at one
instant are all seen by the step that starts then, as in vLLM's loop.
"""

from replicast.sim.engine.interface import Engine
from replicast.sim.engine.stats import EngineStats

__all__ = ["Engine", "EngineStats"]
