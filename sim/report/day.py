"""A day, and the loss of a replica: on the screen, in the document, as figures."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.planning.day import DayComparison, DayFleet
from replicast.sim.planning.failure import BIN_S, Failure, FailureRow
from replicast.sim.planning.slo import SLO
from replicast.sim.report.figures import BLUE, GREY, ORANGE
from replicast.sim.report.numbers import UNKNOWN, share, significant
from replicast.sim.report.text import plural, table

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

Cells = tuple[list[str], list[list[str]], list[int]]


def day_answer(day: DayComparison) -> str:
    """One line: what each fleet costs a day, and how many hours miss the SLO."""
    fixed, scaled = (_fleet_words(fleet) for fleet in (day.fixed, day.scaled))
    return f"A day: {plural(day.replicas, 'replica')} fixed {fixed}; autoscaled {scaled}"


def _fleet_words(fleet: DayFleet) -> str:
    cost = "" if fleet.usd_per_day is None else f"${fleet.usd_per_day:,.2f}, "
    return f"{cost}{fleet.replica_hours:.0f} replica-hours, {fleet.hours_missed:.1f} of 24 hours missed"


def day_lines(day: DayComparison) -> list[str]:
    """How the day was simulated."""
    rule = day.autoscaling
    return [
        f"{plural(day.days, 'day')} from midnight to midnight, the same for both; developers come and leave "
        "in the first quarter of an hour, and caches are cold at midnight",
        f"autoscaling on {rule.metric} per live replica, looked at every {rule.every_s:g} s: above "
        f"{rule.up:.3g} more are started, below {rule.down:.3g} with one fewer for {rule.hold_s:g} s one is "
        f"drained; {rule.min_replicas} to {rule.max_replicas} replicas, {rule.start_up_s:g} s to start, "
        f"{day.scaled.replicas_started:.1f} started a day",
    ]


def day_cells(day: DayComparison) -> Cells:
    """One row an hour."""
    header = ["hour", "live", "requests/h", "replicas", "TTFT p90", "late", "missed"]
    header += ["autoscaled", "TTFT p90", "late", "missed"]
    body = []
    for a, b in zip(day.fixed.hours, day.scaled.hours, strict=True):
        row = [f"{a.hour}:00", str(a.live_sessions), f"{a.requests:,.0f}"]
        for hour, replicas in ((a, f"{a.replicas:.0f}"), (b, f"{b.replicas:.1f}")):
            missed = f"{hour.missed_days} of {day.days}" if hour.missed_days else "-"
            late = share(hour.late_share) if hour.requests else UNKNOWN
            row += [replicas, _time(hour.ttft_p90_s), late, missed]
        body.append(row)
    return header, body, []


def day_costs(day: DayComparison) -> Cells:
    """One row a fleet."""
    header = ["fleet", "$/day", "replica-hours", "most", "started", "late", "hours missed"]
    body = [
        [
            fleet.name,
            UNKNOWN if fleet.usd_per_day is None else f"{fleet.usd_per_day:,.2f}",
            f"{fleet.replica_hours:.1f}",
            str(fleet.most_replicas),
            f"{fleet.replicas_started:.1f}",
            share(fleet.late_share),
            f"{fleet.hours_missed:.1f}",
        ]
        for fleet in (day.fixed, day.scaled)
    ]
    return header, body, [0]


def failure_answer(failure: Failure) -> str:
    """One line: what the loss of a replica does to the planned count."""
    row = failure.rows[0]
    ended = "not over within the hour" if row.recovery_s is None else _over(row)
    return (
        f"One of {plural(row.replicas, 'replica')} lost at the peak: {ended}, "
        f"{row.retried:.1f} requests sent again"
    )


def _over(row: FailureRow) -> str:
    return (
        f"the SLO holds again after {row.recovery_s:.0f} s" if row.recovery_s else "the SLO holds throughout"
    )


def failure_line(failure: Failure) -> str:
    """How it was simulated."""
    after = failure.replaced_after_s
    place = f"a cold one takes its place after {after:g} s" if after else "a spare takes its place at once"
    return (
        f"Over {plural(failure.replications, 'hour')}: the busiest replica goes 20 min into the hour, "
        f"{place}; "
        f"recovered: every SLO holds in three bins of {BIN_S:g} s in a row"
    )


def failure_cells(failure: Failure) -> Cells:
    """One row a replica count and phase."""
    names = [slo.name.replace(":", " ") for slo in failure.slos]
    header = ["replicas", "when", "minutes", "requests", *names, "late", "recovered", "sent again"]
    body = []
    for row in failure.rows:
        recovered = UNKNOWN if row.recovery_s is None else f"{row.recovery_s:.0f} s"
        for phase in row.phases:
            lost = phase is row.during
            body.append(
                [
                    str(row.replicas),
                    phase.name,
                    f"{(phase.end_s - phase.start_s) / 60:.0f}",
                    f"{phase.requests:,.0f}",
                    *(
                        _slo_time(slo, value)
                        for slo, value in zip(failure.slos, phase.slo_values_s, strict=True)
                    ),
                    share(phase.late_share),
                    recovered if lost else "",
                    f"{row.retried:.1f}" if lost else "",
                ]
            )
    return header, body, [1]


def headlines(day: DayComparison | None, failure: Failure | None) -> list[str]:
    """What stands below the answer of the plan."""
    found = [day_answer(day)] if day is not None else []
    return found + ([failure_answer(failure)] if failure is not None else [])


def operations_text(day: DayComparison | None, failure: Failure | None, *, quiet: bool = False) -> str:
    """Both, as printed below a plan."""
    parts = []
    if day is not None:
        lines = [] if quiet else day_lines(day)
        parts += ["\n".join(["A day, hour by hour:", *lines]), _text(day_costs(day)), _text(day_cells(day))]
    if failure is not None:
        lines = [] if quiet else [failure_line(failure)]
        parts += ["\n".join(["Around the loss of a replica:", *lines]), _text(failure_cells(failure))]
    return "\n\n".join(parts) + "\n" if parts else ""


def _text(cells: Cells) -> str:
    header, body, left = cells
    return table(header, body, left=left)


def _time(value_s: float | None) -> str:
    if value_s is None:
        return UNKNOWN
    return "no answer" if math.isinf(value_s) else f"{significant(value_s, 2)} s"


def _slo_time(slo: SLO, value_s: float | None) -> str:
    if value_s is not None and slo.metric == "tpot" and math.isfinite(value_s):
        return f"{significant(1000 * value_s, 2)} ms"
    return _time(value_s)


def day_object(day: DayComparison) -> dict[str, object]:
    """The part of the document that is the day's."""
    return {
        "replicas_fixed": day.replicas,
        "days": day.days,
        "active_share_by_hour": day.shares,
        "autoscaling": day.autoscaling,
        "fleets": [day.fixed, day.scaled],
    }


