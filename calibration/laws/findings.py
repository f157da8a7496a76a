"""What a law says: findings, and rows of the table of levels against checks.

Severities:
* `fail`: the level (or, without one, the whole sweep) must not be learned from.
* `warn`: it can be used if one knows this; the sweep is then *usable with care*.
* `note`: worth knowing, no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from replicast.calibration.facts import Gpu
from replicast.calibration.profile import Profile
from replicast.calibration.server import ServerFacts
from replicast.calibration.sweep import Sweep, SweepLevel

Severity = Literal["fail", "warn", "note"]
Value = float | int | str | None
Evidence = tuple[tuple[str, Value], ...]
LEGIBLE = 1e12  # from here on digits are counted, not read


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that a law says; `level` is a position in the sweep, None for the whole of it.

    `evidence` are the figures that show it, units in their names; `check` names the row of the table.
    """

    law: int
    check: str
    severity: Severity
    text: str
    evidence: Evidence = ()
    remedy: str = ""
    level: int | None = None


class Row(NamedTuple):
    """One row of the table: what was looked at in each level, and the law in a few words.

    Findings with the same `check` mark its cells; `title` names the figures, with their unit.
    """

    check: str
    title: str
    cells: tuple[str, ...]
    law: str


class Answer(NamedTuple):
    """All that one law says."""

    findings: tuple[Finding, ...] = ()
    rows: tuple[Row, ...] = ()


@dataclass(frozen=True, slots=True)
class Case:
    """A sweep, and what is told or known beside it.

    `parallel_per_session` is how many requests one session can have in the server at once; None is not told.
    `gpu` and `facts` are None where the sweep names neither GPU nor instance; `facts` also where the model is
    not known.
    """

    sweep: Sweep
    parallel_per_session: int | None = None
    gpu: Gpu | None = None
    gpus: int | None = None
    facts: ServerFacts | None = None
    profile: Profile | None = None
    against: Sweep | None = None

    @property
    def levels(self) -> tuple[SweepLevel, ...]:
        """The levels in their order."""
        return self.sweep.levels

    def index(self, concurrency: int) -> int | None:
        """Where the level of so many sessions stands."""
        return next((i for i, level in enumerate(self.levels) if level.concurrency == concurrency), None)


def label(level: SweepLevel) -> str:
    """How a level is named in tables: c=5, or 2.5/s in open loop."""
    if level.concurrency is not None:
        return f"c={level.concurrency}"
    return f"{level.request_rate:.3g}/s" if level.request_rate is not None else level.name or "?"


def listed(levels: Sequence[SweepLevel]) -> str:
    """Labels of several levels: c=2, 5, 7.

    >>> listed([SweepLevel(concurrency=2), SweepLevel(concurrency=5)])
    'c=2, 5'
    """
    if all(level.concurrency is not None for level in levels):
        return "c=" + ", ".join(str(level.concurrency) for level in levels)
    return ", ".join(label(level) for level in levels)


def show(value: float | None, digits: int = 3, unit: str = "") -> str:
    """A figure with so many significant digits, `-` where it is not known.

    >>> show(1234.5), show(0.01234, 2, " s"), show(None), show(248.4)
    ('1,230', '0.012 s', '-', '248')
    >>> show(1e300)
    '1e+300'
    """
    if value is None:
        return "-"
    if value == 0:
        return f"0{unit}"
    rounded = float(f"{value:.{digits}g}")
    if LEGIBLE > abs(rounded) >= 10 ** (digits - 1):
        return f"{rounded:,.0f}{unit}"
    return f"{rounded:g}{unit}"
