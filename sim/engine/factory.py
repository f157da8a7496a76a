"""Which engine stands behind the `Engine` protocol."""

from __future__ import annotations

from replicast.sim.config import EngineConfig
from replicast.sim.engine import Engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.engine.stepwise.engine import StepwiseEngine


def make_engine(config: EngineConfig, step_time: StepTime) -> Engine:
    """A fresh replica, empty at tick 0."""
    return StepwiseEngine(config, step_time)
