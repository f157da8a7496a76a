"""Law 12: with a profile, does the model agree with the sweep, and where not?

The profile predicts each level with its load given (sessions, window, lengths); intervals hold 90 % of what
was left out when it was fitted, so that one row in ten is outside by chance. Metrics of one level move
together: the count outside is judged as if only a third of them were independent. More than that is a
warning, less is a note. The likeliest cause is read off which metrics miss, and where:

* time per token alone: the engine's steps (version, speculation, GPU, clocks);
* prefill or TTFT: computed tokens a request (cache, harness), or other prompts;
* queue and waiting: work from outside, or sub-agents that c does not tell;
* only where KV blocks ran out: evictions between sessions;
* KV usage alone: the pool, or lengths that rest on it.
"""

from __future__ import annotations

from collections import Counter
from math import sqrt
from typing import TYPE_CHECKING

from replicast.calibration.laws.figures import FAIL_SD, KV_FULL
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, show
from replicast.sim.errors import InputError

if TYPE_CHECKING:
    from replicast.calibration import rows as predicted

LAW = 12
CHECK = "model"
OUTSIDE = 0.10
ALIKE = 3.0  # metrics of a level that count as one

CAUSES = (
    (
        ("queue_mean_s", "waiting_mean"),
        "work from outside the level, or parallel requests that c does not tell",
    ),
    (("prefill_mean_s", "ttft_mean_s"), "other computed tokens a request: cache, harness or prompts differ"),
    (("tpot_mean_s",), "other steps: vLLM version, speculation, GPU or its clocks"),
    (("kv_usage_mean",), "another KV pool, or prompt lengths that rest on it"),
    (
        ("prompt_tokens_per_s", "output_tokens_per_s", "running_mean"),
        "another pace of the sessions: tools, failures, lengths",
    ),
)


def residuals(case: Case) -> Answer:
    """Findings where a prediction's interval misses what was measured; nothing without a profile."""
    if case.profile is None:
        return Answer()
    from replicast.calibration.validate import validate

    try:
        rows = validate(case.sweep, case.profile, loads=("given",)).rows
    except InputError as error:
        text = f"profile {case.profile.name} cannot predict this sweep: {error.what}"
        return Answer(
            (Finding(LAW, CHECK, "warn", text, remedy=error.remedy or "Give a profile of this server."),)
        )
    findings: list[Finding] = []
    cells = []
    for at, level in enumerate(case.levels):
        here = [row for row in rows if row.level == level.concurrency]
        missed = [row for row in here if not row.inside]
        cells.append(f"{len(here) - len(missed)}/{len(here)}" if here else "-")
        if missed:
            findings.append(_missed(missed, len(here), at))
    if len(case.levels) > 1 and (whole := _systematic(case, rows)) is not None:
        findings.append(whole)
    if rows and not findings:
        findings.append(
            Finding(LAW, CHECK, "note", f"profile {case.profile.name} agrees with every figure of the sweep")
        )
    row = Row(CHECK, "model, in", tuple(cells), "figures inside the profile's 90% intervals")
    return Answer(tuple(findings), (row,))


def _limit(figures: int) -> float:
    """How many of so many figures chance leaves outside."""
    return OUTSIDE * figures + FAIL_SD * sqrt(ALIKE * figures * OUTSIDE * (1 - OUTSIDE))


def _systematic(case: Case, rows: tuple[predicted.Row, ...]) -> Finding | None:
    missed = [row for row in rows if not row.inside]
    if len(missed) <= _limit(len(rows)):
        return None
    counts = Counter(row.metric for row in missed)
    metric, times = counts.most_common(1)[0]
    errors = [row.error or 0.0 for row in missed if row.metric == metric]
    sign = "too low" if sum(errors) < 0 else "too high"
    return Finding(
        LAW,
        CHECK,
        "warn",
        f"{len(missed)} of {len(rows)} figures are outside the profile's intervals, most often {metric} "
        f"({times} levels, predicted {sign}). Likeliest cause: {_cause(missed)}",
        (
            ("figures_outside", len(missed)),
            ("figures", len(rows)),
            *((f"{m}_levels", n) for m, n in counts.most_common()),
        ),
        f"Do not plan with {case.profile.name if case.profile else 'this profile'} for this load; "
        "recalibrate.",
    )


def _missed(missed: list[predicted.Row], of: int, at: int) -> Finding:
    worst = sorted(missed, key=lambda row: -abs(row.error or 0.0))
    named = ", ".join(
        f"{row.metric} {show(row.measured)} against {show(row.predicted)} ({show(row.low)} to "
        f"{show(row.high)})"
        for row in worst[:3]
    )
    serious = len(missed) > _limit(of)
    return Finding(
        LAW,
        CHECK,
        "warn" if serious else "note",
        f"{len(missed)} of {of} figures are outside the profile's intervals: {named}. Likeliest cause: "
        f"{_cause(missed)}" + ("" if serious else "; so few can be chance"),
        tuple((f"{row.metric}_error", row.error) for row in missed),
        "Recalibrate on a sweep of this server, or find what changed." if serious else "",
        at,
    )


def _cause(missed: list[predicted.Row]) -> str:
    if all((row.kv_peak or 0.0) >= KV_FULL for row in missed):
        return "evictions where KV blocks ran out"
    names = {row.metric for row in missed}
    weights = [(sum(name in names for name in metrics) / len(metrics), text) for metrics, text in CAUSES]
    return max(weights, key=lambda pair: pair[0])[1]
