"""Fleets from rows: a known server's two replicas predict its four, for both routers."""

from __future__ import annotations

import math
import statistics

import numpy as np
from replicast.calibration.accuracy_published import CliffRow as Cliff
from replicast.calibration.accuracy_published import (
    RowError,
    cliff_lines,
    cliff_text,
    errors_of,
    scaling_lines,
)
from replicast.calibration.replicas import (
    RATES,
    SHARES,
    Arm,
    Fleet,
    Floats,
    Load,
    fit_arms,
    matched,
    measured,
    rival_row,
)
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Given, Histogram, Sweep, SweepLevel
from replicast.sim.fleet.config import RouterName

GIVEN = Given(tensor_parallel_size=1, max_model_len=65_536, kv_pool_tokens=400_000)
FACTS = server_facts(Sweep("made up", "made up", (), model="llama-3.1-8b"), GIVEN, hardware="H100")
LOAD = Load(window_s=150.0, stagger_s=20.0, longest_gap_s=20.0, prompt_scale=0.2)
ROUTERS: tuple[RouterName, ...] = ("round-robin", "prefix-aware")
CONCURRENCIES = (8, 16, 32)


def published(fleet: Fleet, x: Floats, replicas: int, router: RouterName, concurrency: int) -> SweepLevel:
    """A row as it is published."""
    seen = fleet.observe(x, replicas, router, concurrency)
    return SweepLevel(
        concurrency,
        ttft=Histogram(given_mean=seen["ttft_s"]),
        itl=Histogram(given_mean=seen["itl_s"]),
        given_hit_rate=1 - seen["missed"],
        given_prompt_tokens_per_s=seen["prompt_tokens_per_s"],
        given_output_tokens_per_s=seen["output_tokens_per_s"],
    )


def arm(fleet: Fleet, x: Floats, replicas: int, router: RouterName) -> Arm:
    """Rows of as many sessions a replica, whatever the number of replicas."""
    rows = [published(fleet, x, replicas, router, c * replicas // 2) for c in CONCURRENCIES]
    return Arm(replicas, router, tuple(rows))


def error(rows: list[RowError], name: str, *, rival: bool = False) -> float:
    """Median of absolute log errors."""
    return statistics.median(
        abs(math.log((row.rival if rival else row.predicted)[name] / row.measured[name])) for row in rows
    )


def test_two_replicas_predict_four() -> None:
    fleet = Fleet(FACTS, LOAD, LOAD.sessions(100))
    truth = fleet.start() + np.log([1.4, 1.0, 1.2, 1.7, 0.6])
    x = fit_arms(fleet, [arm(fleet, truth, 2, router) for router in ROUTERS])
    for router in ROUTERS:
        rows = errors_of(fleet, x, arm(fleet, truth, 2, router), arm(fleet, truth, 4, router))
        for name in (*RATES, "itl_s", "missed"):
            assert error(rows, name) < 0.1, (router, name)
        assert error(rows, "ttft_s") < 0.2
        if router == "round-robin":  # a session comes back to a replica half as often: no row tells that
            assert error(rows, "missed") < 0.5 * error(rows, "missed", rival=True)
        assert all(row.predicted[name] <= 1 for row in rows for name in SHARES)
        assert len(scaling_lines(rows)) == 2 + len(rows) + 1


def test_sessions_start_midway_and_stay_chains() -> None:
    sessions = LOAD.sessions(40)
    assert statistics.mean(session.turns[0].num_prompt_tokens for session in sessions) > 8_000
    for session in sessions:
        assert [turn.depends_on for turn in session.turns] == [
            (i - 1,) if i else () for i in range(len(session.turns))
        ]
        assert all(turn.delay_s <= LOAD.longest_gap_s for turn in session.turns)
        assert session.turns[0].delay_s == 0


def test_lengths_are_matched_to_the_rows() -> None:
    rows = Arm(
        2, "round-robin", (SweepLevel(8, given_prompt_tokens_per_s=100.0, given_output_tokens_per_s=2.0),)
    )
    fleet = matched(FACTS, [rows], 15_000, LOAD, 40)
    seen = fleet.observe(fleet.start(), 2, "round-robin", 8)
    assert 0.85 < seen["prompt_tokens"] / 15_000 < 1.15
    assert 0.8 < seen["output_tokens_per_s"] / seen["prompt_tokens_per_s"] / 0.02 < 1.25


def test_the_rival_doubles_rates_alone() -> None:
    level = SweepLevel(16, ttft=Histogram(given_mean=2.0), given_prompt_tokens_per_s=100.0)
    assert rival_row(Arm(4, "round-robin", (level,)), 8, 32) == {"ttft_s": 2.0, "prompt_tokens_per_s": 200.0}
    assert rival_row(Arm(4, "round-robin", (level,)), 8, 64) == {}
    assert measured(level) == {"ttft_s": 2.0, "prompt_tokens_per_s": 100.0}


def test_levels_between_rows_have_nothing_measured() -> None:
    seen = {"missed": 0.5, "ttft_s": 1.0, "itl_s": 0.1, "kv_usage": 0.4, "output_tokens_per_s": 1234.0}
    lines = cliff_lines([Cliff(320, seen, None), Cliff(512, seen, seen)])
    assert lines[2] == "| 320 | 0.50 / - | 1.0 / - | 0.10 / - | 0.40 / - | 1,234 / - |"
    assert "0.50 / 0.50" in lines[3]
    lost = seen | {"missed": 0.9, "output_tokens_per_s": 500.0}
    text = cliff_text([Cliff(320, seen, None), Cliff(384, lost, None), Cliff(512, lost, lost)])
    assert (
        text == "Predicted: output tok/s are largest at 320, most hits are lost between 320 and 384 sessions."
    )
