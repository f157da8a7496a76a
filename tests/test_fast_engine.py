"""The engine in jumps equals the engine step by step: in every tick, hit, preemption and counter."""

from __future__ import annotations

import shutil
import sys
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from fuzz_engines import difference
from replicast.sim.engine import compiled
from replicast.sim.engine.compiled import compiled_class
from replicast.sim.engine.macro import MacroEngine


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.sampled_from(["", "plain sync", "plain async", "tight"]))
def test_jumps_equal_steps(seed: int, features: str) -> None:
    found = difference(seed, features, Counter())
    assert found is None, f"seed {seed} {features!r}: {found}"


def test_the_compiled_engine_equals_it_too() -> None:
    engine = compiled_class()
    if engine is None:
        pytest.skip("not built: make fast")
    for seed in range(150):
        assert difference(seed, "", Counter(), engine) is None, f"seed {seed}"


@pytest.mark.parametrize(
    "changed", ["request.py", "engine/step_time.py", "engine/hybrid/engine.py", "fleet/dispatch.py"]
)
def test_a_build_of_other_text_is_not_picked_up(changed: str, tmp_path: Path) -> None:
    sim = tmp_path / "sim"
    shutil.copytree(compiled.SIM, sim)
    before = compiled.package_name.__wrapped__(sim)
    assert before == compiled.package_name.__wrapped__()
    with (sim / changed).open("a") as file:
        file.write("# changed\n")
    assert compiled.package_name.__wrapped__(sim) != before


def test_a_build_that_cannot_be_loaded_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = tmp_path / "replicast_sim_broken" / "replicast_sim_broken"
    (broken / "engine").mkdir(parents=True)
    (broken / "engine" / "macro.py").write_text("import a_library_that_is_not_here\n")
    monkeypatch.setenv("REPLICAST_CACHE", str(tmp_path))
    monkeypatch.setattr(compiled, "package_name", lambda: "replicast_sim_broken")
    monkeypatch.setattr(sys, "path", [*sys.path])
    assert compiled.module("engine.macro").MacroEngine is MacroEngine


# Cases that once differed.
@pytest.mark.parametrize(
    "seed",
    [
        25,
        95,
        181,
        310,
        370,
        524,
        845,
        983,
        987,
        1226,
        202375,
        303139,
        311029,
        312543,
        313013,
        419457,
        702849,
        711125,
    ],
)
def test_cases_that_once_differed(seed: int) -> None:
    assert difference(seed, "", Counter()) is None
