"""Sweeps in, answers out: `check` and `calibrate` for a notebook, as the commands of the same names.

from replicast import calibrate, check
checked = check("sweep.duckdb")
print(checked.text())
learned = calibrate("sweep.duckdb", hardware="H200")
learned.to_frame()
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from replicast.calibration.calibrate import Calibration
from replicast.calibration.check import CheckResult, check_sweep
from replicast.calibration.profile import Profile, write_profile
from replicast.calibration.readers.detect import read_sweep
from replicast.calibration.sweep import Sweep
from replicast.calibration.synchronous import Synchronous, learn
from replicast.calibration.trace_load import trace_load
from replicast.library.answers import pre
from replicast.sim.report.check import check_document, check_text
from replicast.traces.load import LoadedTrace, load_trace

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class CheckAnswer:
    """Whether a sweep can be trusted; `result` has findings and levels."""

    result: CheckResult

    @property
    def exit_code(self) -> int:
        """0, or 3 if the sweep is not usable."""
        return 0 if self.result.ok else 3

    def text(self) -> str:
        """As `replicast check` prints it."""
        return check_text(self.result)

    def document(self) -> dict[str, object]:
        """The findings of `replicast/check/1`."""
        return check_document(self.result)

    def to_frame(self) -> pd.DataFrame:
        """One row a finding."""
        import pandas as pd

        labels = self.result.labels()
        return pd.DataFrame(
            {
                "law": finding.law,
                "check": finding.check,
                "severity": finding.severity,
                "level": None if finding.level is None else labels[finding.level],
                "text": finding.text,
                "remedy": finding.remedy,
            }
            for finding in self.result.findings
        )

    def _repr_html_(self) -> str:
        return pre(self.text())


@dataclass(frozen=True, slots=True)
class CalibrationAnswer:
    """What was learned of a server; `result` has all of it, `profile` is what plans take."""

    result: Calibration | Synchronous

    @property
    def profile(self) -> Profile:
        """The fitted profile."""
        return self.result.profile

    def text(self) -> str:
        """As `replicast calibrate` prints it."""
        return self.result.report_text()

    def document(self) -> dict[str, Any]:
        """The document of `replicast calibrate --json`."""
        return self.result.to_document()

    def write(self, path: str | Path) -> None:
        """Write the profile as TOML."""
        write_profile(self.profile, Path(path))

    def to_frame(self) -> pd.DataFrame:
        """One row a parameter: its value and 95 % interval."""
        import pandas as pd

        return pd.DataFrame(self.document()["parameters"])

    def _repr_html_(self) -> str:
        return pre(self.text())


def check(sweep: Sweep | str | Path, **options: Any) -> CheckAnswer:
    """Check a sweep, or a file of one; options as `calibration.check.check_sweep` has them."""
    return CheckAnswer(check_sweep(_sweep(sweep), **options))


def calibrate(
    sweep: Sweep | str | Path, *, trace: LoadedTrace | str | Path | None = None, **options: Any
) -> CalibrationAnswer:
    """Learn a server from a sweep, or a file of one; what a `trace` of the same load tells is given.

    Other options as `calibration.synchronous.learn` has them.
    """
    loaded = load_trace([trace]) if isinstance(trace, (str, Path)) else trace
    told = None if loaded is None else trace_load(loaded)
    return CalibrationAnswer(learn(_sweep(sweep), trace=told, **options))


def _sweep(sweep: Sweep | str | Path) -> Sweep:
    return sweep if isinstance(sweep, Sweep) else read_sweep(sweep)
