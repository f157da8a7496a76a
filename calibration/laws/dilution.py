"""Law 6: rates over a window that is longer than the load are diluted, and costs are too high.

A counter's increase is work of the load; divided by the whole window, lead and drain included, it is a rate
x load / window. So are means of gauges. Latencies are not. The public harness offers load for 600 of 720 s:
its published costs are 1.2 times those under load. The correction holds only while the drain is idle.
"""

from __future__ import annotations

from statistics import median

from replicast.calibration.laws.figures import (
    HARNESS_LEAD_S,
    in_system,
    in_system_at,
    mean_of,
    peak_in_system,
)
from replicast.calibration.laws.findings import Answer, Case, Finding, Row, label, show
from replicast.calibration.sweep import SweepLevel

LAW = 6
CHECK = "window"


def dilution(case: Case) -> Answer:
    """The correction of rates and costs, and levels in whose drain work went on."""
    findings: list[Finding] = []
    cells = []
    for at, level in enumerate(case.levels):
        factor = level.dilution
        cells.append(f"{factor:.2f}" if factor is not None else "-")
        busy = _busy_drain(level, at)
        if busy is not None:
            findings.append(busy)
        elif level.load_s is None and level.window_s and (idle := _idle_tail(level)) > 1.05:
            findings.append(
                Finding(
                    LAW,
                    CHECK,
                    "warn",
                    f"the server was idle at the end of the window: rates are diluted by {idle:.2f}",
                    (("window_s", level.window_s), ("factor", idle)),
                    "Tell how long load was offered.",
                    at,
                )
            )
    factors = [
        level.dilution for level in case.levels if level.dilution is not None and level.dilution > 1.02
    ]
    if factors:
        findings.append(_correction(case, median(factors)))
    return Answer(
        tuple(findings),
        (Row(CHECK, "window/load", tuple(cells), "rates and costs of the window are diluted by it"),),
    )


def _correction(case: Case, factor: float) -> Finding:
    evidence: list[tuple[str, float | int | str | None]] = [("factor", factor)]
    text = f"rates and costs of the window are diluted by its idle end: multiply rates by {factor:.2f}"
    price = case.sweep.price_usd_per_hour
    rated = [
        level
        for level in case.levels
        if level.prompt_tokens_per_s and level.output_tokens_per_s and level.dilution
    ]
    if rated:
        best = max(
            rated, key=lambda level: (level.prompt_tokens_per_s or 0.0) + (level.output_tokens_per_s or 0.0)
        )
        rate = (best.prompt_tokens_per_s or 0.0) + (best.output_tokens_per_s or 0.0)
        in_load = rate * (best.dilution or 1.0)
        text += (
            f". At {label(best)} {show(rate)} processed tokens/s of the window are {show(in_load)} in load"
        )
        evidence += [("processed_tokens_per_s", rate), ("processed_tokens_per_s_in_load", in_load)]
        if price:
            published, true = (1e6 * price / 3600.0 / r for r in (rate, in_load))
            text += f"; ${show(published)} per 1M is ${show(true)}"
            evidence += [("usd_per_1m_processed", published), ("usd_per_1m_processed_in_load", true)]
    return Finding(
        LAW, CHECK, "note", text, tuple(evidence), "Compare costs of sweeps only on the same footing."
    )


def _busy_drain(level: SweepLevel, at: int) -> Finding | None:
    series, load = in_system_at(level), in_system(level)
    peak, e2e = peak_in_system(level), mean_of(level.e2e)
    if not series or level.load_s is None or level.sessions > 1 or not load or peak is None:
        return None
    after = [(t, n) for t, n in series if t > level.load_s + HARNESS_LEAD_S]
    if len(after) < 2:
        return None
    drained = sum(n for _, n in after) / len(after) * (after[-1][0] - after[0][0])
    # Requests under way at the cut may run to their end: each for one more request time.
    allowed = peak.high * (e2e or 0.0)
    if drained <= allowed or after[len(after) // 2][1] == 0:
        return None
    return Finding(
        LAW,
        CHECK,
        "warn",
        f"{show(drained)} request-seconds of work after the load ended, at most {show(allowed)} can be of "
        "requests under way: the drain was not idle, and rates are diluted by less than thought",
        (("drain_request_seconds", drained), ("explained_s", allowed), ("in_system_mean", load)),
        "Wait until the server is idle before the next level; tell the true load time.",
        at,
    )


def _idle_tail(level: SweepLevel) -> float:
    """Window over its part up to the last scrape with work."""
    series = in_system_at(level)
    busy = [t for t, n in series if n > 0]
    return (level.window_s or 0.0) / busy[-1] if busy and busy[-1] > 0 else 1.0
