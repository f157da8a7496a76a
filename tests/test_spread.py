"""How much outputs differ: read off bucket counts, in simulation as in measurement, and found again."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.calibration.buckets import token_edges
from replicast.calibration.fit import fit
from replicast.calibration.model import point_at
from replicast.calibration.recovery import random_bed, simulated_sweep
from replicast.calibration.scale import measured
from replicast.calibration.server import server_facts
from replicast.calibration.spread import LEAST_COUNTED, counted_log_sd, log_sd, log_sd_of
from replicast.calibration.sweep import Histogram, SweepLevel


@given(st.floats(0.8, 1.8), st.integers(0, 99), st.floats(80.0, 900.0))
def test_coarse_buckets_keep_the_spread(spread: float, seed: int, median: float) -> None:
    rng = np.random.default_rng(seed)
    lengths = np.maximum(np.exp(np.log(median) + spread * rng.standard_normal(2000)).round(), 1)
    assert log_sd_of(lengths.astype(int)) == pytest.approx(spread, rel=0.15)


@given(st.lists(st.integers(1, 300_000), min_size=LEAST_COUNTED, max_size=200))
def test_lengths_and_their_histogram_say_the_same(lengths: list[int]) -> None:
    counted = counted_log_sd(Histogram.of(lengths, token_edges()))
    assert (counted or 0.0) == pytest.approx(log_sd_of(np.array(lengths)))


@pytest.mark.parametrize(
    "histogram",
    [None, Histogram(given_mean=300.0), Histogram(300.0, 1.0), Histogram(edges=(9.0,), counts=(9.0, 1.0))],
)
def test_means_and_few_requests_say_nothing(histogram: Histogram | None) -> None:
    assert counted_log_sd(histogram) is None
    assert measured(SweepLevel(1, output_per_request=histogram))["output_log_sd"] is None


def test_nothing_counted_has_no_spread() -> None:
    assert np.isnan(log_sd((1.0, 10.0), (0.0, 0.0, 0.0)))
    assert np.isnan(log_sd_of(np.array([], dtype=int)))


@pytest.mark.parametrize("spread", [0.8, 1.5])
def test_a_calibration_finds_it_though_long_outputs_are_cut(spread: float) -> None:
    """At the deadline requests are killed, the longest most often; they are not counted."""
    bed = random_bed(900, concurrencies=(1, 4, 12))
    loads = tuple(replace(load, output_spread=spread) for load in bed.loads)
    sweep = simulated_sweep(replace(bed, loads=loads), 1)
    found = fit(sweep.levels, server_facts(replace(sweep, given=bed.given)))
    assert point_at(found.params, found.x).values["output_spread"] == pytest.approx(spread, rel=0.12)
