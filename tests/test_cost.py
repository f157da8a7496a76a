"""Cost against the worked numbers of the published sweeps (3-year and older on-demand rates)."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.sim.errors import InputError
from replicast.sim.planning.cost import (
    Task,
    blended_usd_per_task,
    blended_usd_per_token,
    boxes,
    cost,
    fleet_usd_per_hour,
    mean_session,
    parse_task,
    split_usd_per_token,
    usd_per_developer_hour,
)
from replicast.sim.workload import Session, Turn

FIVE_RUNS = Task(1_510_243, 30_359)
rates = st.floats(0.01, 1e6)


def test_worked_numbers_of_the_blended_lens() -> None:
    assert blended_usd_per_token(6.61, 12202.19, 145.33) == pytest.approx(1.48703e-7, rel=1e-5)
    assert blended_usd_per_task(blended_usd_per_token(6.61, 12202.19, 145.33), FIVE_RUNS) == pytest.approx(
        0.23, abs=0.005
    )


def test_worked_numbers_of_both_lenses() -> None:
    got = cost(5.1428, 28143.88, 322.68, FIVE_RUNS)
    assert got.blended_usd_per_1m_tokens == pytest.approx(0.05018, rel=1e-3)
    assert got.blended_usd_per_task == pytest.approx(0.0773, abs=5e-5)
    assert got.split_usd_per_task == pytest.approx(0.0792, abs=5e-5)
    assert cost(3.465, 28143.88, 322.68, FIVE_RUNS).blended_usd_per_task == pytest.approx(0.0521, abs=5e-5)


def test_split_prices_of_a_published_level() -> None:
    price = split_usd_per_token(5.1428, 10431.05, 115.32)
    assert price.prompt_usd_per_token == pytest.approx(1.31152430706337e-07)
    assert price.output_usd_per_token == pytest.approx(5.24609722825348e-07)


def test_developer_hours() -> None:
    assert usd_per_developer_hour(3.004, 5) == pytest.approx(0.6008)
    assert usd_per_developer_hour(7.912, 30) == pytest.approx(0.2637, abs=5e-5)
    assert fleet_usd_per_hour(20, 3.004) == pytest.approx(60.08)
    assert fleet_usd_per_hour(4, 7.912, replicas_per_box=8) == pytest.approx(63.296)
    assert [boxes(n, 8) for n in (0, 1, 8, 9)] == [0, 1, 1, 2]


@given(rates, rates, rates)
def test_both_lenses_spend_the_whole_price(price: float, prompt: float, output: float) -> None:
    split = split_usd_per_token(price, prompt, output)
    per_second = price / 3600
    assert split.prompt_usd_per_token * prompt + split.output_usd_per_token * output == pytest.approx(
        per_second
    )
    assert blended_usd_per_token(price, prompt, output) * (prompt + output) == pytest.approx(per_second)


def test_nothing_processed_costs_per_hour_only() -> None:
    got = cost(3.0, 0.0, 0.0, FIVE_RUNS)
    assert got.usd_per_hour == 3.0
    assert got.blended_usd_per_1m_tokens is None
    assert got.blended_usd_per_task is None


def test_mean_session_of_a_trace() -> None:
    def turn(prompt: int, output: int) -> Turn:
        return Turn("t", "main", (), 0.0, (), (), prompt, output)

    sessions = [Session("a", (turn(10, 1), turn(30, 2))), Session("b", (turn(20, 5),))]
    assert mean_session(sessions) == Task(30, 4)
    assert mean_session(sessions, max_model_len=30) == Task(15, 3)
    assert mean_session([]) is None


@pytest.mark.parametrize("text", ["", "5", "5:", "a:b", "-1:3", "1:2:3", "0:0", "1.5:2", "nan:1"])
def test_a_task_that_is_none(text: str) -> None:
    with pytest.raises(InputError):
        parse_task(text)


@pytest.mark.parametrize("price", [-1.0, float("nan"), float("inf")])
def test_a_price_that_is_none(price: float) -> None:
    with pytest.raises(InputError, match="price"):
        cost(price, 1.0, 1.0)
