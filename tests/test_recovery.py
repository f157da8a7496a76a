"""Recovery: a collector's database of a server with known truth gives the truth back."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from replicast.calibration.recovery import Bed, random_bed, recover, simulated_sweep, write_database

LEVELS = (1, 3, 8)


@pytest.fixture(scope="module")
def bed() -> Bed:
    return random_bed(1, LEVELS, load_s=150.0)


def test_intervals_hold_the_truth(bed: Bed) -> None:
    rows = recover(bed, simulated_sweep(bed, 1))
    assert len(rows) == 4
    assert sum(row.inside for row in rows) >= 3
    for row in rows:
        if row.name in ("memory_fixed_s", "compute_per_token_s"):
            assert abs(math.log(row.value / row.truth)) < 0.5, row


def test_the_database_says_what_the_level_says(bed: Bed, tmp_path: Path) -> None:
    pytest.importorskip("duckdb")
    from replicast.calibration.readers.duckdb_collector import read_duckdb

    path = tmp_path / "throughput-metrics.duckdb"
    write_database(bed, 1, path, interval_s=5.0)
    read, known = read_duckdb(path), simulated_sweep(bed, 1)
    for a, b in zip(read.levels, known.levels, strict=True):
        assert a.computed_tokens == pytest.approx(b.computed_tokens)
        assert a.tpot is not None
        assert b.tpot is not None
        assert a.tpot.mean == pytest.approx(b.tpot.mean)
