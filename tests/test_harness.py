"""The harness: a simulated level obeys the laws of a real one, and is read back from its own database."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from replicast.calibration.counters import collected_sweep
from replicast.calibration.generate import write_collector_db
from replicast.calibration.growth import Endings, Growth
from replicast.calibration.harness import ServerModel, observe, run_level, simulated_level
from replicast.calibration.lengths import (
    SHARED_TOKENS,
    Habits,
    Lengths,
    lengths_of,
    load_for,
    too_long,
    with_context,
)
from replicast.calibration.physics import FRONT_END
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Given, Sweep, SweepLevel
from replicast.calibration.workload import LevelLoad, draw_sessions
from replicast.sim.config import EngineConfig
from replicast.sim.engine.step_time import StepTime
from replicast.sim.workload import num_tokens

SLOW_STEPS = StepTime.from_seconds(
    memory_fixed_s=0.08, memory_per_kv_token_s=2e-8, memory_per_seq_s=1e-3, compute_fixed_s=1e-3,
    compute_per_token_s=150e-6, compute_per_pair_s=1e-9,
)  # fmt: skip
SERVER = ServerModel(EngineConfig(num_gpu_blocks=40_000, max_num_batched_tokens=4096), SLOW_STEPS, FRONT_END)
LOAD = LevelLoad(
    concurrency=3, streams=3, prompt_tokens=30_000, output_tokens=60, computed_tokens=4_000,
    first_tokens=8_000, shared_tokens=6_000, tool_s=0.5, endings=Endings(20, 0.0), load_s=60, window_s=90,
    expected_requests=30,
)  # fmt: skip


def test_a_level_obeys_its_laws() -> None:
    level = simulated_level(LOAD, SERVER, seed=1)
    assert level.ttft is not None
    assert level.queue is not None
    assert level.first_tokens == level.ttft.count
    # Queue is of finished requests only: fewer than those with a first token.
    assert level.queue.count == level.requests_finished
    assert (level.queue.count or 0) <= (level.ttft.count or 0)
    assert (level.cached_tokens or 0) <= (level.prompt_tokens or 0)
    # Closed loop: never more alive than streams, and the drain dilutes the means.
    assert level.running is not None
    assert level.waiting is not None
    alive = (level.running.mean or 0) + (level.waiting.mean or 0)
    assert alive <= 3 * 60 / 90 + 1e-9
    assert level.dilution == pytest.approx(1.5)


def test_of_a_very_long_level_a_part_is_simulated() -> None:
    lengths = Lengths(30_000, 60, 4_000, 500.0, 2.5, "counted")
    growth = Growth(8_000.0, 20_000.0)
    short = load_for(3, 600.0, 720.0, lengths, growth, 4_000.0, Habits(6_000.0))
    long = load_for(
        3, 600_000.0, 720_000.0, replace(lengths, requests=500_000.0), growth, 4_000.0, Habits(6_000.0)
    )
    assert (short.load_s, short.expected_requests) == (600.0, 500.0)
    assert long.expected_requests == 2_000
    assert long.load_s / long.expected_requests == pytest.approx(short.load_s / short.expected_requests)
    assert long.window_s / long.load_s == pytest.approx(1.2)
    assert long.tool_s == pytest.approx(short.tool_s)
    # Of its few turns prompts are as long as they were measured.
    wide = load_for(
        100,
        6_000.0,
        7_200.0,
        replace(lengths, requests=20_000.0, alive=100.0),
        growth,
        4_000.0,
        Habits(6_000.0),
    )
    own = Growth(wide.first_tokens, wide.prompt_tokens - wide.shared_tokens - wide.first_tokens)
    assert wide.shared_tokens + own.mean(20) == pytest.approx(30_000)


def test_prompts_that_no_server_accepts_are_told() -> None:
    given = Given(model="llama-3.1-8b", gpu="H100", max_model_len=100_000)
    facts = server_facts(Sweep("counted", "counted", (), given=given))
    level = SweepLevel(2, window_s=100.0, load_s=100.0, requests_finished=10, prompt_tokens=500_000.0)
    assert too_long(level, facts) is None
    assert lengths_of(level, facts).prompt == 50_000
    level = replace(level, prompt_tokens=5_000_000.0)
    assert "500,000 prompt tokens a request are more than max_model_len (100,000)" in str(
        too_long(level, facts)
    )
    assert lengths_of(level, facts).prompt == 95_000


def test_same_seed_same_level_other_seed_other_level() -> None:
    first = observe(run_level(LOAD, SERVER, 4), LOAD)
    assert first == observe(run_level(LOAD, SERVER, 4), LOAD)
    assert first != observe(run_level(LOAD, SERVER, 5), LOAD)


def test_seeds_come_in_pairs_that_err_on_both_sides() -> None:
    """Where one seed of a pair has a large session the other has a small one: few hardly bias the mean."""
    load = replace(LOAD, streams=1, concurrency=1, endings=Endings(1e6, 0.0), expected_requests=60)

    def mean_prompt(seed: int) -> float:
        turns = draw_sessions(load, seed, 200_000)[0].turns
        return float(np.mean([turn.num_prompt_tokens for turn in turns]))

    pairs = [(mean_prompt(seed) + mean_prompt(seed + 1)) / 2 for seed in range(1, 41, 2)]
    singles = [mean_prompt(seed) for seed in range(1, 41, 2)]
    assert np.std(pairs) < 0.5 * np.std(singles)


def test_a_faster_server_meets_the_same_sessions() -> None:
    """Common random numbers: draws depend on seed, level and session alone."""
    slow = draw_sessions(LOAD, 3, 200_000)
    more = draw_sessions(replace(LOAD, expected_requests=60), 3, 200_000)
    for a, b in zip(slow[:3], more[:3], strict=True):
        shorter = min(len(a.turns), len(b.turns))
        assert [t.num_prompt_tokens for t in a.turns[:1]] == [t.num_prompt_tokens for t in b.turns[:1]]
        assert shorter >= 1


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    prompt=st.integers(2_000, 150_000),
    computed=st.integers(10, 60_000),
    first=st.integers(100, 40_000),
    shared=st.integers(0, 20_000),
    seed=st.integers(0, 99),
)
def test_prompts_are_whole_and_share_what_they_say(
    prompt: int, computed: int, first: int, shared: int, seed: int
) -> None:
    load = replace(
        LOAD, prompt_tokens=prompt, computed_tokens=computed, first_tokens=first, shared_tokens=shared
    )
    for session in draw_sessions(load, seed, 200_000):
        for turn in session.turns:
            assert num_tokens(turn.prompt) == turn.num_prompt_tokens
            assert all(segment.length > 0 for segment in turn.prompt)
            assert turn.num_prompt_tokens + turn.num_output_tokens <= 200_000


def test_computed_tokens_are_what_was_asked_for() -> None:
    """With room in the cache, the new part of each prompt is computed, and nothing else."""
    load = replace(
        LOAD, streams=1, concurrency=1, endings=Endings(1e6, 0.0), load_s=400, expected_requests=80
    )
    seen = [observe(run_level(load, SERVER, seed), load).computed_per_request for seed in range(3, 13)]
    assert sum(seen) / 10 == pytest.approx(4_000, rel=0.25)


def test_a_level_is_read_back_from_its_database(tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from replicast.calibration.readers.duckdb_collector import read_duckdb

    loads = [replace(LOAD, concurrency=c, streams=c) for c in (1, 3)]
    path = tmp_path / "throughput-metrics.duckdb"
    sessions = collected_sweep(loads, SERVER, 7, interval_s=1.0)
    write_collector_db(path, sessions, model="slow")
    sweep = read_duckdb(path)
    for load, level in zip(loads, sweep.levels, strict=True):
        truth = simulated_level(load, SERVER, 7)
        assert level.concurrency == load.concurrency
        assert level.first_tokens == truth.first_tokens
        assert level.prompt_tokens == truth.prompt_tokens
        assert level.cached_tokens == truth.cached_tokens
        assert level.generated_tokens == pytest.approx(truth.generated_tokens, abs=3)
        for name in ("ttft", "queue", "prefill", "tpot", "e2e"):
            read, known = getattr(level, name), getattr(truth, name)
            assert read.count == known.count, name
            assert read.sum == pytest.approx(known.sum), name
            assert np.allclose(read.counts, known.counts), name
        assert level.running is not None
        assert truth.running is not None
        assert level.running.mean == pytest.approx(truth.running.mean, rel=0.1)


def test_a_server_faster_than_expected_does_not_run_out_of_sessions() -> None:
    wanted = run_level(replace(LOAD, expected_requests=400), SERVER, seed=2)
    few = run_level(replace(LOAD, expected_requests=3), SERVER, seed=2)
    assert few.window.end_s == pytest.approx(wanted.window.end_s)
    assert few.records.finished.sum() > 3


@given(st.floats(500.0, 40_000.0), st.floats(0.5, 2.0), st.floats(1.0, 30.0))
def test_a_pool_written_as_scaled_gives_the_same_lengths(shared: float, scale: float, running: float) -> None:
    """A profile stores lengths on the scaled pool and its `shared_tokens` beside them."""
    seen = Lengths(60_000, 400, None, 200.0, running + 1, "kv", 0.02, running)
    stored = with_context(seen, SHARED_TOKENS, scale)
    again, direct = with_context(stored, shared, 1.0), with_context(seen, shared, scale)
    assert again.prompt == pytest.approx(direct.prompt, rel=1e-9)
    assert again.output == pytest.approx(direct.output, rel=1e-9)
    assert again.requests == pytest.approx(direct.requests, rel=1e-9)
