"""Law 12: with a profile, does the model agree with the sweep?

Not written yet: returns nothing without a profile.
"""

from __future__ import annotations

from replicast.calibration.laws.findings import Answer, Case


def residuals(case: Case) -> Answer:
    """Findings where a prediction's interval misses what was measured."""
    return Answer()