def failure_object(failure: Failure) -> dict[str, object]:
    """The part of the document that is the loss's."""
    return {
        "replaced_after_s": failure.replaced_after_s,
        "replications": failure.replications,
        "rows": failure.rows,
    }


def day_figure(day: DayComparison) -> Figure:
    """Above replicas and live sessions by hour, below TTFT p90 of both fleets."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.4, 5.2), layout="constrained")
    above, below = figure.subplots(2, 1, sharex=True)
    edges = list(range(25))
    for fleet, color in ((day.fixed, BLUE), (day.scaled, ORANGE)):
        above.stairs([hour.replicas for hour in fleet.hours], edges, color=color, label=fleet.name)
        middles = [hour.hour + 0.5 for hour in fleet.hours]
        below.plot(middles, [_plotted(h.ttft_p90_s) for h in fleet.hours], "o-", color=color, markersize=3)
    live = above.twinx()
    live.stairs([hour.live_sessions for hour in day.fixed.hours], edges, color=GREY, linestyle=":")
    live.set_ylabel("live sessions (dotted)")
    live.set_ylim(bottom=0)
    above.set_ylim(bottom=0)
    above.set_ylabel("replicas paid")
    above.legend(frameon=False, loc="upper left")
    _limits(below, day.slos)
    below.set_ylim(bottom=0)
    below.set_xlim(0, 24)
    below.set_xlabel("hour")
    below.set_ylabel("TTFT p90, seconds")
    above.set_title("A day: fixed and autoscaled")
    for axes in (above, below):
        axes.spines[["top"]].set_visible(False)
    return figure


def failure_figure(failure: Failure) -> Figure:
    """The first SLO's figure in bins around the loss, for the planned count and one more."""
    from replicast.sim.report.figures_plan import new_figure

    figure, axes = new_figure()
    slo = failure.slos[0]
    for row, color in zip(failure.rows, (ORANGE, BLUE), strict=True):
        x = [(b.start_s + b.end_s) / 120 for b in row.bins]
        y = [_plotted(b.slo_values_s[0]) for b in row.bins]
        axes.plot(x, y, "o-", color=color, markersize=3, label=plural(row.replicas, "replica"))
    axes.axvline(0.0, color=GREY, linewidth=1)
    _limits(axes, (slo,), every=True)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("minutes since a replica was lost")
    axes.set_ylabel(f"{slo.name.replace(':', ' ')}, seconds")
    axes.set_title("One replica lost at the peak")
    axes.legend(frameon=False)
    return figure


def _plotted(value_s: float | None) -> float:
    return math.nan if value_s is None or math.isinf(value_s) else value_s


def _limits(axes: Axes, slos: Sequence[SLO], *, every: bool = False) -> None:
    for slo in slos:
        if every or slo.metric == "ttft":
            axes.axhline(slo.limit_s, color=GREY, linestyle="--", linewidth=1.2)
