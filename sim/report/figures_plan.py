"""Figures of a plan: waiting against replicas, its parts, cost against waiting, the cliff of the cache."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.planning.cliff import CliffPoint
from replicast.sim.planning.quantiles import Estimate
from replicast.sim.planning.rows import PlanRow
from replicast.sim.planning.slo import SLO
from replicast.sim.report.figures import BLUE, GREEN, GREY, ORANGE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

VERMILION = "#D55E00"
_COLORS = {"meets": GREEN, "inconclusive": ORANGE, "fails": VERMILION}
_SIZE = (6.4, 3.8)


def new_figure() -> tuple[Figure, Axes]:
    """One plot, without frame on top and right."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=_SIZE, layout="constrained")
    axes = figure.subplots()
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def waiting_figure(rows: Sequence[PlanRow], slos: Sequence[SLO], by: str = "replicas") -> Figure:
    """TTFT p50 and p90 against replicas, intervals as bands, the limit as a dashed line."""
    figure, axes = new_figure()
    x = [getattr(row, by) for row in rows]
    for label, color, estimates in (
        ("TTFT p90", ORANGE, [row.ttft_p90_s for row in rows]),
        ("TTFT p50", BLUE, [row.ttft_p50_s for row in rows]),
    ):
        _band(axes, x, estimates, label, color)
    for slo in slos:
        if slo.metric == "ttft":
            axes.axhline(slo.limit_s, color=GREY, linestyle="--", linewidth=1.2)
            axes.annotate(
                str(slo), (1.0, slo.limit_s), xycoords=("axes fraction", "data"), ha="right", va="bottom",
                color="#555555", fontsize=9,
            )  # fmt: skip
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xticks(x, [f"{count:,}" for count in x])
    axes.set_xlabel(by)
    axes.set_ylabel("seconds")
    axes.set_title("Time to first token")
    axes.legend(frameon=False)
    return figure


def _band(axes: Axes, x: Sequence[int], estimates: Sequence[Estimate], label: str, color: str) -> None:
    pairs = list(zip(x, estimates, strict=True))
    known = [(at, e.value) for at, e in pairs if e.value is not None]
    axes.plot([at for at, _ in known], [value for _, value in known], "o-", color=color, label=label)
    ranged = [(at, e.low, e.high) for at, e in pairs if e.low is not None and e.high is not None]
    if len(ranged) > 1:
        axes.fill_between(
            [at for at, _, _ in ranged],
            [low for _, low, _ in ranged],
            [high for _, _, high in ranged],
            color=color, alpha=0.2, linewidth=0,
        )  # fmt: skip
    elif ranged:
        at, low, high = ranged[0]
        axes.plot([at, at], [low, high], color=color, alpha=0.3, linewidth=6)


def parts_figure(rows: Sequence[PlanRow], by: str = "replicas") -> Figure:
    """What the mean TTFT is made of."""
    figure, axes = new_figure()
    ticks = range(len(rows))
    bottoms = [0.0] * len(rows)
    for label, color, estimates in (
        ("queue", ORANGE, [row.queue_mean_s for row in rows]),
        ("prefill", BLUE, [row.prefill_mean_s for row in rows]),
        ("input wait", GREEN, [row.input_wait_mean_s for row in rows]),
        ("front end and delivery", GREY, [row.front_end_mean_s for row in rows]),
    ):
        heights = [e.value or 0.0 for e in estimates]
        axes.bar(ticks, heights, bottom=bottoms, color=color, label=label, width=0.6)
        bottoms = [b + h for b, h in zip(bottoms, heights, strict=True)]
    usual = sorted(bottoms)[: max(1, len(bottoms) - 1)][-1]  # a congested count must not flatten the others
    axes.set_ylim(0, min(max(bottoms), 8 * usual) * 1.25 or 1.0)
    for at, height in zip(ticks, bottoms, strict=True):
        if height > axes.get_ylim()[1]:
            axes.annotate(
                f"{height:,.0f} s", (at, axes.get_ylim()[1]), ha="center", va="top", fontsize=9, color="white"
            )
    axes.set_xticks(list(ticks), [f"{getattr(row, by):,}" for row in rows])
    axes.set_xlabel(by)
    axes.set_ylabel("seconds")
    axes.set_title("What the mean time to first token is made of")
    axes.legend(frameon=False)
    return figure


def cost_figure(rows: Sequence[PlanRow], slos: Sequence[SLO]) -> Figure | None:
    """$ per developer-hour against TTFT p90, one point a count, coloured by verdict; None without a price."""
    if all(row.usd_per_developer_hour is None for row in rows):
        return None
    figure, axes = new_figure()
    seen: dict[str, None] = {}
    for row in rows:
        if row.usd_per_developer_hour is None or row.ttft_p90_s.value is None:
            continue
        label = None if row.verdict in seen else row.verdict
        seen[row.verdict] = None
        x, y = row.ttft_p90_s.value, row.usd_per_developer_hour
        axes.plot([x], [y], "o", color=_COLORS[row.verdict], label=label, markersize=8)
        axes.annotate(f"{row.replicas}", (x, y), xytext=(6, 5), textcoords="offset points", fontsize=9)
        if row.ttft_p90_s.low is not None and row.ttft_p90_s.high is not None:
            axes.plot(
                [row.ttft_p90_s.low, row.ttft_p90_s.high], [y, y], color=_COLORS[row.verdict], alpha=0.4
            )
    for slo in slos:
        if slo.name == "ttft:p90":
            axes.axvline(slo.limit_s, color=GREY, linestyle="--", linewidth=1.2)
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("TTFT p90, seconds")
    axes.set_ylabel("$ per developer-hour")
    axes.set_title("Cost against waiting (numbers are replicas)")
    axes.legend(frameon=False)
    return figure


def cliff_figure(points: Sequence[CliffPoint], replicas: int) -> Figure:
    """Hit rate against the pool of a replica, one line for each number of live sessions."""
    figure, axes = new_figure()
    lives = sorted({point.live_sessions for point in points})
    for live, color in zip(lives, (GREEN, BLUE, VERMILION, ORANGE), strict=False):
        ours = sorted((p.pool_tokens, p.hit_rate) for p in points if p.live_sessions == live)
        axes.plot(
            [tokens / 1e6 for tokens, _ in ours], [100 * hit for _, hit in ours], "o-", color=color,
            label=f"{live:,} live sessions",
        )  # fmt: skip
    axes.set_ylim(0, 100)
    axes.set_xlabel("KV pool of a replica, million tokens")
    axes.set_ylabel("hit rate, % of prompt tokens")
    axes.set_title(f"Where reuse falls off ({replicas} replica{'s' if replicas > 1 else ''})")
    axes.legend(frameon=False)
    return figure
