"""A check of docs/accuracy.md: would the rival's shares have been chosen alike without the sweep at hand?

`validate.SHARES` were chosen on the sweeps whose errors the page shows. Here each sweep's predictions take
the shares that suit the other sweeps best (smallest mean of |log error|, at most 1 a level), so that no
figure of a sweep has a say in its own errors.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence

from replicast.calibration.predict import Load, Range
from replicast.calibration.rows import LABELS, Row, combined

SHARES_TRIED = (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8)


def share_lines(sweeps: Sequence[Sequence[Row]], titles: dict[Load, str], names: Sequence[str]) -> list[str]:
    """The section: medians of absolute errors with shares chosen on other sweeps; `sweeps` are their rows."""
    lines = [
        "### Leave one sweep out: shares of the interpolation chosen on the other sweeps",
        "",
        "| load | " + " | ".join(LABELS[name] for name in names) + " |",
        "|---" * (len(names) + 1) + "|",
    ]
    for load, title in titles.items():
        cells = [_cell(sweeps, load, name) for name in names]
        lines.append(f"| {title} | " + " | ".join(cells) + " |")
    return [*lines, ""]


def _cell(sweeps: Sequence[Sequence[Row]], load: Load, name: str) -> str:
    chosen = [
        [r for r in rows if r.load == load and r.metric == name and r.error is not None] for rows in sweeps
    ]
    errors: list[float] = []
    for at, rows in enumerate(chosen):
        others = [row for i, other in enumerate(chosen) if i != at for row in other]
        share = best_share(others)
        errors += [abs(_with_share(row, share) / row.measured - 1) for row in rows]
    return f"{100 * statistics.median(errors):.1f}" if errors else "-"


def best_share(rows: Sequence[Row]) -> float:
    """The share of the rival with which these rows come out best."""

    def loss(share: float) -> float:
        return sum(
            min(abs(math.log(max(_with_share(r, share), 1e-9) / max(r.measured, 1e-9))), 1.0) for r in rows
        )

    return min(SHARES_TRIED, key=loss)


def _with_share(row: Row, share: float) -> float:
    alone = Range(row.simulated, row.simulated, row.simulated)
    return combined(alone, row.interpolated, row.metric, share).value
