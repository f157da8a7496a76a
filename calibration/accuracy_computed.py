"""Section of docs/accuracy.md: what counted computed tokens would tell of a level.

A performance summary does not count what of its prompts was computed; the collector's database and
Prometheus do. Here the sweeps are taken as if theirs had been counted: of each level as many as make its
prefill come out as measured, at the point fitted to the summary. Fit and held-out predictions are the
product's, which then has `computed_tokens` given in place of a latent. A held-out level's own prefill is
used, so that its error there means nothing and that of TTFT, of which it is a part, little; rates and TPOT
are predicted as ever.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from replicast.calibration.fit import Fitted, fit
from replicast.calibration.held_out import leave_one_out
from replicast.calibration.model import LevelModel, Point, point_at
from replicast.calibration.predict import MATCH_SEEDS, VALUE_SEEDS
from replicast.calibration.rows import Row
from replicast.calibration.scale import mean_observed, transformed, typical
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import SweepLevel

PREFILL = "prefill_mean_s"
ROUNDS = 8
CLOSE = 0.02  # of a logarithm
GAIN = 0.8  # a round's move: queued prefills lengthen each other
LONGEST = 0.5


def counted_rows(fitted: Fitted, facts: ServerFacts) -> list[Row]:
    """Held-out rows, load given, of levels as if computed tokens had been counted."""
    point = point_at(fitted.params, fitted.x)
    levels = [as_if_counted(model, point) for model in fitted.models]
    return leave_one_out(fit(levels, facts), facts, loads=("given",))


def as_if_counted(model: LevelModel, point: Point) -> SweepLevel:
    """The level with the hit rate at which `point` has its prefill; as it is where that was not measured."""
    wanted = model.measured[PREFILL]
    if wanted is None or model.lengths.computed is not None:
        return model.level
    for _ in range(ROUNDS):
        model.match(point, MATCH_SEEDS)
        gap = transformed(PREFILL, wanted) - typical(model.simulate(point, VALUE_SEEDS), PREFILL)
        if not abs(gap) > CLOSE:
            break
        model.computed_factor *= math.exp(min(max(GAIN * gap, -LONGEST), LONGEST))
    computed = mean_observed(model.simulate(point, VALUE_SEEDS)).computed_per_request
    return replace(model.level, given_hit_rate=max(1 - computed / model.lengths.prompt, 0.0))


def computed_lines(sweeps: Sequence[Sequence[Row]]) -> list[str]:
    """The section of these held-out rows, one sequence a sweep."""
    from replicast.calibration.accuracy import table

    return [
        "### Leave one level out, load given, as if computed tokens had been counted",
        "",
        "Summaries do not count them; the collector's database and Prometheus do. Here they are read off "
        "each level's own prefill, which therefore means nothing in this table, and TTFT, of which it is a "
        "part, little.",
        "",
        *table(sweeps, "given"),
        "",
    ]
