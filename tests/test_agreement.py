"""Bucket agreement: the same server agrees, a slower one does not; of buckets and of percentiles."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from replicast.calibration.agreement import Agreement, agreement_lines, agreements
from replicast.calibration.model import LevelModel, Point
from replicast.calibration.physics import estimate
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.recovery import random_bed, write_database
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Histogram, Sweep, SweepLevel
from replicast.calibration.validate import validate

BED = random_bed(3, (4, 12), load_s=300.0)
FACTS = server_facts(Sweep("bed", "bed", (), model=BED.given.model, given=BED.given))
TRUTH = dict(BED.steps._asdict())


@pytest.fixture(scope="module")
def sweep(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    path: Path = tmp_path_factory.mktemp("agreement") / "sweep.duckdb"
    write_database(BED, 3, path, interval_s=5.0)
    return read_sweep(path)


def compared(
    level: SweepLevel, *, slower: float = 1.0, means: dict[str, float] | None = None
) -> list[Agreement]:
    """The level against the server it ran on, or one that takes longer for everything."""
    names = ("first_tokens", "output_spread", "shared_tokens")
    latents = {name: getattr(BED.loads[0], name) for name in names}
    point = Point({name: slower * value for name, value in TRUTH.items()} | latents)
    model = LevelModel(level, FACTS, 7.0)
    for _ in range(3):
        model.match(point, (11, 12))
    return agreements(model, point, "given", means or {})


def test_the_same_server_agrees_and_a_slower_one_does_not(sweep: Sweep) -> None:
    for level in sweep.levels:
        same = compared(level)
        assert {row.metric for row in same} == {"ttft", "queue", "prefill", "tpot"}
        assert sum(row.agrees for row in same) >= 3
        slow = {row.metric: row for row in compared(level, slower=4.0)}
        for row in same:
            assert sum(row.predicted) == pytest.approx(row.requests)
            assert len(row.predicted) == len(row.counts) == len(row.edges_s) + 1
            assert row.wrong_share is not None
            assert 0 <= row.wrong_share <= 1
            if row.metric in ("ttft", "tpot", "prefill"):
                assert not slow[row.metric].agrees
                assert slow[row.metric].buckets_off > 2 * row.buckets_off


def test_a_right_mean_moves_a_slow_server_into_the_right_buckets(sweep: Sweep) -> None:
    level = sweep.levels[0]
    assert level.ttft is not None
    assert level.ttft.mean is not None
    slow, moved = (
        next(row for row in compared(level, slower=2.5, means=means) if row.metric == "ttft")
        for means in ({}, {"ttft_mean_s": level.ttft.mean})
    )
    assert moved.buckets_off < slow.buckets_off


def test_percentiles_that_are_edges_are_compared_in_buckets(sweep: Sweep) -> None:
    level = sweep.levels[1]
    kept = replace(level, queue=None, prefill=None, tpot=None, ttft=quantiles_only(level.ttft))
    (same,) = compared(kept)
    (slow,) = compared(kept, slower=2.5)
    assert same.agrees
    assert not slow.agrees
    assert same.wrong_share is None
    assert same.counts == ()


def quantiles_only(histogram: Histogram | None) -> Histogram:
    """What a performance summary keeps of a histogram."""
    assert histogram is not None
    known = [(q, histogram.quantile(q)) for q in (0.5, 0.9, 0.99)]
    return Histogram(
        given_mean=histogram.mean, given_quantiles=tuple((q, b) for q, b in known if b is not None)
    )


def test_validate_tells_it(sweep: Sweep) -> None:
    args = replace(FACTS.args, max_num_batched_tokens=BED.given.max_num_batched_tokens)
    profile = estimate(FACTS.model, FACTS.gpu, FACTS.tensor_parallel_size, engine=args)
    found = validate(sweep, profile, levels=(4,))
    document = found.to_document()
    json.dumps(document, allow_nan=False)
    assert {row["metric"] for row in document["buckets"]} == {"ttft", "queue", "prefill", "tpot"}
    assert {row["load"] for row in document["buckets"]} == {"given"}
    assert "in another bucket than predicted" in found.report_text()


def test_no_histogram_no_table() -> None:
    assert agreement_lines([]) == []
    assert compared(SweepLevel(2, window_s=320.0, load_s=200.0, ttft=Histogram(given_mean=1.0))) == []
