"""The accuracy page's own arithmetic: what a perfect model would miss, and shares that others chose."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from replicast.calibration.accuracy import SweepResult, dump, sweep_section, undump
from replicast.calibration.accuracy_computed import as_if_counted
from replicast.calibration.accuracy_shares import best_share
from replicast.calibration.model import LevelModel, Point
from replicast.calibration.recovery import random_bed, simulated_sweep
from replicast.calibration.rows import Row
from replicast.calibration.server import server_facts


def row(measured: float, simulated: float, rival: float, *, realisation: float = 0.1) -> Row:
    return Row(
        5, "given", "tpot_mean_s", measured, simulated, 0.5 * simulated, 2 * simulated,
        simulated / measured - 1, rival, True, 0.5, realisation, simulated,
    )  # fmt: skip


def test_a_perfect_model_misses_what_the_draw_makes() -> None:
    rng = np.random.default_rng(1)
    measured = np.exp(0.2 * rng.standard_normal(4001))
    rows = tuple(row(value, 1.0, 1.0, realisation=0.2) for value in measured.tolist())
    lines = sweep_section([SweepResult("alike", rows, (), rows, 0.0, 0)])
    told = next(line for line in lines if line.startswith("| a perfect model, all"))
    ours = next(line for line in lines if line.startswith("| all (4001)"))
    cells = [float(line.split("|")[4].split("(")[0]) for line in (told, ours)]
    assert cells[0] == pytest.approx(cells[1], rel=0.06)


def test_few_sweeps_leave_the_median_unsure() -> None:
    def ends(sweeps: int) -> tuple[float, float]:
        """Of sweeps whose four levels err alike."""
        errors = [1 + 0.02 * (1 + at % 8) for at in range(sweeps)]
        results = [
            SweepResult(str(at), 4 * (row(1.0, s, 1.0),), (), (), 0.0, 0) for at, s in enumerate(errors)
        ]
        lines = sweep_section(results)
        told = next(line for line in lines if line.startswith("| 90 % interval of the median, all"))
        low, high = told.split("|")[4].split("-")
        return float(low), float(high)

    few, many = ends(8), ends(64)
    for low, high in (few, many):
        assert low <= 9.0 <= high
    assert many[1] - many[0] < 0.7 * (few[1] - few[0])


def test_the_best_share_is_where_truth_lies() -> None:
    between = [row(float(np.exp(0.7 * np.log(s) + 0.3 * np.log(r))), s, r) for s, r in ((1, 2), (3, 2.5))]
    assert best_share(between) == pytest.approx(0.3)
    assert best_share([row(1.0, 1.0, 1.9)]) == 0


def test_rows_are_read_back_from_their_file(tmp_path: Path) -> None:
    results = [SweepResult("one", (row(1.0, 1.1, 0.9),), (), (row(1.0, 1.2, 0.9),), 3.0, 7)]
    dump(results, tmp_path / "rows.json")
    assert undump(tmp_path / "rows.json") == results


def test_prefill_tells_what_was_computed() -> None:
    """At the true coefficients: a level whose cached tokens are hidden gets about its own hit rate."""
    bed = random_bed(5, concurrencies=(5,))
    sweep = simulated_sweep(bed, 1)
    facts = server_facts(replace(sweep, given=bed.given))
    level = sweep.levels[0]
    load = bed.loads[0]
    point = Point(bed.truth | {"computed_tokens": 2 * load.computed_tokens})
    found = as_if_counted(LevelModel(replace(level, cached_tokens=None), facts, 5.0), point)
    assert level.hit_rate is not None
    assert found.hit_rate is not None
    assert 1 - found.hit_rate == pytest.approx(1 - level.hit_rate, rel=0.15)
    assert as_if_counted(LevelModel(level, facts, 5.0), point) is level
