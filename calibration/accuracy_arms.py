"""Tables of docs/accuracy.md across arms: one server's profile predicts another's sweep.

Same server with other seats: the profile as it is. Another GPU: every coefficient scaled by the ratio of its
physical priors on the two GPUs, and no corrections, because those belong to the sweep they come from. The
load's lengths are given; its latents are those of the profile.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import replace
from typing import NamedTuple

from replicast.calibration.harness import ServerModel, run_level
from replicast.calibration.held_out import predicted_rows
from replicast.calibration.learned import Learned, facts_of, learned_of, steps_of
from replicast.calibration.model import LevelModel, Point
from replicast.calibration.predict import MATCH_SEEDS, MATCHES
from replicast.calibration.profile import Profile, StepSeconds, load_profile
from replicast.calibration.published import published_sweeps
from replicast.calibration.rows import LABELS
from replicast.calibration.server import ServerFacts, server_facts
from replicast.calibration.sweep import SweepLevel
from replicast.sim.engine.step_time import StepTime

ARMS = (
    ("qwen3.8-27b-h200-tp1", "qwen3.8-27b-h200-tp1-seqs128"),
    ("qwen3.8-27b-h200-tp1", "qwen3.8-27b-g6e"),
    ("qwen3.8-27b-l40s-tp1", "qwen3.8-27b-h200-tp1"),
    ("qwen3.6-35b-l40s-tp4", "qwen3.6-35b-h200-tp1"),
    ("qwen3.6-35b-h200-tp1", "qwen3.6-35b-g6e12xlarge"),
)
METRICS = ("output_tokens_per_s", "tpot_mean_s", "ttft_mean_s", "running_mean")


class ArmResult(NamedTuple):
    """Medians of absolute and of signed errors, and the most running at the largest level."""

    source: str
    target: str
    errors: Mapping[str, tuple[float, float]]
    peak_running: float
    peak_measured: float


def arm_results() -> list[ArmResult]:
    """Every pair of arms."""
    return [_arm(load_profile(source), target) for source, target in ARMS]


def arm_lines(results: list[ArmResult]) -> list[str]:
    """Markdown."""
    head = "| profile | predicts | " + " | ".join(LABELS[name] for name in METRICS)
    lines = [f"{head} | most running, predicted / measured |", "|---" * (len(METRICS) + 3) + "|"]
    for found in results:
        cells = [f"{100 * a:.0f} ({100 * s:+.0f})" for a, s in (found.errors[name] for name in METRICS)]
        peak = f"{found.peak_running:.0f} / {found.peak_measured:.0f}"
        lines.append(f"| {found.source} | {found.target} | " + " | ".join(cells) + f" | {peak} |")
    return lines


def arm_section() -> list[str]:
    """The section of the page."""
    return [
        "## From one server to another",
        "",
        "Load given; medians over levels of absolute errors in percent, signed median in brackets. "
        "Another GPU: coefficients scaled by physics, no corrections.",
        "",
        *arm_lines(arm_results()),
        "",
    ]


def _arm(profile: Profile, target: str) -> ArmResult:
    sweep = published_sweeps()[target]
    there, here = server_facts(sweep), facts_of(profile)
    learned = learned_of(profile)
    if there.gpu.name != here.gpu.name:
        learned = _scaled(learned, profile, here, there)
    facts = replace(
        there, priors={n: p._replace(value=learned.point.values[n]) for n, p in there.priors.items()}
    )
    rows = [row for level in sweep.levels for row in predicted_rows(level, facts, learned, loads=("given",))]
    errors = {}
    for name in METRICS:
        found = [row.error for row in rows if row.metric == name and row.error is not None]
        errors[name] = (statistics.median(abs(e) for e in found), statistics.median(found))
    last = sweep.levels[-1]
    measured = last.running.peak if last.running and last.running.peak else 0.0
    return ArmResult(profile.name, target, errors, _peak(last, facts, learned), measured)


def _scaled(learned: Learned, profile: Profile, here: ServerFacts, there: ServerFacts) -> Learned:
    """Coefficients on another GPU: each times the ratio of what physics expects on the two."""
    from replicast.calibration.physics import priors

    before = priors(there.model, here.gpu, profile.tensor_parallel_size)
    values = dict(learned.point.values)
    for name in StepSeconds._fields:
        values[name] *= there.priors[name].value / max(before[name].value, 1e-15)
    return replace(learned, point=Point(values), levels=(), params=(), x=learned.x[:0])


def _peak(level: SweepLevel, facts: ServerFacts, learned: Learned) -> float:
    model = LevelModel(level, facts, learned.centre, front_end=learned.front_end, growth=learned.growth)
    for _ in range(MATCHES):
        model.match(learned.point, MATCH_SEEDS)
    steps = StepTime.from_seconds(**steps_of(learned.point.values)._asdict())
    server = ServerModel(model.config(learned.point), steps, learned.front_end)
    peaks = [
        run_level(model.load(learned.point), server, seed).replicas[0].peak_running for seed in MATCH_SEEDS
    ]
    return statistics.mean(peaks)
