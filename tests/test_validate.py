"""Validation: the document, the rival, what only the concurrency gives, and real requests where they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.calibration.accuracy_requests import span_errors
from replicast.calibration.calibrate import Calibration, calibrate
from replicast.calibration.harness import METRICS
from replicast.calibration.learned import KnownLevel, interpolated, learned_of, lengths_at
from replicast.calibration.lengths import Lengths
from replicast.calibration.recovery import random_bed, simulated_sweep
from replicast.calibration.validate import validate
from replicast.sim.errors import InputError

BED = random_bed(3, (1, 2, 4, 8), load_s=120.0)
SWEEP = simulated_sweep(BED, 3)


@pytest.fixture(scope="module")
def calibration() -> Calibration:
    return calibrate(SWEEP, given=BED.given, levels=(1, 2, 4), loo=False, force=True)


def known(concurrency: int, prompt: float, value: float) -> KnownLevel:
    lengths = Lengths(prompt, 100.0, None, 50.0, float(concurrency), "kv", 0.01)
    return KnownLevel(concurrency, lengths, 600.0, {"tpot_mean_s": value}, {})


def test_rows_have_the_schema(calibration: Calibration) -> None:
    found = validate(SWEEP, calibration.profile)
    document = found.to_document()
    json.dumps(document, allow_nan=False)
    assert document["schema"] == "replicast/validate/1"
    keys = {"level", "load", "metric", "measured", "predicted", "low", "high", "error"}
    for row in document["rows"]:
        assert keys <= set(row)
        assert row["load"] in ("given", "concurrency")
        assert row["metric"] in METRICS
        assert row["low"] <= row["predicted"] <= row["high"]
        if row["measured"] > 0:
            assert row["error"] == pytest.approx(row["predicted"] / row["measured"] - 1)
    held_out = {row["level"] for row in document["rows"] if row["held_out"]}
    assert held_out == {8}
    assert "TPOT mean" in found.report_text()


def test_absent_levels_are_a_warning_and_none_an_error(calibration: Calibration) -> None:
    found = validate(SWEEP, calibration.profile, levels=(2, 99), loads=("given",))
    assert {row.level for row in found.rows} == {2}
    assert any("99" in text for text in found.warnings)
    with pytest.raises(InputError, match="levels in it"):
        validate(SWEEP, calibration.profile, levels=(99,))


def test_a_profile_remembers_what_was_learnt(calibration: Calibration) -> None:
    learned = learned_of(calibration.profile)
    assert [level.concurrency for level in learned.levels] == [1, 2, 4]
    assert learned.covariance.shape == (len(learned.x), len(learned.x))
    for name, value in calibration.profile.step_time._asdict().items():
        assert learned.point.values[name] == value


@given(st.integers(1, 200))
def test_lengths_stay_between_the_fitted_ones(concurrency: int) -> None:
    """Beyond them prompts are as long as fewer turns let them grow."""
    lengths = lengths_at(concurrency, 600.0, [known(2, 50_000, 0.02), known(20, 30_000, 0.05)])
    assert lengths is not None
    assert (30_000 if concurrency <= 20 else 20_000) * 0.999 <= lengths.prompt
    assert lengths.prompt <= (50_000 if concurrency >= 2 else 65_000) * 1.001
    assert lengths.alive == pytest.approx(concurrency)


def test_the_rival_is_a_line_in_logarithms() -> None:
    levels = [known(1, 1.0, 0.01), known(4, 1.0, 0.04), known(16, 1.0, 0.08)]
    assert interpolated(2, "tpot_mean_s", levels) == pytest.approx(0.02)
    assert interpolated(64, "tpot_mean_s", levels) == pytest.approx(0.16)
    assert interpolated(2, "tpot_mean_s", levels[:1]) is None
    assert interpolated(2, "ttft_mean_s", levels) is None


@pytest.mark.parametrize("run", ["codellama", "llama7b"])
def test_synchronous_requests_predict_later_stages(shared_dir: Path, run: str) -> None:
    """Half the requests: constant rates TTFT within 4 %, E2E within 1.5 %, overload TTFT within 8 %."""
    errors = span_errors(shared_dir / "groundtruth", run)
    rates = [e for e in errors if not e.stage.startswith("burst")]
    burst = [e for e in errors if e.stage.startswith("burst")]
    assert len(rates) >= 8
    assert sum(e.ttft_half or 0 for e in rates) / len(rates) <= 0.04
    assert sum(e.e2e_half or 0 for e in rates) / len(rates) <= 0.015
    assert all(abs(e.ttft) <= 0.08 for e in errors)
    assert (burst[0].ttft_half or 0) <= 0.08
