"""Replicas that come and go: nothing is lost or counted twice, whatever happens to them."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.errors import InputError
from replicast.sim.fleet.clients import Follower, Shift
from replicast.sim.fleet.config import FleetConfig, FrontEnd, RouterName
from replicast.sim.fleet.operations import Autoscaling, Lifetime, Loss, Operations, paid_hours
from replicast.sim.fleet.prefix_router import make_router
from replicast.sim.fleet.records import RecordStatus
from replicast.sim.fleet.run import RunResult, simulate
from replicast.sim.workload import Segment

sys.path.insert(0, str(Path(__file__).parent))

import planning_cases
from router_cases import Asked

ENGINE = EngineConfig(num_gpu_blocks=801, max_model_len=16_000, max_num_batched_tokens=1024, max_num_seqs=4)
STEP_TIME = StepTime.from_seconds(memory_fixed_s=0.05, compute_per_token_s=0.004)
FLEET = FleetConfig(sessions=8, stagger_s=30.0, front_end=FrontEnd(0.1, 1e-5, 0.01))


def run(fleet: FleetConfig, operations: Operations | None, seed: int = 3) -> RunResult:
    return simulate(planning_cases.sessions(), ENGINE, STEP_TIME, fleet, seed=seed, operations=operations)


losses = st.lists(
    st.builds(Loss, at_s=st.floats(1.0, 300.0), replaced_after_s=st.floats(0.0, 100.0)), max_size=3
)
scalings = st.builds(
    Autoscaling,
    metric=st.sampled_from(["requests", "waiting", "kv-usage"]),
    up=st.floats(0.2, 3.0),
    down=st.floats(0.0, 0.2),
    max_replicas=st.integers(1, 5),
    every_s=st.floats(5.0, 40.0),
    hold_s=st.floats(0.0, 60.0),
    start_up_s=st.floats(0.0, 60.0),
)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(get_args(RouterName)),
    st.integers(1, 4),
    st.none() | scalings,
    losses,
    st.floats(0.0, 20.0),
)
def test_every_turn_is_answered_once_and_every_second_is_accounted_for(
    router: RouterName, replicas: int, scaling: Autoscaling | None, lost: list[Loss], retry_s: float
) -> None:
    operations = Operations(scaling, tuple(lost), retry_s)
    result = run(replace(FLEET, router=router, replicas=replicas), operations)
    records, counts = result.records, result.counts
    finished = records.finished
    turns = list(zip(records.session_index.tolist(), records.turn_index.tolist(), strict=True))
    answered = Counter(turn for turn, is_finished in zip(turns, finished, strict=True) if is_finished)
    assert len(answered) == counts.turns == counts.finished
    assert counts.submitted == counts.finished + counts.aborted
    assert counts.aborted == int((records.status == RecordStatus.ABORTED).sum())

    # Little's law: what engines held over time is what requests spent there.
    span_s = result.window.end_s - result.window.start_s
    held_s = sum(replica.mean_running + replica.mean_waiting for replica in result.replicas) * span_s
    spent = records.e2e_s - records.front_end_s - records.delivery_s
    lives = result.lifetimes
    for row in np.flatnonzero(records.status == RecordStatus.ABORTED).tolist():
        handed_s = records.arrival_s[row] + records.front_end_s[row]
        spent[row] = max(lives[records.replica[row]].end_s - handed_s, 0.0)
    assert held_s == pytest.approx(float(spent.sum()), rel=1e-9)

    # Nobody is asked who does not take requests, or answers when gone.
    for row, replica in enumerate(records.replica.tolist()):
        life = lives[replica]
        assert life.live_s is not None
        handed_s = records.arrival_s[row] + records.front_end_s[row]
        assert life.live_s <= handed_s + 1e-9
        assert records.arrival_s[row] <= life.leave_s + 1e-9
        if finished[row]:
            assert records.arrival_s[row] + records.e2e_s[row] - 0.01 <= life.end_s + 1e-9


@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from(get_args(RouterName)),
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 9), st.integers(1, 60), st.sampled_from("rrrrajl")), max_size=150),
)
def test_routers_send_nothing_to_who_has_left(
    name: RouterName, replicas: int, steps: list[tuple[int, int, str]]
) -> None:
    fleet = FleetConfig(replicas=replicas, router=name)
    router = make_router(fleet, ENGINE, np.random.default_rng(1))
    present, number = list(range(replicas)), replicas
    flying: list[tuple[Asked, int]] = []
    for session, own, what in steps:
        if what == "j":
            router.joined()
            present.append(number)
            number += 1
        elif what == "l" and present:
            router.left(present.pop(own % len(present)))
        elif what == "a" and flying:
            router.replied(*flying.pop(own % len(flying)))
        elif what == "r" and present:
            prompt = (Segment(session % 3, 0, 20), Segment(session, 100, own))
            request = Asked(prompt, 20 + own, session)
            home = router.route(request)
            assert home in present
            flying.append((request, home))


@pytest.mark.parametrize("router", get_args(RouterName))
def test_with_nothing_to_do_the_run_is_the_plain_one(router: RouterName) -> None:
    fleet = replace(FLEET, router=router, replicas=3)
    plain, watched = run(fleet, None), run(fleet, Operations())
    for name in plain.records.columns:
        assert plain.records.columns[name].tobytes() == watched.records.columns[name].tobytes()
    assert [life.state for life in watched.lifetimes] == ["live"] * 3


def test_same_seed_same_bytes() -> None:
    operations = Operations(Autoscaling("requests", 1.0, 0.5, 1, 4, 10.0, 20.0, 15.0), (Loss(60.0, 30.0),))
    first, second = (run(replace(FLEET, router="random"), operations) for _ in range(2))
    for name in first.records.columns:
        assert first.records.columns[name].tobytes() == second.records.columns[name].tobytes()
    assert first.lifetimes == second.lifetimes


def test_a_lost_replica_is_the_busiest_and_its_requests_come_again() -> None:
    fleet = replace(FLEET, replicas=2, router="round-robin")
    before, after = run(fleet, None), run(fleet, Operations(losses=(Loss(40.0),), retry_s=2.0))
    records = after.records
    aborted = np.flatnonzero(records.status == RecordStatus.ABORTED)
    assert len(aborted) == after.counts.aborted > 0
    assert after.counts.finished == before.counts.finished
    gone = {int(records.replica[row]) for row in aborted}
    assert len(gone) == 1
    again = records.arrival_s[records.arrival_s == 42.0]
    assert len(again) == len(aborted)
    (life,) = (life for life in after.lifetimes if life.state == "lost")
    assert life.end_s == life.leave_s == 40.0


def test_requests_wait_where_nobody_is_left() -> None:
    result = run(FLEET, Operations(losses=(Loss(20.0, 50.0),)))
    records = result.records
    held = (records.arrival_s > 20.0) & (records.arrival_s < 69.0)
    assert held.any()
    assert np.all(records.arrival_s[held] + records.front_end_s[held] >= 70.0)
    assert np.all(records.replica[held] == 1)
    assert result.counts.finished == result.counts.turns


def test_replicas_come_when_it_is_crowded_and_go_when_it_is_calm() -> None:
    rule = Autoscaling("requests", 0.8, 0.5, 1, 3, every_s=10.0, hold_s=30.0, start_up_s=20.0)
    shifts = tuple(Shift(0.0, 150.0 if slot else 1500.0) for slot in range(8))
    sessions = [session for session in planning_cases.sessions(8) for _ in range(10)]
    sessions = sessions[::10] + sessions
    fleet = replace(FLEET, sessions=None, warmup_s=0.0, horizon_s=1500.0, router="least-loaded")
    followers = {slot: Follower(8 + 10 * slot, 1.0) for slot in range(8)}
    followers |= {8 + 10 * slot + i: Follower(9 + 10 * slot + i, 1.0) for slot in range(8) for i in range(9)}
    result = simulate(
        sessions, ENGINE, STEP_TIME, fleet, seed=1, followers=followers, shifts=shifts,
        operations=Operations(rule),
    )  # fmt: skip
    lives = result.lifetimes
    assert len(lives) == 3
    for life in lives[1:]:
        assert life.live_s is not None
        assert life.live_s - life.start_s == pytest.approx(20.0)
    assert [life.state for life in lives].count("gone") == 2
    assert [life.state for life in lives].count("live") == 1
    assert 0 < paid_hours(lives, 0.0, 1500.0) < 3 * 1500 / 3600
    late = result.records.arrival_s[result.records.session_index % 8 != 0]
    assert result.window.start_s == 0.0
    assert result.window.end_s == 1500.0
    assert late.size


def test_who_has_left_sends_nothing_more() -> None:
    sessions = planning_cases.sessions(4)
    shifts = [Shift(10.0 * i, 60.0 + 10.0 * i) for i in range(4)]
    fleet = replace(FLEET, sessions=None, warmup_s=0.0, horizon_s=500.0)
    result = simulate(sessions, ENGINE, STEP_TIME, fleet, seed=1, followers={}, shifts=shifts)
    arrivals, owners = result.records.arrival_s, result.records.session_index
    for i, shift in enumerate(shifts):
        own = arrivals[owners == i]
        assert own.min() == shift.start_s
        assert own.max() < shift.end_s


def test_paid_hours_are_cut_at_both_ends() -> None:
    lives = (Lifetime(0.0, 0.0, 7200.0, 7200.0, "live"), Lifetime(1800.0, 1900.0, 5000.0, 5400.0, "gone"))
    assert paid_hours(lives, 3600.0, 7200.0) == pytest.approx(1.5)


@pytest.mark.parametrize(
    ("bad", "words"),
    [
        ({"metric": "ttft"}, "unknown"),
        ({"up": 1.0, "down": 2.0}, "thresholds|threshold|down"),
        ({"min_replicas": 3, "max_replicas": 2}, "3 to 2"),
        ({"every_s": 0.1}, "every_s"),
        ({"start_up_s": float("nan")}, "start_up_s"),
    ],
)
def test_bad_rules_are_refused(bad: dict[str, object], words: str) -> None:
    good: dict[str, object] = {"metric": "requests", "up": 2.0, "down": 1.0}
    with pytest.raises(InputError, match=words):
        Autoscaling(**{**good, **bad})  # type: ignore[arg-type]
