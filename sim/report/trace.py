"""What a trace holds, on the screen: the import report and the statistics, one line a figure.

Takes plain values, because this package lies below the traces.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

from replicast.sim.report.numbers import UNKNOWN, significant
from replicast.sim.report.text import table

# Keys of `TraceStats.to_dict`: those in percent, and how the other names are spelled out.
SHARES = (
    "hit_rate_within",
    "hit_rate_across",
    "session_hit_rate",
    "human_gap_over_300s",
    "human_turn_share",
    "re_prefill_share",
)


class Report(Protocol):
    """An import report (`traces/report.py`)."""

    format: str
    rows_read: int
    rows_emitted: int
    estimated_outputs: int

    @property
    def inputs(self) -> Sequence[Any]: ...
    @property
    def dropped(self) -> Mapping[str, int]: ...
    @property
    def flags(self) -> Mapping[str, int]: ...
    @property
    def notes(self) -> Sequence[str]: ...


class Compared(Protocol):
    """One asked-for figure against the one obtained (`traces/synth.py`)."""

    @property
    def name(self) -> str: ...
    @property
    def asked(self) -> float: ...
    @property
    def obtained(self) -> float | None: ...
    @property
    def error(self) -> float | None: ...


def import_lines(report: Report) -> list[str]:
    """Rows read, emitted and dropped, and what was noticed."""
    files = f"{len(report.inputs)} files" if len(report.inputs) != 1 else str(report.inputs[0].path)
    dropped = report.rows_read - report.rows_emitted
    lines = [
        f"{files} ({report.format}): {report.rows_read:,} rows read, {report.rows_emitted:,} used, "
        f"{dropped:,} dropped"
    ]
    lines += [f"  dropped: {number:,} {reason}" for reason, number in sorted(report.dropped.items())]
    if report.estimated_outputs:
        lines.append(f"  estimated: the output of {report.estimated_outputs:,} requests")
    lines += [f"  flagged: {number:,} {flag}" for flag, number in sorted(report.flags.items())]
    return lines + [f"  {note}" for note in report.notes]


def stats_lines(stats: Mapping[str, Any]) -> str:
    """One table for quantities with a spread, one for single figures."""
    spreads: list[list[str]] = []
    singles: list[list[str]] = []
    for name, value in stats.items():
        if name == "causes":
            singles += [[f"turns by {cause}", f"{c['requests']:,}"] for cause, c in value.items()]
        elif isinstance(value, Mapping):
            keys = ("mean", "p10", "p50", "p90", "p99", "max")
            spreads.append([name, f"{value['n']:,}", *(_figure(name, value.get(key)) for key in keys)])
        else:
            singles.append([name, _figure(name, value)])
    head = ["per item", "n", "mean", "p10", "p50", "p90", "p99", "max"]
    return table(["in all", ""], singles, left=[0]) + "\n\n" + table(head, spreads, left=[0])


def developers_table(load: Mapping[str, Any]) -> str:
    """What one live session asks, one value a spell of work; and how that was told."""
    keys = ("mean", "p10", "p50", "p90", "max")
    rows = [
        [name, *(_figure(name, value[key]) for key in keys)]
        for name, value in load.items()
        if isinstance(value, Mapping)
    ]
    how = (
        "recorded arrivals"
        if load["recorded"]
        else "gaps alone (no arrivals recorded): rates are upper bounds"
    )
    said = (
        f"{load['spells']:,} spells of work without a gap over ten minutes, by {how}; "
        f"{load['short_spells']:,} under five minutes left out"
    )
    return table(["of a live session", *keys], rows, left=[0]) + f"\n\n{said}"


def compare_table(rows: Iterable[Compared]) -> str:
    """Asked for against obtained."""
    body = [
        [
            row.name,
            _figure(row.name.split(".")[0], row.asked),
            _figure(row.name.split(".")[0], row.obtained),
            UNKNOWN if row.error is None else f"{100 * row.error:+.1f}%",
        ]
        for row in rows
    ]
    return table(["figure", "asked for", "obtained", "off by"], body, left=[0])


def _figure(name: str, value: float | None) -> str:
    if value is None:
        return UNKNOWN
    if name in SHARES:
        return f"{100 * value:.1f}%"
    return f"{value:,}" if isinstance(value, int) else significant(value)
