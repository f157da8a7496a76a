"""A choice of hardware on the screen, as a document and as a figure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from replicast.sim.planning.hardware import BreakEven, Choice
from replicast.sim.report.figures import BLUE, GREY
from replicast.sim.report.figures_plan import new_figure
from replicast.sim.report.numbers import UNKNOWN, dollars, significant
from replicast.sim.report.text import plural, table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

HARDWARE_SCHEMA = "replicast/hardware/1"


def hardware_answer(rows: Sequence[Choice], developers: int) -> str:
    """The first line: the cheapest that meets."""
    best = rows[0]
    if best.replicas is None:
        return (
            f"Answer: none of {plural(len(rows), 'kind')} meets the SLO for {plural(developers, 'developer')}"
        )
    cost = "" if best.usd_per_hour is None else f", ${best.usd_per_hour:,.2f}/h"
    per = (
        ""
        if best.usd_per_developer_hour is None
        else f", ${dollars(best.usd_per_developer_hour)}/developer-hour"
    )
    return f"Answer: {best.name}, {plural(best.replicas, 'replica')} for {developers:,} developers{cost}{per}"


def hardware_cells(rows: Sequence[Choice]) -> tuple[list[str], list[list[str]], list[int]]:
    """One row a kind."""
    header = ["hardware", "replicas", "boxes", "$/h", "$/developer-hour", "TTFT p90", "SLO", "on the front"]
    body = [
        [
            row.name,
            UNKNOWN if row.replicas is None else str(row.replicas),
            UNKNOWN if row.boxes is None else str(row.boxes),
            UNKNOWN if row.usd_per_hour is None else f"{row.usd_per_hour:,.2f}",
            dollars(row.usd_per_developer_hour),
            UNKNOWN if row.ttft_p90_s is None else f"{significant(row.ttft_p90_s, 2)} s",
            row.verdict,
            "yes" if row.on_front else "no",
        ]
        for row in rows
    ]
    return header, body, [0, 6, 7]


def break_even_lines(found: Sequence[BreakEven]) -> list[str]:
    """When a kind overtakes another."""
    return [
        f"{even.dearer} stays cheaper than {even.cheaper} for any number of developers"
        if even.developers is None
        else f"{even.cheaper} is cheaper than {even.dearer} from {plural(even.developers, 'developer')} on"
        for even in found
    ]


def hardware_text(
    rows: Sequence[Choice], found: Sequence[BreakEven], developers: int, assumptions: Sequence[str]
) -> str:
    """The answer as printed."""
    header, body, left = hardware_cells(rows)
    parts = [hardware_answer(rows, developers), "\n".join(assumptions), table(header, body, left=left)]
    if found:
        lines = break_even_lines(found)
        parts.append("\n".join([*lines, "(developers a replica as in the plan of each, boxes paid whole)"]))
    return "\n\n".join(part for part in parts if part) + "\n"


def hardware_object(rows: Sequence[Choice], found: Sequence[BreakEven]) -> dict[str, object]:
    """The part of the document that is the choice's."""
    return {
        "choices": [row._asdict() for row in rows],
        "break_even": [even._asdict() for even in found],
    }


def front_figure(rows: Sequence[Choice]) -> Figure:
    """$ per developer-hour against TTFT p90; the kinds on the front are joined."""
    figure, axes = new_figure()
    known = [
        (row.ttft_p90_s, row.usd_per_developer_hour, row.name, row.on_front)
        for row in rows
        if row.ttft_p90_s is not None and row.usd_per_developer_hour is not None
    ]
    front = sorted((x, y) for x, y, _, on_front in known if on_front)
    axes.plot([x for x, _ in front], [y for _, y in front], "-", color=BLUE, linewidth=1)
    for x, y, name, on_front in known:
        axes.plot([x], [y], "o", color=BLUE if on_front else GREY, markersize=8)
        axes.annotate(name, (x, y), xytext=(6, 5), textcoords="offset points", fontsize=9)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    axes.margins(x=0.3)
    axes.set_xlabel("TTFT p90, seconds")
    axes.set_ylabel("$ per developer-hour")
    axes.set_title("Cost against waiting by hardware")
    return figure
