"""Recovery: a collector's database of a server with known truth gives the truth back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from replicast.calibration.counters import collected_sweep
from replicast.calibration.generate import CollectorSession, Scrape, write_collector_db
from replicast.calibration.model import ENGINE
from replicast.calibration.physics import check_peak
from replicast.calibration.readers.duckdb_collector import read_duckdb
from replicast.calibration.recovery import (
    Bed,
    Recovered,
    known_servers,
    random_bed,
    recover,
    simulated_sweep,
    table,
    write_database,
)
from replicast.calibration.server import server_facts
from replicast.calibration.sweep import Sweep

LEVELS = (1, 3, 8)


@pytest.fixture(scope="module")
def bed() -> Bed:
    return random_bed(1, LEVELS, load_s=150.0)


def test_intervals_hold_the_truth(bed: Bed) -> None:
    rows = recover(bed, simulated_sweep(bed, 1))
    assert {row.name for row in rows} == {
        *ENGINE, "first_tokens", "output_spread", "computed_spread", "calls_per_session", "failed_sessions",
    }  # fmt: skip
    assert sum(row.inside for row in rows) >= 8
    found = {row.name: row for row in rows}
    # What the interval says must be worth saying.
    assert found["memory_fixed_s"].width < 2.5
    assert abs(found["memory_fixed_s"].off) < 0.3


def test_a_cut_run_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "servers.jsonl"
    row = Recovered("memory_fixed_s", 2.0, 1.8, 1.5, 2.4, "covariance")
    whole = json.dumps({"server": 3, "parameters": [row._asdict()]})
    path.write_text(f"{whole}\n{whole[:30]}")
    assert known_servers(path) == {3: [row]}
    assert known_servers(None) == {}
    assert table([[row]])[-1] == "| `memory_fixed_s` | 1 of 1 | 1.60 | 10% | 0 |"


def test_truth_is_drawn_above_the_bounds_of_physics() -> None:
    for seed in range(20):
        bed = random_bed(seed, LEVELS)
        assert check_peak(bed.steps, server_facts(Sweep("bed", "bed", (), given=bed.given)).priors) == []


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


def test_two_engines_in_one_database_are_learnt_as_one(bed: Bed, tmp_path: Path) -> None:
    """A deployment of two ranks, each with its own sessions, scraped as one server."""
    one, other = (collected_sweep(bed.loads, bed.server, seed, interval_s=5.0) for seed in (1001, 1003))
    both = [
        CollectorSession(
            2 * a.concurrency,
            tuple(Scrape(x.at_s, x.engines + y.engines) for x, y in zip(a.scrapes, b.scrapes, strict=True)),
        )
        for a, b in zip(one, other, strict=True)
    ]
    path = tmp_path / "throughput-metrics.duckdb"
    write_collector_db(path, both, model=str(bed.given.model), max_model_len=131_072)
    sweep = read_duckdb(path)
    assert {level.engines for level in sweep.levels} == {2}
    rows = recover(bed, sweep)
    assert sum(row.inside for row in rows) >= len(rows) - 1, [row for row in rows if not row.inside]
