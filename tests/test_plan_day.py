"""A day and a loss beside a plan: who is there, what is paid, what is missed."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from replicast.cli import main
from replicast.sim.errors import InputError
from replicast.sim.fleet.operations import Lifetime
from replicast.sim.fleet.records import Records, RecordStatus
from replicast.sim.planning.day import DayComparison, ScalingRule, compare_day, paid_steps
from replicast.sim.planning.failure import simulate_failure
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.plan import make_plan
from replicast.sim.planning.rows import Money, PlanRow
from replicast.sim.planning.turn_waits import turn_waits
from replicast.sim.report.day import day_figure, failure_figure, operations_text
from replicast.traces.canonical_io import write_canonical
from replicast.traces.developers import _spans
from replicast.traces.synth import generate
from replicast.traces.synth_fit import PRESETS

sys.path.insert(0, str(Path(__file__).parent))

import planning_cases

SHARES = tuple([0.1] * 8 + [0.5, 1.0, 1.0, 0.6, 0.4, 0.8] + [0.2] * 10)
MONEY = Money(2.0, box=2)


@pytest.fixture(scope="module")
def row() -> PlanRow:
    with Runner(planning_cases.scenario(live=8)) as runner:
        plan = make_plan(runner, MONEY, replications=4, counts=[2])
    return plan.rows[0]


@pytest.fixture(scope="module")
def day(row: PlanRow) -> DayComparison:
    study = planning_cases.scenario(live=8).study()
    return compare_day(study, row, ScalingRule(), SHARES, MONEY, days=2)


def test_a_day_adds_up(day: DayComparison) -> None:
    fixed, scaled = day.fixed, day.scaled
    assert fixed.replica_hours == pytest.approx(48.0)
    assert fixed.usd_per_day == pytest.approx(24 * 2 * 2.0)
    assert scaled.replica_hours < fixed.replica_hours
    assert scaled.usd_per_day is not None
    assert scaled.usd_per_day == pytest.approx(96.0)  # a box of two is paid as long as one replica is there
    assert scaled.most_replicas <= 2
    for fleet in (fixed, scaled):
        assert [hour.live_sessions for hour in fleet.hours] == [round(8 * share) for share in SHARES]
        assert fleet.hours_missed == sum(hour.missed_days for hour in fleet.hours) / 2
        assert all(0 <= hour.missed_days <= 2 for hour in fleet.hours)
        assert fleet.requests > 0
    busy = [hour.requests / max(hour.live_sessions, 1) for hour in fixed.hours if hour.live_sessions > 3]
    assert max(busy) < 3 * min(busy)


def test_a_day_is_the_same_again(row: PlanRow, day: DayComparison) -> None:
    again = compare_day(planning_cases.scenario(live=8).study(), row, ScalingRule(), SHARES, MONEY, days=2)
    assert again == day


def test_hours_are_missed_with_too_few(row: PlanRow) -> None:
    study = planning_cases.scenario(live=8, slo=("ttft:p90<1ms",)).study()
    tight = compare_day(study, row, ScalingRule(), SHARES, Money(), days=1)
    asked = sum(hour.requests > 0 for hour in tight.fixed.hours)
    assert tight.fixed.hours_missed == tight.scaled.hours_missed == asked
    assert tight.fixed.late_share == 1.0
    assert tight.fixed.usd_per_day is None


def test_somebody_is_there_however_few() -> None:
    load = planning_cases.scenario(live=1).load
    assert load.draw_day(0, [0.1] * 12 + [0.2] + [0.1] * 11).live == (0,) * 12 + (1,) + (0,) * 11


def test_who_is_there_by_hour() -> None:
    assert _spans([1, 2, 2, 0, 1]) == [(0, 0, 3), (1, 1, 3), (4, 0, 5)]
    assert _spans([0, 0]) == []


@given(
    st.lists(st.tuples(st.floats(0, 50), st.floats(0, 50)).map(sorted), max_size=8),
    st.floats(0, 20),
    st.floats(21, 60),
)
def test_steps_hold_what_lifetimes_hold(spans: list[list[float]], start_s: float, end_s: float) -> None:
    lives = [Lifetime(a, a, b, b, "gone") for a, b in spans]
    steps = paid_steps(lives, start_s, end_s)
    assert sum(hours for _, hours in steps) == pytest.approx((end_s - start_s) / 3600)
    held = sum(max(min(b, end_s) - max(a, start_s), 0.0) for a, b in spans) / 3600
    assert sum(count * hours for count, hours in steps) == pytest.approx(held)


def test_thresholds_come_from_the_planned_hour(row: PlanRow) -> None:
    rule = ScalingRule().resolved(row)
    held = float(np.mean([(run.mean_running + run.mean_waiting) / 2 for run in row.runs]))
    assert rule.up == pytest.approx(held, rel=0.01)
    assert rule.down == pytest.approx(0.8 * rule.up)
    assert rule.max_replicas == 2
    given = ScalingRule("waiting", up=3.0, max_replicas=5).resolved(row)
    assert (given.up, given.down, given.max_replicas) == (3.0, pytest.approx(2.4), 5)
    with pytest.raises(InputError):
        ScalingRule(up=1.0, down=2.0).resolved(row)


def test_a_loss_hurts_and_is_over_sooner_with_one_more() -> None:
    study = planning_cases.scenario(live=8, slo=("ttft:p90<6s",)).study()
    failure = simulate_failure(study, 2, replaced_after_s=300.0, replications=5)
    planned, more = failure.rows
    assert (planned.replicas, more.replicas) == (2, 3)
    assert planned.retried > 0
    for row in failure.rows:
        assert row.before.start_s == -1200.0
        assert row.phases[-1].end_s == pytest.approx(2400.0)
        assert sum(bin.requests for bin in row.bins) == pytest.approx(sum(p.requests for p in row.phases))
    worst = [row.during.slo_values_s[0] for row in failure.rows]
    assert worst[0] is not None
    assert worst[1] is not None
    assert worst[0] > worst[1]
    assert failure_figure(failure).axes
    assert "sent again" in operations_text(None, failure)


def test_a_turn_that_is_asked_again_waits_from_its_first_request() -> None:
    lost, finished = RecordStatus.ABORTED, RecordStatus.FINISHED
    parts = ("front_end_s", "input_wait_s", "prefill_s", "delivery_s")
    columns = {
        "session_index": np.array([0, 1, 0, 1]), "turn_index": np.array([0, 0, 0, 1]),
        "status": np.array([lost, finished, finished, lost]),
        "arrival_s": np.array([10.0, 11.0, 15.0, 16.0]), "output_tokens": np.array([0, 5, 5, 0]),
        "decode_s": np.array([np.nan, 4.0, 4.0, np.nan]), "queue_s": np.zeros(4),
    } | {name: np.array([np.nan, 0.5, 0.5, np.nan]) for name in parts}  # fmt: skip
    records = Records((), columns, 4, (0.0, 100.0))
    waits = turn_waits("ttft", records)
    assert waits.asked_s.tolist() == [11.0, 10.0, 16.0]
    assert waits.value_s.tolist() == [2.0, 7.0, np.inf]
    assert turn_waits("tpot", records).value_s.tolist() == [1.0, 1.0]
    assert waits.between(10.0, 11.0).tolist() == [7.0]


def test_figures_and_words(day: DayComparison) -> None:
    assert len(day_figure(day).axes) == 3
    text = operations_text(day, None)
    assert "replica-hours" in text
    assert text.count(":00 ") >= 24


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    spec = replace(PRESETS["fresh"], turns_scale=0.1, prompt_scale=0.3, output_scale=0.1, human_gap_scale=0.1)
    path = tmp_path_factory.mktemp("trace") / "sessions.jsonl.gz"
    write_canonical(generate(spec, 9, 1), path)
    return path


FEW = ["--profile", "qwen3.8-27b-l40s", "--developers", "6", "--replications", "3", "--no-sensitivity"]


def replicast(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(main, [str(argument) for argument in arguments])
    return done.exit_code, done.output


def test_the_command_answers_first_and_writes_everything(trace: Path, tmp_path: Path) -> None:
    day = ["--day", "--days", "1", "--fail", "--scale-up", "2", "--scale-down", "1", "--start-up", "60"]
    code, output = replicast(
        "plan", trace, *FEW, "--slo", "ttft:p90<60s", "--counts", "1,2", "--price", "3", *day,
        "--out", tmp_path, "--no-cliff",
    )  # fmt: skip
    assert code == 0, output
    lines = (tmp_path / "plan.txt").read_text().splitlines()
    assert [line.partition(" ")[0] for line in lines[:3]] == ["Answer:", "A", "One"]
    document = json.loads((tmp_path / "plan.json").read_text())
    assert document["schema"] == "replicast/plan/1"
    assert [fleet["name"] for fleet in document["day"]["fleets"]] == ["fixed", "autoscaled"]
    assert len(document["day"]["fleets"][0]["hours"]) == 24
    assert document["day"]["autoscaling"]["start_up_s"] == 60.0
    assert document["failure"]["replaced_after_s"] == 60.0
    page = (tmp_path / "report.html").read_text()
    assert "A replica lost at the peak" in page
    assert (tmp_path / "day.svg").exists()
    assert (tmp_path / "failure.png").exists()


def test_options_without_their_question_are_refused(trace: Path) -> None:
    for options in (["--scale-up", "2"], ["--start-up", "60"], ["--days", "2"]):
        code, output = replicast("plan", trace, *FEW, *options)
        assert code == 2
        assert "needs --day" in output
    code, output = replicast(
        "plan", trace, "--profile", "qwen3.8-27b-l40s", "--max-developers", "--replicas", "1", "--day"
    )
    assert code == 2


def test_without_an_answer_there_is_no_day(trace: Path) -> None:
    code, output = replicast("plan", trace, *FEW, "--slo", "ttft:p90<1ms", "--counts", "1", "--day", "--fail")
    assert code == 3
    assert "no day was simulated" in output
    assert "no loss of a replica was simulated" in output
