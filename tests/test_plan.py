"""Plans: SLO grammar, stopping and coverage, search, costs, bound by hand, and same results however run."""

from __future__ import annotations

import json
import math
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from replicast.sim.errors import InputError
from replicast.sim.planning.bounds import hand_bound
from replicast.sim.planning.changes import Change
from replicast.sim.planning.parallel import Runner, Scale
from replicast.sim.planning.plan import Judge, extrapolated, make_plan, most_developers
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.replications import Task
from replicast.sim.planning.rows import Money
from replicast.sim.planning.scenario import ModelError, check_horizon
from replicast.sim.planning.search import largest, smallest
from replicast.sim.planning.sensitivity import assumptions, sensitivity
from replicast.sim.planning.slo import SLO, parse_slo, parse_slos
from replicast.sim.planning.stopping import average, judge, stopping_rule, together, typical
from replicast.sim.report.plan import answer, developers_text, plan_object, plan_text

sys.path.insert(0, str(Path(__file__).parent))

import planning_cases as cases

# SLO grammar


@pytest.mark.parametrize(
    ("text", "slo"),
    [
        ("ttft:p90<10s", SLO("ttft", 0.9, 10.0)),
        (" TPOT:P50 <= 80ms ", SLO("tpot", 0.5, 0.08)),
        ("e2e:mean<1.5min", SLO("e2el", None, 90.0)),
        ("queue:p99.9<2s", SLO("queue", pytest.approx(0.999), 2.0)),
    ],
)
def test_slos(text: str, slo: SLO) -> None:
    assert parse_slo(text) == slo
    assert parse_slo(str(parse_slo(text))) == parse_slo(text)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ttft<10s", "metric:quantile"),
        ("speed:p90<10s", "unknown metric"),
        ("ttft:p90<10", "without a unit"),
        ("ttft:p90<10h", "unknown unit"),
        ("ttft:p0<10s", "between p0 and p100"),
        ("ttft:p100<10s", "between p0 and p100"),
        ("ttft:p90<0s", "not above 0"),
        ("ttft:p9.9.9<1s", "not a number"),
    ],
)
def test_bad_slos(text: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        parse_slo(text)


def test_no_slo_or_the_same_twice() -> None:
    with pytest.raises(InputError):
        parse_slos([])
    with pytest.raises(InputError, match="twice"):
        parse_slos(["ttft:p90<1s", "ttft:p90<2s"])


# Stopping


@given(st.integers(3, 60), st.floats(0.001, 0.5))
def test_looks_spend_alpha_in_all(most: int, alpha: float) -> None:
    rule = stopping_rule(most, alpha)
    assert math.fsum(rule.alphas) == pytest.approx(alpha)
    assert rule.looks == tuple(sorted(set(rule.looks)))
    assert rule.most == most


@settings(deadline=None)  # scipy loads in it
@given(st.lists(st.floats(0.01, 100), min_size=2, max_size=20), st.floats(0.01, 50))
def test_verdicts_follow_the_interval(values: list[float], limit: float) -> None:
    estimate = typical(values, 0.05)
    assert estimate.low is not None
    assert estimate.high is not None
    assert estimate.low <= (estimate.value or 0.0) * (1 + 1e-9)
    verdict = judge(estimate, limit)
    assert (verdict == "inconclusive") == (estimate.low < limit <= estimate.high)


def test_an_infinite_hour_fails_rather_than_vanishes() -> None:
    assert judge(typical([math.inf] * 4, 0.01), 1000.0) == "fails"
    assert typical([1.0, math.nan], 0.05).n == 1
    assert together(["meets", "inconclusive"]) == "inconclusive"
    assert together(["meets", "inconclusive", "fails"]) == "fails"


def test_wrong_clear_verdicts_are_rare_though_one_looks_often() -> None:
    """The limit is the true value, so every clear verdict is wrong: at most alpha of them."""
    rng = np.random.default_rng(1)
    rule = stopping_rule(20, 0.1)
    wrong = 0
    for _ in range(1000):
        hours = np.exp(rng.normal(0.0, 0.4, 20)).tolist()
        wrong += any(judge(typical(hours[:n], rule.alpha(n)), 1.0) != "inconclusive" for n in rule.looks)
    assert wrong / 1000 < 0.1


def test_intervals_cover_the_truth() -> None:
    """Disjoint sets of 6 hours of the simulator against all 180: 90 % intervals.

    `benchmarks/interval_coverage.py` does it with 200 sets and a truth of its own.
    """
    with Runner(cases.scenario(4)) as runner:
        hours = cases.ttft_p90(runner, 1, 180)
    truth = typical(hours, 0.1).value
    assert truth is not None
    sets = [typical(hours[i : i + 6], 0.1) for i in range(0, 180, 6)]
    covered = sum(e.low <= truth <= e.high for e in sets if e.low is not None and e.high is not None)
    assert covered / len(sets) >= 0.78  # nominal .9 less two standard errors of 30 sets


# Search


@given(st.integers(1, 200), st.integers(1, 250), st.integers(1, 200))
def test_bisection_equals_exhaustive_search(first: int, guess: int, most: int) -> None:
    asked: list[int] = []

    def meets(count: int) -> bool:
        assert 1 <= count <= most
        asked.append(count)
        return count >= first

    found = smallest(meets, guess, most)
    assert found == next((k for k in range(1, most + 1) if k >= first), None)
    assert len(asked) == len(dict.fromkeys(asked))
    if found is not None and found > 1:
        assert found - 1 in asked


@given(st.integers(0, 200), st.integers(1, 250), st.integers(1, 200))
def test_largest_equals_exhaustive_search(last: int, guess: int, most: int) -> None:
    assert largest(lambda n: n <= last, guess, most) == max(
        (n for n in range(1, most + 1) if n <= last), default=0
    )


def test_plan_equals_judging_every_count() -> None:
    for limit in ("4.5s", "3.05s", "2s"):
        scenario = cases.scenario(6, (f"ttft:p90<{limit}",))
        with Runner(scenario) as runner:
            plan = make_plan(runner, Money(), replications=9)
            every = make_plan(runner, Money(), replications=9, counts=range(1, 7))
        assert plan.replicas == every.replicas
        assert [row for row in every.rows if row in plan.rows] == list(plan.rows)


# Plans


@pytest.fixture(scope="module")
def plan_of_eight():  # type: ignore[no-untyped-def]
    with Runner(cases.scenario(8, ("ttft:p90<4s", "tpot:p50<200ms"))) as runner:
        plan = make_plan(runner, Money(2.0, box=4, spare=1))
        asked = assumptions(runner.scenario.study().engine, 1.0, subagents=False)
        rows = sensitivity(runner, plan.replicas or 1, asked)
    return plan, rows


def test_answer_and_neighbours(plan_of_eight) -> None:  # type: ignore[no-untyped-def]
    plan, _ = plan_of_eight
    assert (plan.replicas, plan.exit_code) == (2, 0)
    assert [(row.replicas, row.verdict) for row in plan.rows] == [(1, "fails"), (2, "meets"), (3, "meets")]
    assert plan.rows[0].skipped == plan.rule.most - plan.rows[0].replications
    first = answer(plan)
    assert first.startswith(
        "Answer: 2 replicas (4 paid, 1 box) for 8 developers, $8.00/h, $1.00/developer-hour"
    )
    assert "1 fails" in first


def test_costs_by_hand(plan_of_eight) -> None:  # type: ignore[no-untyped-def]
    plan, _ = plan_of_eight
    row = plan.rows[-1]  # 3 and a spare: one box of 4
    assert (row.paid_replicas, row.boxes, row.usd_per_hour) == (4, 1, 8.0)
    tokens = (row.prompt_tokens_per_s.value or 0) + (row.generated_tokens_per_s.value or 0)
    assert row.usd_per_1m_tokens == pytest.approx(8 / 3600 / tokens * 1e6)


def test_text_and_document(plan_of_eight) -> None:  # type: ignore[no-untyped-def]
    plan, rows = plan_of_eight
    text = plan_text(plan, ["an assumption"], rows)
    assert text.splitlines()[2] == "an assumption"
    assert "What would change the answer" in text
    assert "Check by hand" in text
    found = json.loads(json.dumps(plan_object(plan, rows), default=str))
    assert found["replicas_needed"] == 2
    assert found["rows"][0]["runs"][0]["replicas"] == 1


def test_no_count_meets() -> None:
    with Runner(cases.scenario(3, ("ttft:p90<1s",))) as runner:
        plan = make_plan(runner, Money(), replications=4)
    assert (plan.replicas, plan.exit_code) == (None, 3)
    assert plan.rows[-1].replicas == 3
    assert "Answer: none; 3 replicas (one for each live session) fail ttft:p90<1s" in plan_text(plan, [], [])


def test_inconclusive() -> None:
    scenario = cases.scenario(4)
    with Runner(scenario) as runner:
        truth = typical(cases.ttft_p90(runner, 1, 40), 0.05).value
    limit = SLO("ttft", 0.9, truth or 0.0)
    with Runner(replace(scenario, slos=(limit,))) as runner:
        plan = make_plan(runner, Money(), replications=4, counts=[1])
    assert (plan.replicas, plan.exit_code) == (None, 4)
    assert "not clear" in answer(plan)


def test_most_developers() -> None:
    with Runner(cases.scenario(1, ("ttft:p90<8s",))) as runner:
        most = most_developers(runner, 1, Money(3.0), replications=6)
        counsel = Judge(runner, Money(), 6)
        at = counsel.row(1, (Change("developers", str(most.developers)),))
        above = counsel.row(1, (Change("developers", str(most.developers + most.step)),))
    assert (at.verdict, above.verdict != "meets") == ("meets", True)
    assert f"at most {most.developers} developers on 1 replica" in developers_text(most, [])


def test_too_few_replications_and_impossible_money() -> None:
    with Runner(cases.scenario()) as runner, pytest.raises(InputError, match="no interval"):
        make_plan(runner, Money(), replications=2)
    with pytest.raises(InputError):
        Money(1.0, box=0)
    with pytest.raises(InputError):
        Money(1.0, spare=-1)
    with pytest.raises(InputError, match="an hour or more"):
        check_horizon(replace(cases.scenario().fleet, horizon_s=1000.0))


# Runs


def test_same_results_in_processes_and_from_a_journal(tmp_path: Path) -> None:
    tasks = [Task((), replicas, number) for replicas in (1, 2) for number in range(3)]
    journal = tmp_path / "runs.jsonl"
    with Runner(cases.scenario(), journal=journal) as runner:
        alone = runner.run_all(tasks)
    with Runner(cases.scenario(), Scale(jobs=2)) as runner:
        assert runner.run_all(tasks) == alone
        assert runner.run_all(tasks[::-1]) == alone[::-1]
        assert runner.num_run == 6
    half = "".join(journal.read_text().splitlines(keepends=True)[:3]) + '{"cut off'
    journal.write_text(half)
    with Runner(cases.scenario(), journal=journal) as runner:
        assert runner.run_all(tasks) == alone
        assert (runner.num_run, runner.num_taken_over) == (3, 3)
    rows = journal.read_text().splitlines(keepends=True)
    damaged = ["[1, 2]\n", "5\n", rows[0].replace('"requests": ', '"requests": "many", "was": ')]
    journal.write_text("".join([*damaged, *rows[1:]]))
    with Runner(cases.scenario(), journal=journal) as runner:
        assert runner.run_all(tasks) == alone
        assert (runner.num_run, runner.num_taken_over) == (1, 5), "what followed a torn line is found again"
    with Runner(cases.scenario(seed=6), journal=journal) as runner:
        runner.run_all(tasks[:1])
        assert runner.num_taken_over == 0


@pytest.mark.parametrize("backend", ["dask", "ray"])
def test_same_results_on_a_cluster(backend: str) -> None:
    pytest.importorskip("joblib")
    pytest.importorskip("distributed" if backend == "dask" else "ray")
    tasks = [Task((), 1, number) for number in range(4)]
    with Runner(cases.scenario()) as runner:
        alone = runner.run_all(tasks)
    if backend == "ray":
        with Runner(cases.scenario(), Scale(backend="ray")) as runner:
            assert runner.run_all(tasks) == alone
        return
    from distributed import LocalCluster

    with (
        LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        Runner(cases.scenario(), Scale(backend="dask", scheduler=cluster.scheduler_address)) as runner,
    ):
        assert runner.run_all(tasks) == alone


def test_unknown_backend_and_no_jobs() -> None:
    with pytest.raises(InputError):
        Runner(cases.scenario(), Scale(jobs=0))
    with pytest.raises(InputError):
        Runner(cases.scenario(), Scale(backend="slurm"))  # type: ignore[arg-type]


def test_common_random_numbers_across_counts() -> None:
    """The same requests reach every fleet, so an hour asks about as much of each."""
    with Runner(cases.scenario()) as runner:
        runs = runner.run_all([Task((), k, 0) for k in (2, 3, 4)])
    assert max(run.requests for run in runs) - min(run.requests for run in runs) < 0.02 * runs[0].requests


def test_model_error_widens_and_repeats() -> None:
    error = ModelError(("compute_per_token",), ((0.04,),), (-1.0,), (1.0,))
    exact = cases.scenario()
    step = exact.step_time
    assert error.draw(step, 1, 5) == error.draw(step, 1, 5)
    assert error.draw(step, 1, 5) != error.draw(step, 1, 6)
    ends = ModelError(("compute_per_token",), ((100.0,),), (-0.1,), (0.1,)).draw(step, 1, 0)
    assert 0.9 < ends.compute_per_token / step.compute_per_token < 1.11
    wide, narrow = [], []
    for scenario, out in ((replace(exact, model_error=error), wide), (exact, narrow)):
        with Runner(scenario) as runner:
            out += cases.ttft_p90(runner, 2, 12)
    assert np.std(np.log(wide)) > 2 * np.std(np.log(narrow))


def test_bound_by_hand() -> None:
    """One session of one turn: D is its prefill, R + Z its prefill and decode."""
    scenario = cases.scenario()
    study = scenario.study()
    session = study.load.sessions[0]
    alone = replace(session, turns=session.turns[:1])
    bound = hand_bound([alone], 100, study.engine, study.step_time, study.fleet.front_end)
    turn = alone.turns[0]
    compute_s = 0.003 * (turn.num_prompt_tokens + turn.num_output_tokens - 1)
    assert bound.demand_s == pytest.approx(compute_s)
    cycle_s = 0.003 * turn.num_prompt_tokens + 0.02 * (turn.num_output_tokens - 1)
    assert bound.cycle_s == pytest.approx(cycle_s)
    assert bound.replicas == math.ceil(100 * compute_s / cycle_s)


def test_no_plan_beats_the_bound() -> None:
    scenario = cases.scenario(40, ("ttft:p90<30s",))
    with Runner(scenario) as runner:
        plan = make_plan(runner, Money(), replications=4)
        rates = [run.requests_per_hour / 3600 for row in plan.rows for run in row.runs]
    assert plan.replicas is not None
    assert plan.replicas >= plan.bound.replicas
    assert max(rates) < 1.15 * plan.bound.requests_per_s  # sessions are entered where long gaps are


def test_extrapolation_is_named(plan_of_eight) -> None:  # type: ignore[no-untyped-def]
    plan, _ = plan_of_eight
    found = extrapolated(plan.rows, plan.replicas, {"concurrency": (1, 3), "unknown": (1, 2)})
    assert [code for code, _ in found] == ["extrapolated", "extrapolated"]
    assert "concurrency is 8 with 1 replica;" in found[0][1]


def test_averages() -> None:
    assert average([1.0, math.inf, 3.0], 0.05).value == 2.0
    assert average([], 0.05) == Estimate(None, None, None, 0)
