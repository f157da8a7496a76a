"""How many developers are at work in each hour of a day.

The shipped curve is an assumption, not a measurement: an office day from eight to seven with a dip at
noon, six developers in ten with a live session in the busiest hour, a few at night. Put your own in its
place: a CSV with a column `hour` (0 to 23) and a column `active_share` (0 to 1) or `active_developers`.
"""

from __future__ import annotations

import csv
from pathlib import Path

from replicast.sim.errors import InputError

DAY_SOURCE = "assumed office day, six in ten active at the peak (not measured)"
OFFICE_DAY: tuple[float, ...] = (
    0.01, 0.01, 0.01, 0.01, 0.01, 0.01, 0.02, 0.08, 0.25, 0.45, 0.58, 0.55,
    0.35, 0.45, 0.58, 0.60, 0.55, 0.42, 0.22, 0.10, 0.06, 0.05, 0.03, 0.02,
)  # fmt: skip


def busiest(day: tuple[float, ...]) -> tuple[int, float]:
    """The hour with the largest active share, the first of several, and that share."""
    share = max(day)
    return day.index(share), share


def read_day(path: Path | str, developers: int) -> tuple[float, ...]:
    """Active shares of 24 hours from a CSV; hours it leaves out have nobody at work."""
    where = str(path)
    try:
        text = Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"cannot be read: {getattr(error, 'strerror', None) or error}", where=where
        ) from error
    rows = list(csv.DictReader(text.splitlines()))
    names = set(rows[0]) if rows else set()
    column = next((name for name in ("active_share", "active_developers") if name in names), None)
    if column is None or "hour" not in names:
        raise InputError(
            "has no columns hour and active_share (or active_developers)",
            where=where,
            remedy="First line: hour,active_share",
        )
    day = [0.0] * 24
    seen: dict[int, int] = {}
    for line, row in enumerate(rows, start=2):
        hour, value = _number(row["hour"], where, line), _number(row[column], where, line)
        if hour != int(hour) or not 0 <= hour <= 23:
            raise InputError(f"hour {row['hour']} is not 0 to 23", where=f"{where}:{line}")
        if int(hour) in seen:
            raise InputError(f"hour {hour:g} is given twice", where=f"{where}:{line}")
        seen[int(hour)] = line
        share = value if column == "active_share" else value / developers
        if not 0 <= share <= 1:
            raise InputError(
                f"{column} {row[column]} is not a share of {developers} developers",
                where=f"{where}:{line}",
                remedy="An active share lies between 0 and 1.",
            )
        day[int(hour)] = share
    if max(day) == 0:
        raise InputError("nobody is active in any hour", where=where)
    return tuple(day)


def _number(text: str | None, where: str, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = float("nan")
    if value != value or abs(value) == float("inf"):
        raise InputError(f"{text!r} is not a number", where=f"{where}:{line}")
    return value
