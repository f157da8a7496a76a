"""Quantiles that counts tell, and what a fit makes of them."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.calibration.buckets import TTFT_EDGES_S, Bounds
from replicast.calibration.fit import fit
from replicast.calibration.harness import latencies, observe, run_level
from replicast.calibration.model import point_at
from replicast.calibration.recovery import random_bed, simulated_sweep
from replicast.calibration.server import server_facts
from replicast.calibration.shape import WANTED, Quantile, bounds_of, quantiles_of, shape
from replicast.calibration.spread import LEAST_COUNTED
from replicast.calibration.sweep import Histogram, Sweep, SweepLevel


@given(st.lists(st.floats(0.005, 300.0), min_size=LEAST_COUNTED, max_size=300))
def test_of_counts_a_quantile_is_an_edge_and_exact(values: list[float]) -> None:
    """As many values lie at or below the edge as the share says, and the simulation is read alike."""
    level = SweepLevel(1, ttft=Histogram.of(values, TTFT_EDGES_S))
    found = quantiles_of(level)
    assert set(found) <= {"ttft_middle", "ttft_tail"}
    for name, (quantile, mean_s) in found.items():
        for edge in (quantile.low_s, quantile.high_s):
            assert sum(value <= edge for value in values) == pytest.approx(quantile.at * len(values))
        least, _, most = WANTED[name.split("_")[1]]
        assert least <= quantile.at <= most
        inside = [value for value in values if value <= quantile.low_s]
        beyond = [value for value in values if value > quantile.high_s]
        here = shape(name, np.array(values), quantile) * (mean_s + 0.02) - 0.02
        assert max(inside) - 1e-6 <= here <= min(beyond) + 1e-6


def test_between_edges_without_requests_lies_nothing() -> None:
    """Half of the requests take 0.3 s and half take 30: the median is anywhere between."""
    level = SweepLevel(1, ttft=Histogram.of([0.3] * 30 + [30.0] * 30, TTFT_EDGES_S))
    assert {name: quantile for name, (quantile, _) in quantiles_of(level).items()} == {
        "ttft_middle": Quantile(0.5, 0.5, 20.0)
    }


def test_a_percentile_bounds_a_quantile() -> None:
    quantiles = ((0.5, Bounds(0.25, 0.5)), (0.9, Bounds(80.0, None)), (0.99, Bounds(80.0, None)))
    found = quantiles_of(SweepLevel(1, ttft=Histogram(given_mean=2.0, given_quantiles=quantiles)))
    assert found["ttft_middle"] == (Quantile(0.5, 0.25, 0.5, counted=False), 2.0)
    assert found["ttft_tail"][0] == Quantile(0.9, 80.0, math.inf, counted=False)
    low, high = bounds_of("ttft_middle", *found["ttft_middle"])
    assert low < shape("ttft_middle", np.array([0.4, 3.6]), found["ttft_middle"][0]) < high


@pytest.mark.parametrize(
    "histogram",
    [
        None,
        Histogram(given_mean=2.0),
        Histogram(20.0, 10.0, TTFT_EDGES_S, Histogram.of([2.0] * 10, TTFT_EDGES_S).counts),
        Histogram.of([2.0] * 500, TTFT_EDGES_S),
        Histogram(given_mean=2.0, given_quantiles=((0.5, Bounds(0.0, 0.0)),)),
        Histogram(count=5.0, given_mean=2.0, given_quantiles=((0.5, Bounds(1.0, 2.5)),)),
    ],
)
def test_means_few_requests_and_one_bucket_say_nothing(histogram: Histogram | None) -> None:
    assert quantiles_of(SweepLevel(1, ttft=histogram)) == {}


def test_of_nothing_there_is_no_quantile() -> None:
    assert math.isnan(shape("queue_tail", np.array([]), Quantile(0.9, 1.0, 1.0)))


def test_only_what_is_wanted_is_observed() -> None:
    bed = random_bed(3, concurrencies=(4,), load_s=120.0)
    run = run_level(bed.loads[0], bed.server, 1)
    wanted = Quantile(0.8, 1.0, 1.0)
    seen = observe(run, bed.loads[0], {"prefill_tail": wanted})
    assert seen.prefill_tail == shape("prefill_tail", latencies(run.records)["prefill"], wanted)
    assert math.isnan(seen.ttft_tail)


@pytest.mark.parametrize("spread", [0.4, 1.6])
def test_a_calibration_finds_how_unequal_requests_are(spread: float) -> None:
    """By counted latencies alone: the histogram of computed tokens is taken away."""
    bed = random_bed(901, concurrencies=(1, 4, 12))
    bed = replace(bed, loads=tuple(replace(load, computed_spread=spread) for load in bed.loads))
    sweep = simulated_sweep(bed, 1)
    levels = tuple(replace(level, computed_per_request=None) for level in sweep.levels)
    found = fit(levels, server_facts(replace(sweep, given=bed.given)))
    value = point_at(found.params, found.x).values["computed_spread"]
    # From the prior's 1.0 a third of the way at least, and not beyond.
    assert 1 / 3 < math.log(value) / math.log(spread) < 1.3


def test_means_alone_do_not_tell_it() -> None:
    bed = random_bed(901, concurrencies=(1, 4), load_s=120.0)
    sweep = simulated_sweep(bed, 1)
    levels = tuple(
        replace(
            level,
            computed_per_request=None,
            **{name: Histogram(given_mean=getattr(level, name).mean) for name in
               ("ttft", "queue", "prefill", "tpot")},
        )
        for level in sweep.levels
    )  # fmt: skip
    found = fit(levels, server_facts(Sweep("bed", "bed", levels, given=bed.given)))
    assert "computed_spread" not in {p.name for p in found.params}
