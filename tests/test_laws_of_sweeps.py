"""Each law finds the fault that it is for, and clean sweeps raise no alarm."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

sys.path.insert(0, str(Path(__file__).parent))

from planted_faults import FAULTS, sub_agents, with_level
from replicast.calibration.check import check_sweep
from replicast.calibration.laws.cache_causes import CacheLoad, hit_rate
from replicast.calibration.laws.findings import Finding
from replicast.calibration.laws.replication import cause, differences
from replicast.calibration.sweep import Gauge, Given, Histogram, Sweep, SweepLevel
from sweep_bed import make_sweep, random_bed, summary_of

CLEAN = 8


def found(sweep: Sweep, law: int, severity: str, parallel: int | None = None) -> list[Finding]:
    """Findings of one law with one severity."""
    result = check_sweep(sweep, parallel_per_session=parallel)
    return [f for f in result.findings if f.law == law and f.severity == severity]


@pytest.mark.parametrize("name", FAULTS)
def test_planted_fault_is_found_by_its_law(name: str) -> None:
    fault = FAULTS[name]
    result = check_sweep(fault.plant(random_bed(1000), 0))
    right = [f for f in result.findings if f.law in fault.laws and f.severity in ("fail", fault.severity)]
    assert right, [f.text for f in result.findings]
    assert result.verdict != "usable"
    assert all(f.evidence and f.remedy for f in right if f.severity == "fail"), "figures and a way out"


def test_stale_backlog_is_not_usable_even_without_the_law_of_the_baseline() -> None:
    for name in ("stale backlog", "stale backlog without baseline", "stale queue"):
        sweep = FAULTS[name].plant(random_bed(1000), 0)
        for source in (sweep, summary_of(sweep)):
            assert check_sweep(source, without=(1,)).verdict == "not-usable", name


def test_sub_agents_are_no_fault_and_are_told() -> None:
    result = check_sweep(sub_agents(random_bed(1000), 0))
    assert result.verdict == "usable"
    notes = [f for f in result.of("note") if f.law == 2]
    assert dict(notes[0].evidence)["parallel_per_session_inferred"] >= 5


@pytest.mark.parametrize("seed", range(CLEAN))
def test_clean_sweeps_raise_no_alarm(seed: int) -> None:
    """tests/false_alarms.py runs 200 of them."""
    sweep = make_sweep(random_bed(seed), seed)
    for source in (sweep, summary_of(sweep)):
        result = check_sweep(source)
        assert result.verdict == "usable", [f.text for f in result.findings if f.severity != "note"]


def level(c: int, ran: float, waited: float = 0.0, **more: object) -> SweepLevel:
    """A level of a summary, whose window is all load."""
    values: dict[str, object] = {
        "window_s": 600.0,
        "load_s": 600.0,
        "prompt_tokens": 6e6,
        "generated_tokens": 6e4,
        "running": Gauge(ran, round(ran + 0.5)),
        "waiting": Gauge(waited, round(waited + 0.5)),
        "ttft": Histogram(given_mean=1.0),
        "tpot": Histogram(given_mean=0.008 * c),
    } | more
    return SweepLevel(concurrency=c, name=f"m_c{c}", **values)  # type: ignore[arg-type]


def sweep_of(*levels: SweepLevel, **more: object) -> Sweep:
    return Sweep(source="s", format="performance-summary", levels=levels, **more)  # type: ignore[arg-type]


# Law 1


def test_a_missing_baseline_alone_is_usable_with_care() -> None:
    result = check_sweep(sweep_of(level(2, 1.9), level(5, 4.8), level(10, 9.7)))
    assert result.verdict == "usable-with-care"
    assert [f.law for f in result.of("warn")] == [1]


def test_a_baseline_may_wait_for_its_own_requests_only() -> None:
    def alone(queue: float, peak: float) -> SweepLevel:
        return level(
            1,
            0.9,
            running=Gauge(min(peak, 3.0), peak),
            waiting=Gauge(0.0, 0.0),
            queue=Histogram(given_mean=queue),
            prefill=Histogram(given_mean=4.0),
        )

    rest = (level(5, 4.8), level(10, 9.7))
    assert found(sweep_of(alone(2.0, 1.0), *rest), 1, "fail"), "one request cannot wait for itself"
    assert not found(sweep_of(alone(2.0, 7.0), *rest), 1, "fail"), "seven can: (7 - 1)/2 prefills"
    assert found(sweep_of(alone(6.0, 7.0), *rest), 1, "warn"), "but then c=1 is no baseline"


def test_long_pure_prefill_alone_is_no_fault() -> None:
    alone = level(
        1,
        0.9,
        ttft=Histogram(given_mean=14.9),
        queue=Histogram(given_mean=0.0),
        prefill=Histogram(given_mean=14.7),
    )
    result = check_sweep(sweep_of(alone, level(5, 4.8), level(10, 9.7)))
    assert result.verdict == "usable"
    assert any("No fault" in f.text for f in result.of("note"))


# Law 2


@settings(max_examples=60, deadline=None)
@given(
    per_session=st.floats(0.3, 6.0),
    loads=st.lists(st.integers(1, 60), min_size=2, max_size=7, unique=True),
)
def test_requests_in_proportion_to_sessions_always_pass(per_session: float, loads: list[int]) -> None:
    levels = [level(c, 0.8 * per_session * c, 0.2 * per_session * c) for c in sorted(loads)]
    assert not found(sweep_of(*levels), 2, "fail")


@settings(max_examples=60, deadline=None)
@given(
    held=st.floats(20.0, 200.0),
    wobble=st.lists(st.floats(-0.1, 0.1), min_size=4, max_size=7),
)
def test_requests_that_do_not_depend_on_sessions_never_pass(held: float, wobble: list[float]) -> None:
    loads = (2, 5, 7, 10, 15, 20, 30)
    levels = [
        level(c, 0.3 * held * (1 + w), 0.7 * held * (1 + w)) for c, w in zip(loads, wobble, strict=False)
    ]
    assert found(sweep_of(*levels), 2, "fail")


def test_told_parallelism_is_a_bound() -> None:
    levels = (
        level(1, 0.9),
        level(5, 7.5, running=Gauge(7.5, 10.0)),
        level(10, 9.7, running=Gauge(9.7, 11.0)),
    )
    result = check_sweep(sweep_of(*levels), parallel_per_session=1)
    assert [(f.severity, f.level) for f in result.findings if f.law == 2] == [("fail", 1), ("warn", 2)]
    assert not found(sweep_of(*levels), 2, "fail"), "not told: other sessions may have done more at once"
    assert not found(sweep_of(*levels), 2, "fail", parallel=2)


# Law 3


def counted(waiting: float, queue_sum: float) -> SweepLevel:
    edges = (0.5, 1.0, 5.0)
    queue = Histogram(sum=queue_sum, count=100.0, edges=edges, counts=(20.0, 30.0, 50.0, 0.0))
    return level(
        5,
        4.0,
        waiting,
        queue=queue,
        first_tokens=100.0,
        requests_finished=100.0,
        scrapes=601,
        waiting=Gauge(waiting, 6.0),
        tpot=None,
    )


def test_waiting_belongs_to_requests() -> None:
    others = (level(1, 0.9), level(10, 9.7))
    assert not found(sweep_of(counted(0.5, 300.0), *others), 3, "fail")
    assert found(sweep_of(counted(5.0, 300.0), *others), 3, "fail"), "2,700 s of nobody"
    assert found(sweep_of(counted(0.1, 300.0), *others), 3, "fail"), "240 s from before the window"


def test_parts_are_no_more_than_the_whole() -> None:
    """Finished requests are some of those that got a first token."""
    others = (level(1, 0.9), level(10, 9.7))

    def of(ttft_sum: float) -> SweepLevel:
        edges = (0.5, 1.0, 5.0)
        ttft = Histogram(sum=ttft_sum, count=100.0, edges=edges, counts=(20.0, 30.0, 50.0, 0.0))
        return replace(counted(0.5, 300.0), ttft=ttft, prefill=Histogram(sum=100.0, count=100.0))

    assert not found(sweep_of(of(420.0), *others), 3, "fail")
    assert not found(sweep_of(of(380.0), *others), 3, "fail"), "some began before the window"
    assert found(sweep_of(of(90.0), *others), 3, "fail"), "310 s from before it"


# Laws 5 to 9


def test_prompts_whose_outputs_never_ended() -> None:
    much = level(5, 4.8, prompt_tokens=2e7)
    sweep = sweep_of(level(1, 0.9), much, level(10, 9.7), task_input_tokens=1.5e6, task_output_tokens=3e4)
    assert [f.level for f in found(sweep, 5, "warn")] == [1]


def test_costs_are_shown_both_ways() -> None:
    levels = [replace(level(c, 0.8 * c), window_s=720.0) for c in (1, 5, 10)]
    sweep = sweep_of(*levels, given=Given(price_usd_per_hour=10.0))
    evidence = dict(found(sweep, 6, "note")[0].evidence)
    assert evidence["usd_per_1m_processed"] == pytest.approx(1.2 * evidence["usd_per_1m_processed_in_load"])


def test_the_hit_rate_of_the_counters_and_the_true_one() -> None:
    queries = replace(
        level(5, 4.8), cached_tokens=4.5e6, first_tokens=100.0, prefix_queries=2e7, prefix_hits=4.5e6
    )
    evidence = dict(found(sweep_of(level(1, 0.9), queries), 7, "note")[0].evidence)
    assert evidence["hit_rate"] == pytest.approx(0.75)
    assert evidence["hits_over_queries"] == pytest.approx(0.225)


def test_too_few_requests() -> None:
    few = replace(level(1, 0.9), first_tokens=4.0, prompt_tokens=2e5, generated_tokens=2e3)
    assert [f.level for f in found(sweep_of(few, level(5, 4.8)), 8, "warn")] == [0]


def test_time_per_token_that_does_not_react() -> None:
    flat = [level(c, 0.9 * c, tpot=Histogram(given_mean=0.27 + 0.001 * c)) for c in (2, 5, 10, 20)]
    assert found(sweep_of(*flat), 9, "fail")
    bound = [level(c, 0.9 * c, tpot=Histogram(given_mean=0.06)) for c in (2, 5, 10, 20)]
    assert not found(sweep_of(*bound), 9, "fail"), "weights alone can take that long"


def test_cached_tokens_counted_as_computed() -> None:
    told = Given(model="gemma-4-31b", gpu="L40S", tensor_parallel_size=1)
    fast = replace(level(1, 0.9), prompt_tokens=6e7, cached_tokens=0.0)
    assert found(sweep_of(fast, level(5, 4.8), given=told), 9, "fail"), (
        "100,000 tokens/s of a 31B on one L40S"
    )


# Law 10


@settings(max_examples=20, deadline=None)
@given(sessions=st.integers(2, 12), prompt=st.floats(40_000, 100_000), seed=st.integers(0, 1000))
def test_causes_of_a_low_hit_rate_differ(sessions: int, prompt: float, seed: int) -> None:
    roomy = CacheLoad(sessions, 30, prompt, 0.03 * prompt, 4.0 * sessions * prompt, 8_192.0)
    tight = roomy._replace(pool_tokens=0.3 * sessions * prompt)
    healthy = hit_rate(None, roomy, seed)
    assert hit_rate("eviction", roomy, seed) == pytest.approx(healthy)
    assert hit_rate("eviction", tight, seed) < healthy
    assert hit_rate("no sharing", roomy, seed) <= healthy
    assert hit_rate("broken prefix", roomy, seed) <= 15_000 / prompt + 1e-9
    assert hit_rate("coarse states", roomy, seed) > healthy - 8_192 / prompt - 0.05


@pytest.mark.parametrize(
    ("name", "fits", "excluded"),
    [("evicted prefixes", "eviction", "broken prefix"), ("broken prefix", "broken prefix", "eviction")],
)
def test_eviction_and_a_broken_prefix_are_told_apart(name: str, fits: str, excluded: str) -> None:
    sweep = FAULTS[name].plant(random_bed(1000), 0)
    lost = next(f for f in check_sweep(sweep).of("warn") if f.law == 10)
    fitting, others = lost.text.split("Excluded:")
    assert fits in fitting
    assert excluded in others
    assert "no sharing" in others, "sessions reuse themselves, whoever else they share with"


def test_without_the_pool_eviction_stays_open() -> None:
    sweep = replace(FAULTS["evicted prefixes"].plant(random_bed(1000), 0), given=Given())
    lost = next(f for f in check_sweep(sweep).of("warn") if f.law == 10)
    assert "pool is not told" in lost.text
    assert "kv_pool_tokens" in lost.remedy


def test_capacity_is_not_a_token_budget() -> None:
    waits = replace(level(5, 4.8), waiting_by_reason=(("capacity", Gauge(1.0, 5.0)),))
    assert any("does not say which" in f.text for f in found(sweep_of(level(1, 0.9), waits), 10, "note"))


# Law 11


def test_a_twin_that_differs_by_its_workload() -> None:
    one = level(30, 23.9, tpot=Histogram(given_mean=0.067), first_tokens=168.0, generated_tokens=2.6e5)
    other = level(30, 23.7, tpot=Histogram(given_mean=0.056), first_tokens=79.0, generated_tokens=2.9e5)
    assert cause(differences(one, other)) == "workload"
    slower = replace(one, tpot=Histogram(given_mean=0.2))
    assert cause(differences(one, slower)) == "engine"
    assert cause(differences(one, one)) == "same"


def test_agreeing_repeats_are_no_failure() -> None:
    sweep = make_sweep(random_bed(3), 3, (1, 2, 5))
    twin = sweep.levels[1]
    merged = replace(
        twin, sessions=2, repeats=(twin, replace(twin, running=twin.running)), window_s=2 * 719.0
    )
    result = check_sweep(with_level(sweep, 1, merged))
    assert result.verdict == "usable-with-care"
    assert not result.left_out
