"""A compiled fleet gives what the one in Python gives, to the byte, and is told from it by nothing else."""

from __future__ import annotations

import pickle
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from replicast.sim.config import EngineConfig
from replicast.sim.engine.compiled import compiled_module
from replicast.sim.engine.factory import make_engine
from replicast.sim.engine.pinned import pinned_engines
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.clients import Follower, Shift
from replicast.sim.fleet.config import FleetConfig, FrontEnd, RouterName
from replicast.sim.fleet.operations import Autoscaling, Loss, Operations
from replicast.sim.fleet.record_file import read_records
from replicast.sim.fleet.run import RunResult, simulate
from replicast.sim.kv_groups import KVGroup

sys.path.insert(0, str(Path(__file__).parent))

import planning_cases

pytestmark = pytest.mark.skipif(
    compiled_module("fleet.assembly") is None, reason="the compiled fleet is not built: make fast"
)

ENGINE = EngineConfig(num_gpu_blocks=801, max_model_len=16_000, max_num_batched_tokens=1024, max_num_seqs=4)
STEP_TIME = StepTime.from_seconds(memory_fixed_s=0.05, compute_per_token_s=0.004)
FLEET = FleetConfig(replicas=3, sessions=8, stagger_s=30.0, front_end=FrontEnd(0.1, 1e-5, 0.01))


def both(monkeypatch: pytest.MonkeyPatch, **more: object) -> tuple[RunResult, RunResult]:
    """The same run in Python and compiled."""
    results = []
    for way in ("0", "1"):
        monkeypatch.setenv("REPLICAST_COMPILED", way)
        arguments = {"engine_config": ENGINE, "fleet": FLEET, "seed": 3, **more}
        results.append(simulate(planning_cases.sessions(), step_time=STEP_TIME, **arguments))  # type: ignore[arg-type]
    return results[0], results[1]


def assert_same(pure: RunResult, compiled: RunResult) -> None:
    for name, column in pure.records.columns.items():
        assert column.tobytes() == compiled.records.columns[name].tobytes(), name
    assert pure.records.window == compiled.records.window
    for field in fields(RunResult):
        if field.name != "records":
            assert getattr(pure, field.name) == getattr(compiled, field.name), field.name
    assert pure.counts.submitted > 0


@pytest.mark.parametrize("router", get_args(RouterName))
@pytest.mark.parametrize(
    "more",
    [
        {"replicas": 1, "front_end": FrontEnd()},
        {"horizon_s": 200.0, "cooldown_s": 5.0},
        {"warmup_s": 50.0, "think_cap_s": 1.0, "over_length": "truncate-session"},
    ],
    ids=["alone", "horizon", "warm"],
)
def test_runs_are_equal(router: RouterName, more: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = replace(FLEET, router=router, **more)  # type: ignore[arg-type]
    short = replace(ENGINE, max_model_len=4_000)
    assert_same(*both(monkeypatch, fleet=fleet))
    assert_same(*both(monkeypatch, fleet=fleet, engine_config=short))


def test_replicas_that_come_and_go(monkeypatch: pytest.MonkeyPatch) -> None:
    scaling = Autoscaling(
        "requests", up=1.0, down=0.2, max_replicas=5, every_s=5.0, hold_s=0.0, start_up_s=9.0
    )
    operations = Operations(scaling, (Loss(20.0, 30.0), Loss(40.0)), retry_s=2.0)
    pure, compiled = both(monkeypatch, operations=operations)
    assert pure.counts.aborted
    assert_same(pure, compiled)


def test_developers_with_sessions_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = replace(FLEET, sessions=2)
    followers = {0: Follower(2, 4.0), 2: Follower(3, 0.0)}
    assert_same(*both(monkeypatch, fleet=fleet, followers=followers))
    shifts = [Shift(0.0, 60.0), Shift(5.0, 90.0)]
    assert_same(*both(monkeypatch, fleet=fleet, followers=followers, shifts=shifts))


def test_other_engines_work_in_a_compiled_fleet(monkeypatch: pytest.MonkeyPatch) -> None:
    assert_same(*both(monkeypatch, engines=pinned_engines(0.5)))
    hybrid = replace(
        ENGINE, kv_groups=(KVGroup("full", 16), KVGroup("sliding_window", 16, sliding_window=256))
    )
    assert_same(*both(monkeypatch, engine_config=hybrid))
    assert_same(*both(monkeypatch, engines=lambda config, step_time: make_engine(config, step_time)))


def test_records_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("replicast.sim.fleet.record_file.FLUSH_ROWS", 10)
    for way in ("0", "1"):
        monkeypatch.setenv("REPLICAST_COMPILED", way)
        simulate(
            iter(planning_cases.sessions()), ENGINE, STEP_TIME, FLEET, seed=3, record_file=tmp_path / way
        )
    assert (tmp_path / "0").read_bytes() == (tmp_path / "1").read_bytes()
    assert np.isfinite(read_records(tmp_path / "1").arrival_s).all()


def test_nothing_of_the_build_is_in_a_result(monkeypatch: pytest.MonkeyPatch) -> None:
    """Processes hand results to each other, and not all have loaded the build."""
    pure, compiled = both(monkeypatch, operations=Operations(None, (Loss(20.0, 30.0),)))
    assert b"replicast_sim_" not in pickle.dumps(compiled)
    assert pickle.dumps(pure) == pickle.dumps(compiled)


def test_refusals_read_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    said = []
    good, *others = planning_cases.sessions()
    bad = replace(good, turns=(good.turns[0]._replace(num_prompt_tokens=0), *good.turns[1:]))
    for way in ("0", "1"):
        monkeypatch.setenv("REPLICAST_COMPILED", way)
        with pytest.raises(InputError) as caught:
            simulate([*others, bad], ENGINE, STEP_TIME, FLEET, seed=3)
        said.append((str(caught.value), caught.value.where, caught.value.remedy))
    assert said[0] == said[1]
