"""What a choice of hardware returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from replicast import __version__
from replicast.library.answers import PlanAnswer, Warned, pre, warned
from replicast.sim.planning.hardware import BreakEven, Choice
from replicast.sim.report.document import dumps

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class HardwareAnswer:
    """Several kinds of hardware for the same developers, each with its own plan."""

    choices: tuple[Choice, ...]
    break_even: tuple[BreakEven, ...]
    plans: tuple[tuple[str, PlanAnswer], ...]

    @property
    def exit_code(self) -> int:
        """0 some kind meets, 3 none does, 4 that is not clear."""
        codes = [answer.exit_code for _, answer in self.plans]
        return 0 if 0 in codes else max(codes)

    @property
    def warnings(self) -> tuple[Warned, ...]:
        """(code, sentence) of all plans, each with its kind's name."""
        return tuple((code, f"{name}: {text}") for name, plan in self.plans for code, text in plan.warnings)

    @property
    def developers(self) -> int:
        """Whom all kinds were planned for."""
        return self.plans[0][1].context.load.developers

    def text(self, *, quiet: bool = False) -> str:
        """As printed: the choice, then the plan of each kind."""
        from replicast.sim.report.hardware import hardware_text

        lines = [] if quiet else self.plans[0][1].context.lines()[:-1]
        first = hardware_text(self.choices, self.break_even, self.developers, lines)
        if quiet:
            return first
        return "\n".join([first, *(f"{name}\n{plan.text(quiet=True)}" for name, plan in self.plans)])

    def document(self, timing: Mapping[str, float] | None = None) -> str:
        """As `--json` writes it: the choice, and each kind's own document."""
        import json

        from replicast.sim.report.hardware import HARDWARE_SCHEMA, hardware_object

        return dumps(
            {
                "schema": HARDWARE_SCHEMA,
                "tool": {"name": "replicast", "version": __version__},
                "developers": self.developers,
                "exit_code": self.exit_code,
                **hardware_object(self.choices, self.break_even),
                "plans": {name: json.loads(plan.document()) for name, plan in self.plans},
                "warnings": warned(self.warnings),
                "timing": dict(timing or {}),
            }
        )

    def to_frame(self) -> pd.DataFrame:
        """One row a kind."""
        import pandas as pd

        return pd.DataFrame([row._asdict() for row in self.choices])

    def _repr_html_(self) -> str:
        return pre(self.text(quiet=True))
