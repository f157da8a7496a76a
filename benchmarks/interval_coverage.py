"""Do intervals hold the truth as often as they say? 200 plans of the cheap case of the tests.

    python benchmarks/interval_coverage.py [plans] [hours a plan]

The truth is the typical hour of 2,000 other hours. Nominal 90 %; 84 to 96 % is in order for 200 plans.
The sequential intervals, at the look where each plan would have stopped, must hold it at least as often.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

import planning_cases as cases
from replicast.sim.planning.parallel import Runner
from replicast.sim.planning.stopping import judge, stopping_rule, typical

TRUTH = 2000


def main(plans: int = 200, hours: int = 8) -> None:
    """Print both coverages."""
    with Runner(cases.scenario(4)) as runner:
        truth = typical(cases.ttft_p90(runner, 1, TRUTH), 0.1).value
        assert truth is not None
        sets = [cases.ttft_p90(runner, 1, hours, TRUTH + i * hours) for i in range(plans)]
    fixed = sum(_holds(typical(values, 0.1), truth) for values in sets)
    rule = stopping_rule(hours, 0.1)
    stopped = 0
    for values in sets:
        for n in rule.looks:
            estimate = typical(values[:n], rule.alpha(n))
            if judge(estimate, 1.1 * truth) != "inconclusive":
                break
        stopped += _holds(estimate, truth)
    print(f"truth {truth:.3f} s; {plans} plans of {hours} hours, nominal 90%")
    print(f"fixed number of hours: {fixed / plans:.1%}; stopped when clear: {stopped / plans:.1%}")


def _holds(estimate: object, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high  # type: ignore[attr-defined,no-any-return]


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
