"""The sweep's shape: bucket arithmetic, what stays unknown, merging, what is given."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.calibration.buckets import (
    HISTOGRAM_EDGES,
    REQUEST_EDGES_S,
    TTFT_EDGES_S,
    Bounds,
    bin_values,
    bounds_of_edge,
    differences,
    quantile_bounds,
    token_edges,
)
from replicast.calibration.readers.boot_log import parse_given
from replicast.calibration.readers.counters import load_seconds, merge_levels
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.sweep import Gauge, Given, Histogram, Sweep, SweepLevel
from replicast.sim.errors import InputError

values = st.lists(st.floats(0.0, 4000.0), min_size=1, max_size=60)


@given(values, st.sampled_from([0.5, 0.9, 0.99]))
def test_the_bucket_holds_the_quantile(data: list[float], q: float) -> None:
    exact = sorted(data)[max(0, math.ceil(q * len(data) - 1e-9) - 1)]
    for edges in HISTOGRAM_EDGES.values():
        bounds = quantile_bounds(q, edges, bin_values(data, edges))
        assert bounds is not None
        assert bounds.low < exact or exact == bounds.low == 0.0
        assert bounds.high is None or exact <= bounds.high


@given(values, values)
def test_adding_histograms_is_pooling_their_values(a: list[float], b: list[float]) -> None:
    both = Histogram.of(a, TTFT_EDGES_S).plus(Histogram.of(b, TTFT_EDGES_S))
    pooled = Histogram.of([*a, *b], TTFT_EDGES_S)
    assert both.counts == pooled.counts
    assert both.count == pooled.count
    assert both.sum == pytest.approx(pooled.sum)


@given(st.lists(st.integers(0, 9), min_size=1, max_size=9))
def test_differences_undo_cumulation(counts: list[int]) -> None:
    cumulative = [sum(counts[: i + 1]) for i in range(len(counts))]
    assert list(differences(cumulative)) == counts


def test_reported_edges_become_bounds() -> None:
    assert bounds_of_edge(0.3, REQUEST_EDGES_S) == Bounds(0.0, 0.3)
    assert bounds_of_edge(20.0, TTFT_EDGES_S) == Bounds(10.0, 20.0)
    assert bounds_of_edge(None, TTFT_EDGES_S) == Bounds(2560.0, None)
    assert bounds_of_edge(3.0, TTFT_EDGES_S) == Bounds(0.0, 3.0)  # another version's edge


def test_token_edges_are_the_1_2_5_series() -> None:
    assert token_edges(4096)[-3:] == (500.0, 1000.0, 2000.0)
    assert token_edges()[-1] == 200_000.0


def test_unknown_stays_unknown() -> None:
    level = SweepLevel(concurrency=2, window_s=10.0)
    assert level.prompt_tokens_per_s is None
    assert level.hit_rate is None
    assert level.computed_tokens is None
    assert Histogram(count=0.0, sum=0.0).mean is None
    assert Histogram(given_mean=0.5).plus(Histogram(sum=1.0, count=2.0)).mean is None
    assert level.unusable == "neither a count nor a latency is known"


def test_dilution_and_hit_rate() -> None:
    level = SweepLevel(2, window_s=720.0, load_s=600.0, prompt_tokens=100.0, cached_tokens=75.0)
    assert level.dilution == pytest.approx(1.2)
    assert level.hit_rate == 0.75
    assert load_seconds(718.2) == 600.0
    assert load_seconds(419.0) == 300.0


def test_merged_levels_keep_their_parts() -> None:
    def part(start: float, tokens: float) -> SweepLevel:
        return SweepLevel(
            concurrency=2, name="m_c2", start_s=start, stop_s=start + 10, window_s=10.0, load_s=8.0,
            generated_tokens=tokens, running=Gauge.over_time((0.0, 10.0), (1.0, 2.0)),
            finished_by_reason=(("stop", 1.0),),
        )  # fmt: skip

    merged = merge_levels([part(0.0, 5.0), part(1000.0, 7.0)])
    assert (merged.window_s, merged.load_s, merged.generated_tokens, merged.sessions) == (20.0, 16.0, 12.0, 2)
    assert merged.running is not None
    assert merged.running.times_s == (0.0, 10.0, 10.0, 20.0)
    assert merged.finished_by_reason == (("stop", 2.0),)
    assert [repeat.generated_tokens for repeat in merged.repeats] == [5.0, 7.0]


def test_too_few_usable_levels_is_an_error_that_says_why() -> None:
    dead = SweepLevel(1, name="m_c1", generated_tokens=0.0, first_tokens=0.0)
    alive = SweepLevel(2, name="m_c2", generated_tokens=5.0)
    sweep = Sweep("s.duckdb", "duckdb-collector", (dead, alive))
    assert sweep.usable_levels() == (alive,)
    with pytest.raises(InputError, match=r"1 usable level of 2, and 2 are needed \(m_c1: no request got"):
        sweep.usable_levels(2)
    frame = sweep.to_frame()
    assert list(frame["concurrency"]) == [1, 2]


def test_given_as_written(tmp_path: Path) -> None:
    facts = tmp_path / "server.toml"
    facts.write_text('max_num_seqs = 32\n[vllm]\nkv_cache_dtype = "fp8"\nblock-size = 16\n')
    told = parse_given(
        [str(facts), "--max-num-batched-tokens=8192", "tp=4", "async_scheduling=off", "max_num_seqs=64"]
    )
    assert told.told() == {
        "max_num_batched_tokens": 8192, "max_num_seqs": 64, "block_size": 16, "tensor_parallel_size": 4,
        "async_scheduling": False, "kv_cache_dtype": "fp8",
    }  # fmt: skip
    assert dict(told.sources)["block_size"] == str(facts)
    assert Given(block_size=32).over(told).block_size == 32


def test_keys_that_are_no_facts_are_named(tmp_path: Path) -> None:
    facts = tmp_path / "server.yaml"
    facts.write_text("max-num-seqs: 64\nmax-num-sequences: 32\ndtype: torch.bfloat16\n")
    rows = tmp_path / "sweep.csv"
    rows.write_text("concurrency,ttft_mean_s\n1,0.5\n")
    sweep = read_sweep(rows, given=[str(facts)])
    assert sweep.given.max_num_seqs == 64
    assert f"{facts}: no facts of a server, passed over: max-num-sequences" in sweep.notes


@pytest.mark.parametrize(
    ("item", "says"),
    [
        ("speed=9", "no fact named speed"),
        ("nothing.toml", "no such file"),
        ("tp=0", "tensor_parallel_size is 0, below 1"),
        ("tp=two", "not a finite number"),
        ("async_scheduling=perhaps", "neither true nor false"),
        ("dtype=foo", "dtype is 'foo'"),
        ("gpu_memory_utilization=90", "gpu_memory_utilization is 90"),
        ("gpu_memory_utilization=0", "gpu_memory_utilization is 0"),
        ("vllm=banana", "'banana' is not a vLLM version"),
        ("vllm_version=0.6.3", "only the V1 engine"),
        ("kv-cache-dtype=fp9", "kv_cache_dtype is 'fp9'"),
    ],
)
def test_given_that_cannot_be_used(item: str, says: str) -> None:
    with pytest.raises(InputError, match=says):
        parse_given([item])
