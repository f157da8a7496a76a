"""The replay figure: what developers wait against the number of replicas, and what the wait is made of.

Drawn without pyplot: no global state, no window, half the import time. Same rows, same bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from replicast.sim.planning.summary import ReplayRow
from replicast.sim.report.files import write_atomically

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, told apart by colour-blind readers too.
BLUE, ORANGE, GREEN, GREY = "#0072B2", "#E69F00", "#009E73", "#999999"


def replay_figure(rows: Sequence[ReplayRow], title: str) -> Figure:
    """TTFT p50 and p90 with their ranges, and beside it mean TTFT stacked by its parts."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    ticks = list(range(len(rows)))
    for axes in (left, right):
        axes.set_xticks(ticks, [str(row.replicas) for row in rows])
        axes.set_xlabel("replicas")
        axes.set_ylabel("seconds")
        axes.spines[["top", "right"]].set_visible(False)
    _quantiles(left, rows)
    _parts(right, rows)
    figure.suptitle(title)
    return figure


def _quantiles(axes: Axes, rows: Sequence[ReplayRow]) -> None:
    known = False
    for label, color, estimates in (
        ("p90", ORANGE, [row.ttft_p90_s for row in rows]),
        ("p50", BLUE, [row.ttft_p50_s for row in rows]),
    ):
        shown = [(x, e.value) for x, e in enumerate(estimates) if e.value is not None]
        known = known or bool(shown)
        axes.plot([x for x, _ in shown], [value for _, value in shown], "o-", color=color, label=label)
        for x, e in enumerate(estimates):
            if e.low is not None and e.high is not None:
                axes.plot([x, x], [e.low, e.high], color=color, alpha=0.5, linewidth=4)
    axes.set_title("Time to first token, 95% ranges")
    if known:
        axes.set_ylim(bottom=0)
        axes.legend(frameon=False)


def _parts(axes: Axes, rows: Sequence[ReplayRow]) -> None:
    parts = (
        ("queue", ORANGE, [row.queue_mean_s for row in rows]),
        ("prefill", BLUE, [row.prefill_mean_s for row in rows]),
        ("input wait", GREEN, [row.input_wait_mean_s for row in rows]),
        ("front-end and delivery", GREY, [row.front_end_mean_s for row in rows]),
    )
    bottoms = [0.0] * len(rows)
    for label, color, estimates in parts:
        heights = [estimate.value or 0.0 for estimate in estimates]
        axes.bar(range(len(rows)), heights, bottom=bottoms, color=color, label=label, width=0.6)
        bottoms = [bottom + height for bottom, height in zip(bottoms, heights, strict=True)]
    axes.set_title("What the mean TTFT is made of")
    axes.set_ylim(top=max(bottoms) * 1.35 or 1.0)  # room for the legend
    axes.legend(frameon=False, ncols=2, loc="upper center")


def write_figure(figure: Figure, path: Path) -> None:
    """Save as the path's suffix says, without the date and program version that would change the bytes."""
    from matplotlib import rc_context

    metadata = {".svg": {"Date": None, "Creator": None}, ".png": {"Software": None}}[path.suffix]
    with rc_context({"svg.hashsalt": "replicast", "svg.fonttype": "none"}):
        write_atomically(path, lambda temporary: figure.savefig(temporary, metadata=metadata, dpi=150))
