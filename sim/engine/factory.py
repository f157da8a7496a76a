"""Which engine stands behind the `Engine` protocol: the one that jumps, or that of hybrid models.

Only the one that is asked for is loaded.
"""

from __future__ import annotations

from dataclasses import replace

from replicast.sim.config import EngineConfig
from replicast.sim.engine.interface import Engine
from replicast.sim.engine.step_time import StepTime
from replicast.sim.kv_groups import KVGroup


def make_engine(config: EngineConfig, step_time: StepTime) -> Engine:
    """A fresh replica, empty at tick 0. Hybrid models have an engine of their own."""
    if config.kv_groups == (KVGroup("full", config.block_size),):
        config = replace(config, kv_groups=None)
    if config.kv_groups is not None:
        from replicast.sim.engine.hybrid.engine import HybridEngine

        return HybridEngine(config, step_time)
    from replicast.sim.engine.macro import MacroEngine

    return MacroEngine(config, step_time)
