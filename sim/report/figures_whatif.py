"""The figure of a what-if: each arm's TTFT beside the case as it is, and its hit rate."""

from __future__ import annotations

from typing import TYPE_CHECKING

from replicast.sim.planning.whatif import WhatIf
from replicast.sim.report.figures import BLUE, GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def arms_figure(whatif: WhatIf) -> Figure:
    """TTFT p50 and p90 of each arm; the hit rate stands under its name."""
    from matplotlib.figure import Figure

    names, p50, p90 = ["as it is"], [], []
    figures = {d.name: d for d in whatif.arms[0].differences}
    p50.append(figures["TTFT p50"].before or 0.0)
    p90.append(figures["TTFT p90"].before or 0.0)
    names[0] += f"\nhit rate {100 * (figures['hit rate'].before or 0.0):.0f}%"
    for arm in whatif.arms:
        figures = {d.name: d for d in arm.differences}
        hit = 100 * (figures["hit rate"].after or 0.0)
        names.append(f"{arm.name.replace(' ', chr(10))}\nhit rate {hit:.0f}%")
        p50.append(figures["TTFT p50"].after or 0.0)
        p90.append(figures["TTFT p90"].after or 0.0)
    figure = Figure(figsize=(max(5.0, 1.6 * len(names) + 1.5), 4.2), layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    at = range(len(names))
    axes.bar([x - 0.2 for x in at], p50, width=0.38, color=BLUE, label="TTFT p50")
    axes.bar([x + 0.2 for x in at], p90, width=0.38, color=ORANGE, label="TTFT p90")
    for slo in whatif.slos:
        if slo.metric == "ttft":
            axes.axhline(slo.limit_s, color=GREY, linestyle="--", linewidth=1.2)
            axes.annotate(
                str(slo), (1.0, slo.limit_s), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                color="#555555", fontsize=9,
            )  # fmt: skip
    axes.set_xticks(list(at), names, fontsize=8)
    axes.set_ylabel("seconds")
    axes.set_title(f"Time to first token with {whatif.replicas} replicas")
    axes.legend(frameon=False)
    return figure
