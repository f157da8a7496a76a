"""Jumps over several KV groups equal the engine that walks every step and touches every block."""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

import pytest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.compiled import compiled_module
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.hybrid.engine import HybridEngine
from replicast.sim.kv_groups import KVGroup

sys.path.insert(0, str(Path(__file__).parent))

from engine_cases import draw_case
from fuzz_engines import difference

CASES = 300
# A chunk in flight frees window blocks two steps later, and lets somebody in; a chunk leaves a decode
# no token, and the prompt behind that less than none.
HARD = (6380, 9011)


def test_jumps_equal_steps() -> None:
    counts: Counter[str] = Counter()
    for seed in (*HARD, *range(CASES)):
        found = difference(seed, "hybrid", counts, HybridEngine)
        assert found is None, f"seed {seed}: {found}"
    assert counts["compared"] > CASES // 2
    assert counts["jumped_steps"] > 3 * counts["single_steps"]


def test_the_compiled_engine_equals_it_too() -> None:
    found = compiled_module("engine.hybrid.engine")
    if found is None:
        pytest.skip("not built: make fast")
    for seed in range(1000, 1100):
        assert difference(seed, "hybrid", Counter(), found.HybridEngine) is None, f"seed {seed}"


@pytest.mark.parametrize("kind", ["full", "mamba"])
def test_hybrid_models_get_the_engine_that_knows_their_groups(kind: str) -> None:
    groups = (KVGroup("full", 16), KVGroup(kind, 16))  # type: ignore[arg-type]
    config = EngineConfig(num_gpu_blocks=101, kv_groups=groups)
    assert isinstance(make_engine(config, draw_case(0).step_time), HybridEngine)
