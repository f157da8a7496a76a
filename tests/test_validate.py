"""Validation: the document, the rival, what only the concurrency gives, and real requests where they are."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from replicast.calibration.accuracy_requests import span_errors
from replicast.calibration.calibrate import Calibration, calibrate
from replicast.calibration.engines import of_one_engine
from replicast.calibration.harness import METRICS
from replicast.calibration.learned import (
    KnownLevel,
    Learned,
    facts_of,
    interpolated,
    learned_of,
    lengths_at,
    tables_of,
)
from replicast.calibration.lengths import Lengths
from replicast.calibration.model import Point
from replicast.calibration.predict import Range, with_given_ratio
from replicast.calibration.profile import StepSeconds
from replicast.calibration.recovery import random_bed, simulated_sweep
from replicast.calibration.rows import Row, combined, summarise
from replicast.calibration.server import physics_of, server_facts
from replicast.calibration.sweep import HISTOGRAM_FIELDS, Gauge, SweepLevel
from replicast.calibration.validate import failed_levels, validate
from replicast.sim.errors import InputError
from replicast.sim.fleet.config import FrontEnd

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


def test_what_a_profile_learnt_is_no_prior_of_levels_left_out(calibration: Calibration) -> None:
    """Held-out levels would otherwise come back by way of the profile fitted to them."""
    learnt = facts_of(calibration.profile)
    physics = physics_of(replace(SWEEP, given=BED.given), learnt)
    assert physics == server_facts(replace(SWEEP, given=BED.given)).priors
    assert learnt.priors["memory_fixed_s"].value != physics["memory_fixed_s"].value
    moved = replace(
        calibration.profile, step_time=StepSeconds(*(5 * value for value in calibration.profile.step_time))
    )
    rows = [
        validate(SWEEP, profile, loo=True, loads=("given",)).rows for profile in (calibration.profile, moved)
    ]
    assert rows[0] == rows[1]


def test_levels_that_checks_fail_are_named_before_they_are_fitted() -> None:
    odd = replace(SWEEP, levels=(replace(SWEEP.levels[0], prompt_tokens=1.0), *SWEEP.levels[1:]))
    assert failed_levels(SWEEP, SWEEP.levels) == []
    assert failed_levels(odd, odd.levels)


def test_a_profile_of_another_model_is_named(calibration: Calibration) -> None:
    other = replace(SWEEP, model="Qwen/Qwen3-14B")
    said = validate(other, calibration.profile, levels=(1,), loads=("given",)).warnings
    assert any("the sweep is of Qwen/Qwen3-14B" in text for text in said)
    said = validate(SWEEP, calibration.profile, levels=(1,), loads=("given",)).warnings
    assert not any("the sweep is of" in text for text in said)


def test_a_server_faster_than_its_hardware_is_told() -> None:
    """Of a model that is larger than the one that was measured."""
    given = replace(BED.given, tensor_parallel_size=1, gpu="L40S", kv_pool_tokens=900_000)
    found = calibrate(SWEEP, given=given, levels=(1, 2, 4), loo=False, force=True)
    assert any("at the bound of physics" in text for text in found.warnings)


def test_a_server_that_counters_contradict_is_told() -> None:
    for told, says in (
        (replace(BED.given, max_num_seqs=2), "more than max_num_seqs 2"),
        (replace(BED.given, enable_prefix_caching=False), "enable_prefix_caching is told to be off"),
    ):
        found = calibrate(SWEEP, given=told, levels=(4, 8), loo=False, force=True)
        assert any(says in text for text in found.warnings), says
    fine = calibrate(SWEEP, given=BED.given, levels=(1, 2), loo=False, force=True)
    assert not any("told right?" in text for text in fine.warnings)


def test_lengths_that_nothing_tells_are_named_and_no_range() -> None:
    bare = tuple(
        SweepLevel(level.concurrency, window_s=level.window_s, load_s=level.load_s, tpot=level.tpot)
        for level in SWEEP.levels
    )
    found = calibrate(replace(SWEEP, levels=bare), given=BED.given, loo=False, force=True)
    assert any("60,000 tokens are assumed" in text for text in found.warnings)
    assert set(found.profile.ranges) == {"concurrency"}


def test_two_levels_of_one_load_are_both_stored() -> None:
    levels = (known(1, 50_000, 0.01), known(5, 40_000, 0.02), known(5, 45_000, 0.03))
    learned = Learned(Point({}), (), np.zeros(0), np.zeros((0, 0)), 2.0, levels, FrontEnd(0.0, 0.0, 0.0))
    assert list(tables_of(learned, {})["levels"]) == ["c1", "c5", "c5_2"]


def test_counters_of_several_engines_are_shared_out() -> None:
    """Two engines that each do what one did, scraped together."""
    twice = [_twice(level) for level in SWEEP.levels]
    found, said = of_one_engine(twice, None)
    assert found == [replace(level, engines=1) for level in SWEEP.levels]
    assert "several engines together (2)" in said[0]
    assert of_one_engine([replace(level, engines=None) for level in twice], 2)[0] == found
    assert of_one_engine(SWEEP.levels, None) == (list(SWEEP.levels), [])


def test_a_deployment_is_learnt_as_one_of_its_engines(calibration: Calibration) -> None:
    tp = BED.given.tensor_parallel_size or 1
    given = replace(BED.given, tensor_parallel_size=None, gpus=2 * tp, price_usd_per_hour=8.0)
    both = replace(SWEEP, levels=tuple(_twice(level) for level in SWEEP.levels), given=given)
    found = calibrate(both, levels=(2, 4, 8), loo=False, force=True)
    assert found.profile.step_time == calibration.profile.step_time
    assert found.profile.tensor_parallel_size == tp
    assert found.profile.price_usd_per_hour == 4.0
    assert any("several engines" in text for text in found.warnings)
    rows = validate(both, calibration.profile, levels=(16,), loads=("given",)).rows
    assert rows == validate(SWEEP, calibration.profile, levels=(8,), loads=("given",)).rows


def _twice(level: SweepLevel) -> SweepLevel:
    """What a level of two such engines would have counted."""
    counts = (
        "requests_finished", "requests_unfinished", "first_tokens", "prompt_tokens", "cached_tokens",
        "generated_tokens", "preemptions", "prefix_queries", "prefix_hits",
    )  # fmt: skip
    doubled: dict[str, Any] = {name: 2 * getattr(level, name) for name in counts}
    for name in ("running", "waiting"):
        gauge = getattr(level, name)
        doubled[name] = Gauge(2 * gauge.mean, 2 * gauge.peak)
    for name in HISTOGRAM_FIELDS:
        histogram = getattr(level, name)
        doubled[name] = histogram and histogram.plus(histogram)
    return replace(level, concurrency=2 * (level.concurrency or 0), engines=2, **doubled)


def test_prefill_of_a_request_counts_its_attention() -> None:
    """As a lone later request of the fitted levels would take on the fitted server."""
    hidden = tuple(replace(level, cached_tokens=None, given_hit_rate=None) for level in SWEEP.levels)
    found = calibrate(replace(SWEEP, levels=hidden), given=BED.given, loo=False, force=True)
    (prefill,) = found.uncertainty.combined
    values = {it.name: it.value for it in found.uncertainty.intervals}
    prompt = np.mean([model.lengths.prompt for model in found.fitted.models])
    pair_s = found.profile.step_time.compute_per_pair_s
    alone_s = values["computed_tokens"] * (values["compute_per_token_s"] + pair_s * prompt)
    assert prefill.value == pytest.approx(alone_s, rel=1e-3)
    assert prefill.low < prefill.value < prefill.high


def test_rates_keep_the_ratio_that_the_load_tells() -> None:
    rates = {
        "prompt_tokens_per_s": Range(1_000.0, 800.0, 1_200.0),
        "output_tokens_per_s": Range(8.0, 6.0, 9.0),
    }
    moved = with_given_ratio(rates, 0.0125)
    prompt, output = moved["prompt_tokens_per_s"], moved["output_tokens_per_s"]
    assert output.value / prompt.value == pytest.approx(0.0125)
    assert prompt.value / 1_000 == pytest.approx(8 / output.value)
    assert prompt.low / prompt.value == pytest.approx(0.8)
    assert with_given_ratio(rates, None) == rates


def test_an_interval_down_to_nothing_stays_so() -> None:
    """Of a queue that may not be there; a level that measured 0 counts as held."""
    moved = combined(Range(0.2, 0.0, 0.9), 1.5, "queue_mean_s", 0.5)
    assert moved.low == 0.0 < moved.value < moved.high
    assert combined(Range(0.2, 0.1, 0.9), 1.5, "queue_mean_s", 0.5).low > 0.1
    held, missed = (
        Row(1, "given", "queue_mean_s", 0.0, 0.1, low, 0.4, None, None, True, None) for low in (0.0, 0.05)
    )
    seen = Row(5, "given", "queue_mean_s", 1.0, 1.1, 0.5, 2.0, 0.1, None, True, None)
    for rows, share in (((held, seen), 1.0), ((missed, seen), 0.5)):
        found = summarise(rows, "given", "queue_mean_s")
        assert found is not None
        assert (found.rows, found.coverage) == (1, share)
